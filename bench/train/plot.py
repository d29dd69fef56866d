#!/usr/bin/env python3
"""Draws a run's loss as SVG: training (mean of 10 steps), held-out, and what to compare with: horizontal lines, other runs (dashed).
Run: plot.py METRICS.jsonl OUT.svg [LABEL=NATS | LABEL=METRICS.jsonl]...      e.g. plot.py runs/a/metrics.jsonl a.svg 3-gram=2.8866
"""
import json
import sys

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 400, 60, 45, 15, 90


def read(metrics):
    """Points of the training loss, smoothed, and of the held-out loss."""
    rows = [json.loads(line) for line in open(metrics)]
    train = [(r["tokens"], r["loss"]) for r in rows if "loss" in r]
    tokens_at = {r["step"]: r["tokens"] for r in rows if "loss" in r}
    valid = [(tokens_at[r["step"]], r["valid_loss"]) for r in rows if "valid_loss" in r]
    return [(train[i + 5][0], sum(y for _, y in train[i : i + 10]) / 10) for i in range(0, len(train) - 9, 5)], valid


def main(metrics, out, *lines):
    smooth, valid = read(metrics)
    pairs = [line.split("=", 1) for line in lines]
    levels = [(label, float(value)) for label, value in pairs if not value.endswith(".jsonl")]
    others = [(label, *read(file)) for label, file in pairs if file.endswith(".jsonl")]
    low = min(y for _, y in valid + levels_xy(levels)) - 0.02
    high = max(y for _, y in valid + levels_xy(levels)) + 0.06
    span = valid[-1][0]

    def x(tokens):
        return LEFT + (WIDTH - LEFT - RIGHT) * tokens / span

    def y(loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - min(max(loss, low), high)) / (high - low)

    def path(points):
        return "M" + " L".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<path d="M{LEFT},{TOP} V{HEIGHT - BOTTOM} H{WIDTH - RIGHT}" fill="none" stroke="#444"/>']
    for i in range(6):
        loss, tokens = low + (high - low) * i / 5, span * i / 5
        svg.append(f'<text x="{LEFT - 6}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.3f}</text>')
        svg.append(f'<text x="{x(tokens):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tokens / 1e6:.1f}M</text>')
    svg.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">tokens; loss in nats a token</text>')
    for label, value in levels:
        svg.append(f'<path d="M{LEFT},{y(value):.1f} H{WIDTH - RIGHT}" stroke="#999" stroke-dasharray="4 3"/>')
        svg.append(f'<text x="{WIDTH - RIGHT + 4}" y="{y(value) + 4:.1f}" fill="#666">{label}</text>')
    svg.append(f'<path d="{path(smooth)}" fill="none" stroke="#9ac" stroke-width="1.2"/>')
    svg.append(f'<path d="{path(valid)}" fill="none" stroke="#c33" stroke-width="2"/>')
    for i, (label, other_smooth, other_valid) in enumerate(others):
        svg.append(f'<path d="{path(other_smooth)}" fill="none" stroke="#363" stroke-width="1" stroke-dasharray="5 4"/>')
        svg.append(f'<path d="{path(other_valid)}" fill="none" stroke="#111" stroke-width="1.5" stroke-dasharray="5 4"/>')
        svg.append(f'<text x="{LEFT + 40}" y="{TOP + 20 + 16 * i}" fill="#111">dashed: {label}</text>')
    svg += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="#c33"/>' for a, b in valid]
    svg.append(f'<text x="{WIDTH - RIGHT + 4}" y="{y(valid[-1][1]) + 4:.1f}" fill="#c33">held-out</text></svg>')
    open(out, "w").write("\n".join(svg) + "\n")


def levels_xy(levels):
    return [(0, value) for _, value in levels]


main(*sys.argv[1:])
