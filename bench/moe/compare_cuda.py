#!/usr/bin/env python3
"""Times the layer of experts on one card, ours and what others run, in turns, at the four shapes; prints medians and ratios.

Peers are those of layer_peers_cuda.py, which says what each needs. They stay in this process: SonicMoE compiles once.

    bench/moe/compare_cuda.py [--rounds 2] [--peers sonicmoe,compiled,hf_eager,hf_grouped_mm] [--cistron build/cuda/bin/cistron] [--lines OUT.jsonl]
"""
import argparse
import collections
import json
import statistics
import subprocess
import sys
import time

import layer_peers_cuda as peers

KEYS = ("hidden", "intermediate", "experts", "top_k", "tokens")
SHAPES = [(4096, 14336, 8, 2, 8192), (2048, 1024, 64, 8, 16384), (2048, 768, 128, 8, 16384), (1280, 3840, 8, 2, 32768)]


def ours(cistron, shape):
    sizes = [word for key, size in zip(KEYS, shape) for word in (f"--{key.replace('_', '-')}", str(size))]
    run = subprocess.run([cistron, "bench", "moe", *sizes, "--ablate", "--device", "cuda", "--json"], stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


def theirs(name, shape):
    sizes = argparse.Namespace(turns=9, warm_up=3, **dict(zip(KEYS, shape)))
    try:
        return [peers.row(sizes, name)]
    except Exception as error:  # one peer that cannot run is no reason to lose the others
        print(f"{name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
        return []
    finally:
        peers.release()


def table(rows):
    runs = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in rows:
        if "refused" not in row:
            runs[tuple(row["shape"][key] for key in KEYS)][row["variant"], row["recipe"]].append(row)
    for shape, variants in runs.items():
        def median(variant, key):
            return statistics.median(row[key] for row in variants[variant])
        print(", ".join(f"{key} {size}" for key, size in zip(KEYS, shape)))
        best = min((v for v in variants if v[0] in peers.PEERS), key=lambda v: median(v, "milliseconds"), default=None)
        for variant in variants:
            ratio = median(best, "milliseconds") / median(variant, "milliseconds") if best else float("nan")
            print(f"  {variant[0]:<14} {variant[1]:<10} {median(variant, 'forward_tflops'):6.0f} / {median(variant, 'backward_tflops'):4.0f} TFLOP/s "
                  f"{median(variant, 'milliseconds'):8.2f} ms, {ratio:5.2f} of {best[0] if best else 'no peer'}'s speed, "
                  f"{median(variant, 'bytes_saved_per_token'):8.0f} bytes a token")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peers", default=",".join(peers.PEERS))
    parser.add_argument("--cistron", default="build/cuda/bin/cistron")
    parser.add_argument("--lines", help="rows as JSON lines are added to this file")
    a = parser.parse_args()
    rows = []
    for shape in SHAPES:
        for _ in range(a.rounds):
            begin = time.monotonic()
            new = [row for name in a.peers.split(",") for row in theirs(name, shape)] + ours(a.cistron, shape)
            rows += new
            if a.lines:
                with open(a.lines, "a") as file:
                    file.writelines(json.dumps(row) + "\n" for row in new)
            print(f"{shape}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    table(rows)


if __name__ == "__main__":
    main()
