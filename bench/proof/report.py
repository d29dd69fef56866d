#!/usr/bin/env python3
"""The training proof's table (Markdown, standard output) and pictures. Fails unless the held-out loss of every MXFP8 run ends at most
max(0.1%, 2 standard deviations) above the mean of the bf16 seeds.
Run: report.py OUT PICTURE.svg [LABEL=NATS]...        OUT: what run.sh wrote; LABEL=NATS: n-gram baselines
"""
import re
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
from plot import HEIGHT, Chart, page, rows_of, smooth, steps

SEEDS = ("bf16-1", "bf16-2", "bf16-3")
MXFP8 = ("mxfp8-128-1", "mxfp8-32-1", "mxfp8-128-2")
COLORS = {"bf16-1": "#111", "bf16-2": "#777", "bf16-3": "#bbb", "mxfp8-128-1": "#c33", "mxfp8-32-1": "#e90", "mxfp8-128-2": "#d8a", "hugging-face": "#27b", "fp32": "#2a2"}


def read(out):
    return {run: rows for run in COLORS if (file := out / f"{run}.jsonl").exists() and (rows := rows_of(file))}


def seconds(out, run):
    """Of training and validation where the log says so, else of the whole program."""
    found = re.findall(r"([\d.]+) s of training|wall ([\d.]+) s", (out / f"{run}.log").read_text())
    return f"{float(found[0][0] or found[0][1]):.0f} s" if found else "-"


def table(out, runs):
    print("| run | tokens | first loss | held-out, nats a token | tokens/s, median of steps | wall |\n|---|---|---|---|---|---|")
    for run, rows in runs.items():
        losses, held_out = steps(rows), steps(rows, "valid_loss")
        speed = statistics.median(value for _, value in steps(rows, "tokens_per_second"))
        tokens = max(row.get("tokens", 0) for row in rows)
        ended = f"{held_out[-1][1]:.4f}" if held_out and held_out[-1][0] == tokens else "-"
        print(f"| {run} | {tokens / 1e6:.1f}M | {losses[0][1]:.4f} | {ended} | {speed:,.0f} | {seconds(out, run)} |")


def holds(runs):
    ends = {run: steps(rows, "valid_loss")[-1][1] for run, rows in runs.items() if run in SEEDS + MXFP8}
    seeds = [ends[run] for run in SEEDS if run in ends]
    mean, deviation = statistics.mean(seeds), statistics.stdev(seeds)
    allowed = max(1e-3 * mean, 2 * deviation)
    print(f"\nbf16: mean {mean:.4f}, standard deviation {deviation:.4f} of {len(seeds)} seeds; allowed above the mean: {allowed:.4f}.")
    mxfp8 = [run for run in MXFP8 if run in ends]
    for run in mxfp8:
        print(f"{run}: {ends[run] - mean:+.4f}, {'holds' if ends[run] - mean <= allowed else 'DOES NOT HOLD'}; "
              f"{ends[run] - ends['bf16-' + run[-1]]:+.4f} beside the same seed.")
    return len(seeds) > 1 and bool(mxfp8) and all(ends[run] - mean <= allowed for run in mxfp8)


def beside_fp32(runs):
    """The same seed and order: by how much the losses of one step differ."""
    if "fp32" not in runs:
        return
    fp32 = steps(runs["fp32"])
    for run in [run for run in runs if run.endswith("-1")]:
        apart = [abs(a / b - 1) for (_, a), (_, b) in zip(steps(runs[run]), fp32, strict=False)]
        print(f"{run} beside fp32 over {len(apart)} steps: relative difference of a step's loss {statistics.mean(apart):.1e} on average, "
              f"{max(apart):.1e} at most.")


def losses(runs, levels, top):
    span = max(steps(rows)[-1][0] for rows in runs.values())
    ends = [steps(rows, "valid_loss")[-1][1] for run, rows in runs.items() if run != "fp32"]
    chart = Chart("tokens; training loss, mean of 10 steps (thin), and held-out loss (thick), nats a token", span, min(ends) - 0.02,
                  max(levels.values(), default=max(ends)) + 0.06, top=top)
    for label, value in levels.items():
        chart.level(label, value)
    for row, (run, rows) in enumerate(runs.items()):
        chart.line(smooth(steps(rows)), COLORS[run], 0.6)
        if held_out := steps(rows, "valid_loss"):
            chart.line(held_out, COLORS[run], 2)
            chart.dots(held_out, COLORS[run])
        chart.legend(row + 4, run, COLORS[run])
    return chart


def norms(runs, top):
    every = {run: smooth(steps(rows, "grad_norm")) for run, rows in runs.items()}
    values = [y for points in every.values() for _, y in points]
    chart = Chart("tokens; norm of the gradient before clipping, mean of 10 steps", max(p[-1][0] for p in every.values() if p),
                  min(values), max(values), log=True, top=top)
    for row, (run, points) in enumerate(every.items()):
        chart.line(points, COLORS[run], 1)
        chart.legend(row, run, COLORS[run])
    return chart


def lost(runs, top):
    kinds = {"weights": "#27b", "activations": "#2a2", "gradients": "#c33"}
    every = {(run, kind, loss): steps(runs[run], f"mxfp8_{kind}_{loss}") for run in MXFP8 if run in runs for kind in kinds
             for loss in ("subnormal", "zero")}
    values = [y for points in every.values() for _, y in points if y > 0]
    chart = Chart("tokens; share of elements: subnormal (lines), zero (dashed); group 128 thick, 32 thin",
                  max(points[-1][0] for points in every.values() if points), min(values) / 2, max(values) * 4, log=True, top=top)
    for (run, kind, loss), points in every.items():
        chart.line(points, kinds[kind], 2.5 if "128" in run else 1, "5 4" if loss == "zero" else "")
    for row, (kind, color) in enumerate(kinds.items()):
        chart.legend(row, kind, color)
    return chart


def main(out, picture, *levels):
    runs = read(Path(out))
    table(Path(out), runs)
    beside_fp32(runs)
    page(picture, [losses(runs, {label: float(value) for label, value in (level.split("=") for level in levels)}, 0),
                   norms(runs, HEIGHT), lost(runs, 2 * HEIGHT)])
    sys.exit(0 if holds(runs) else 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
