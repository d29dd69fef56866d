#!/usr/bin/env python3
"""Draws a run's loss as SVG: training (mean of 10 steps), held-out, and what to compare with: horizontal lines, other runs (dashed).
Run: plot.py METRICS.jsonl OUT.svg [LABEL=NATS | LABEL=METRICS.jsonl]...      e.g. plot.py runs/a/metrics.jsonl a.svg 3-gram=2.8866
"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 400, 60, 45, 15, 90


class Chart:
    """Lines over tokens, from 0 to `span`; what is below `low` or above `high` is drawn there. `top`: its place on a page."""
    def __init__(self, title, span, low, high, log=False, top=0):
        self.span, self.low, self.high, self.scale, self.top = span, low, high, math.log if log else float, top
        self.parts = [f'<path d="M{LEFT},{top + TOP} V{top + HEIGHT - BOTTOM} H{WIDTH - RIGHT}" fill="none" stroke="#444"/>']
        for i in range(6):
            value = low * (high / low) ** (i / 5) if log else low + (high - low) * i / 5
            self.text(LEFT - 6, self.y(value) + 4, f"{value:.2g}" if log else f"{value:.3f}", "end")
            self.text(self.x(span * i / 5), top + HEIGHT - BOTTOM + 18, f"{span * i / 5 / 1e6:.1f}M", "middle")
        self.text((LEFT + WIDTH - RIGHT) / 2, top + HEIGHT - 8, title, "middle")

    def x(self, tokens):
        return LEFT + (WIDTH - LEFT - RIGHT) * min(tokens / self.span, 1)

    def y(self, value):
        low, high, at = (self.scale(v) for v in (self.low, self.high, min(max(value, self.low), self.high)))
        return self.top + TOP + (HEIGHT - TOP - BOTTOM) * (high - at) / (high - low)

    def text(self, x, y, text, anchor="start", color="#000"):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{text}</text>')

    def line(self, points, color, width=1.5, dash=""):
        if not points:
            return
        path = "M" + " L".join(f"{self.x(a):.1f},{self.y(b):.1f}" for a, b in points)
        self.parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{width}" stroke-dasharray="{dash}"/>')

    def dots(self, points, color):
        self.parts += [f'<circle cx="{self.x(a):.1f}" cy="{self.y(b):.1f}" r="3" fill="{color}"/>' for a, b in points]

    def level(self, label, value):
        self.line([(0, value), (self.span, value)], "#999", 1, "4 3")
        self.text(WIDTH - RIGHT + 4, self.y(value) + 4, label, color="#666")

    def legend(self, row, text, color="#111"):
        self.text(WIDTH - RIGHT - 150, self.top + TOP + 20 + 16 * row, text, color=color)


def page(out, charts):
    height = HEIGHT * len(charts)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{height}" fill="white"/>', *(part for chart in charts for part in chart.parts), "</svg>"]
    with open(out, "w") as file:
        file.write("\n".join(parts) + "\n")


def rows_of(metrics):
    with open(metrics) as file:
        return [json.loads(line) for line in file]


def steps(rows, key="loss"):
    """(tokens, value) of the lines that have it; those of validations say only their step."""
    tokens_at = {r["step"]: r["tokens"] for r in rows if "tokens" in r}
    return [(tokens_at[r["step"]], r[key]) for r in rows if key in r]


def smooth(points, width=10):
    """Means of `width` points."""
    half = width // 2
    return [(points[i + half][0], sum(y for _, y in points[i : i + width]) / width) for i in range(0, len(points) - width + 1, half)]


def read(metrics):
    """Points of the training loss, smoothed, and of the held-out loss."""
    rows = rows_of(metrics)
    return smooth(steps(rows)), steps(rows, "valid_loss")


def main(metrics, out, *lines):
    train, valid = read(metrics)
    pairs = [line.split("=", 1) for line in lines]
    levels = [(label, float(value)) for label, value in pairs if not value.endswith(".jsonl")]
    others = [(label, *read(file)) for label, file in pairs if file.endswith(".jsonl")]
    ends = [y for _, y in valid] + [value for _, value in levels]
    chart = Chart("tokens; loss in nats a token", valid[-1][0], min(ends) - 0.02, max(ends) + 0.06)
    for label, value in levels:
        chart.level(label, value)
    chart.line(train, "#9ac", 1.2)
    chart.line(valid, "#c33", 2)
    for i, (label, other_train, other_valid) in enumerate(others):
        chart.line(other_train, "#363", 1, "5 4")
        chart.line(other_valid, "#111", 1.5, "5 4")
        chart.legend(i, f"dashed: {label}")
    chart.dots(valid, "#c33")
    chart.text(WIDTH - RIGHT + 4, chart.y(valid[-1][1]) + 4, "held-out", color="#c33")
    page(out, [chart])


if __name__ == "__main__":
    main(*sys.argv[1:])
