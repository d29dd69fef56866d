#!/usr/bin/env python3
"""Draws a ladder as SVG: a bar for each rung, the layer of experts' forward and backward or the whole step, in ms; and tokens/s.

Run: cistron bench moe --ablate --json | plot_ladder.py OUT.svg [TITLE]
     cistron bench train --ablate --json | plot_ladder.py OUT.svg [TITLE]
With --cpu-time before OUT.svg: the processor's time of a step instead of the clock's, where other programs had part of the cores.
"""
import json
import sys

WIDTH, ROW, LEFT, RIGHT, TOP = 720, 30, 150, 170, 40
FORWARD, BACKWARD = "#4878a8", "#e0a040"


def text(x, y, words, anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def bar(row, y, scale, slowest):
    """One rung: its name, its times end to end, what it reaches."""
    forward = row.get("forward_milliseconds", row["milliseconds"]) * scale
    backward = row.get("backward_milliseconds", 0) * scale
    speed = row["tokens_per_second"]
    label = f'{speed:,.0f} tokens/s, {speed / slowest:.2f} x'
    if row.get("cpu_time"):
        label = f'{row["milliseconds"]:,.0f} ms'
    return [text(LEFT - 8, y + 14, f'{row["variant"]} {row["recipe"]}', "end"),
            f'<rect x="{LEFT}" y="{y}" width="{forward:.1f}" height="20" fill="{FORWARD}"/>',
            f'<rect x="{LEFT + forward:.1f}" y="{y}" width="{backward:.1f}" height="20" fill="{BACKWARD}"/>',
            text(LEFT + forward + backward + 6, y + 14, label)]


def title_of(shape):
    if "preset" in shape:
        return f'{shape["preset"]}, {shape["layers"]} layers, {shape["batch"]} x {shape["seq"]} tokens'
    return (f'{shape["experts"]} experts of {shape["hidden"]} x {shape["intermediate"]}, top {shape["top_k"]}, '
            f'{shape["tokens"]} tokens')


def main(out, title="", cpu_time=False):
    rows = [row for row in map(json.loads, sys.stdin) if "refused" not in row]
    if cpu_time:
        rows = [row | {"milliseconds": row["cpu_milliseconds"], "cpu_time": True} for row in rows]
    if not rows:
        sys.exit("plot_ladder.py: no rung was run")
    title = title or title_of(rows[0]["shape"])
    words = ("a training step" if "preset" in rows[0]["shape"] else
             f'<tspan fill="{FORWARD}">forward</tspan> and <tspan fill="{BACKWARD}">backward</tspan>')
    scale = (WIDTH - LEFT - RIGHT) / max(row["milliseconds"] for row in rows)
    height = TOP + ROW * len(rows) + 10
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{height}" fill="white"/>', text(LEFT, 16, title),
           text(LEFT, 32, words + (", ms of the processor's time, all threads" if cpu_time else ", in ms"))]
    for i, row in enumerate(rows):
        svg += bar(row, TOP + ROW * i, scale, rows[0]["tokens_per_second"])
    with open(out, "w") as file:
        file.write("\n".join(svg + ["</svg>"]) + "\n")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--cpu-time"]
    if not words:
        sys.exit(__doc__)
    main(*words, cpu_time="--cpu-time" in sys.argv)
