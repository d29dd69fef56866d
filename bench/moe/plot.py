#!/usr/bin/env python3
"""Draws the ladder of the layer of experts as SVG: a bar for each rung, forward and backward of it, in ms; and tokens/s.

Run: cistron bench moe --ablate --json | plot.py OUT.svg [TITLE]
"""
import json
import sys

WIDTH, ROW, LEFT, RIGHT, TOP = 720, 30, 150, 150, 40
FORWARD, BACKWARD = "#4878a8", "#e0a040"


def text(x, y, words, anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def bar(row, y, scale, slowest):
    """One rung: its name, its two times end to end, what it reaches."""
    forward, backward = row["forward_milliseconds"] * scale, row["backward_milliseconds"] * scale
    speed = row["tokens_per_second"]
    label = f'{speed:,.0f} tokens/s, {speed / slowest:.2f} x'
    return [text(LEFT - 8, y + 14, f'{row["variant"]} {row["recipe"]}', "end"),
            f'<rect x="{LEFT}" y="{y}" width="{forward:.1f}" height="20" fill="{FORWARD}"/>',
            f'<rect x="{LEFT + forward:.1f}" y="{y}" width="{backward:.1f}" height="20" fill="{BACKWARD}"/>',
            text(LEFT + forward + backward + 6, y + 14, label)]


def main(out, title=""):
    rows = [row for row in map(json.loads, sys.stdin) if "refused" not in row]
    if not rows:
        sys.exit("plot.py: no rung was run")
    shape = rows[0]["shape"]
    title = title or (f'{shape["experts"]} experts of {shape["hidden"]} x {shape["intermediate"]}, top {shape["top_k"]}, '
                      f'{shape["tokens"]} tokens')
    scale = (WIDTH - LEFT - RIGHT) / max(row["milliseconds"] for row in rows)
    height = TOP + ROW * len(rows) + 10
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>', text(LEFT, 16, title),
           text(LEFT, 32, f'<tspan fill="{FORWARD}">forward</tspan> and <tspan fill="{BACKWARD}">backward</tspan>, in ms')]
    for i, row in enumerate(rows):
        svg += bar(row, TOP + ROW * i, scale, rows[0]["tokens_per_second"])
    with open(out, "w") as file:
        file.write("\n".join(svg + ["</svg>"]) + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
