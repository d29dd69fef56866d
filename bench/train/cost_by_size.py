#!/usr/bin/env python3
"""What a training step costs as one size grows: tokens a step, experts, choices a token, tokens a sequence. A table and a picture.

Run: bench/train/cost_by_size.py OUT.svg [--steps 3] [--recipe bf16] [--program build/cpu/bin/cistron]
tiny-protein with T = 4096 tokens in sequences of S = 512, E = 8 experts of which k = 2 a token, one of the four changed at a time. CPU time
is that of all threads: on a machine with other work it says more than the clock. Prints Markdown.
"""
import argparse
import json
import math
import subprocess

BASE = {"T": 4096, "E": 8, "k": 2, "S": 512}
SWEEPS = {"T": (1024, 2048, 4096, 8192, 16384), "E": (2, 4, 8, 16, 32, 64), "k": (1, 2, 4, 8), "S": (128, 256, 512, 1024, 2048)}
NAMES = {"T": "tokens a step", "E": "experts", "k": "choices a token", "S": "tokens a sequence"}


def measure(arguments: argparse.Namespace, size: dict) -> dict:
    command = [arguments.program, "bench", "train", "--batch", str(size["T"] // size["S"]), "--seq", str(size["S"]), "--set",
               f"model.experts={size['E']}", "--set", f"model.top_k={size['k']}", "--recipe", arguments.recipe, "--steps",
               str(arguments.steps), "--json", "--quiet"]
    step = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {"microseconds a token": 1e3 * step["cpu_milliseconds"] / size["T"], "MB": step["peak_resident_bytes"] / 1e6,
            "MB planned": step["planned_bytes"] / 1e6, "tokens/s": step["tokens_per_second"]}


def table(results: dict) -> str:
    lines = ["| changed | CPU microseconds a token | tokens/s | peak resident MB | planned MB |", "|---|---|---|---|---|"]
    for (name, value), got in results.items():
        lines.append(f"| {name} = {value} | {got['microseconds a token']:.0f} | {got['tokens/s']:.0f} | {got['MB']:.0f} | "
                     f"{got['MB planned']:.0f} |")
    return "\n".join(lines)


def panel(results: dict, name: str, left: float) -> list:
    """Time and memory over one size, both axes logarithmic: a line of slope 1 grows as the size does."""
    width, top, height = 150, 30, 190

    def x(value):
        return left + width * math.log2(value / SWEEPS[name][0]) / math.log2(SWEEPS[name][-1] / SWEEPS[name][0])

    def y(value, low):  # seven doublings
        return top + height * (1 - math.log2(value / low) / 7)

    svg = [f'<path d="M{left},{top} V{top + height} H{left + width}" fill="none" stroke="#444"/>',
           f'<text x="{left + width / 2}" y="{top + height + 34}" text-anchor="middle">{name}: {NAMES[name]}</text>']
    for value in SWEEPS[name]:
        svg.append(f'<text x="{x(value):.1f}" y="{top + height + 16}" text-anchor="middle" font-size="10">{value}</text>')
    for key, low, colour in (("microseconds a token", 32, "#c33"), ("MB", 64, "#369")):
        points = [(x(value), y(results[name, value][key], low)) for value in SWEEPS[name]]
        svg.append(f'<path d="M{" L".join(f"{a:.1f},{b:.1f}" for a, b in points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        svg += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
        if left < 100:
            svg += [f'<text x="{left - (4 if low == 32 else 34)}" y="{y(low * 2**i, low) + 4:.1f}" text-anchor="end" fill="{colour}" '
                    f'font-size="10">{low * 2**i}</text>' for i in range(0, 8)]
    return svg


def picture(results: dict) -> str:
    svg = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 270" font-family="sans-serif" font-size="12">',
           '<rect width="800" height="270" fill="white"/>',
           '<text x="70" y="18" fill="#c33">CPU microseconds a token</text><text x="250" y="18" fill="#369">peak resident MB</text>']
    for i, name in enumerate(SWEEPS):
        svg += panel(results, name, 70 + 182 * i)
    return "\n".join(svg + ["</svg>"]) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--recipe", default="bf16")
    parser.add_argument("--program", default="build/cpu/bin/cistron")
    arguments = parser.parse_args()
    measured = {}
    for name, values in SWEEPS.items():
        for value in values:
            size = BASE | {name: value}
            key = tuple(size.values())
            if key not in measured:
                measured[key] = measure(arguments, size)
    results = {(name, value): measured[tuple((BASE | {name: value}).values())] for name, values in SWEEPS.items() for value in values}
    print(table(results))
    with open(arguments.out, "w") as file:
        file.write(picture(results))
