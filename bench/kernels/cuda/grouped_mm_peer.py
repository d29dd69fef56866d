"""torch._grouped_mm at the shapes of grouped_gemm_bench, in turns with a dense bf16 8192^3 product.

Run: python3 bench/kernels/cuda/grouped_mm_peer.py
"""
import random
import statistics

import torch

SHAPES = [("S1", 8, 4096, 14336, 16384, False), ("S2", 64, 2048, 1024, 131072, False), ("small", 8, 4096, 14336, 512, True)]


def times(launches, turns=9):
    """Median milliseconds of launches that take turns."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(len(launches) + 1)]
    result = [[] for _ in launches]
    for turn in range(-2, turns):
        events[0].record()
        for i, launch in enumerate(launches):
            launch()
            events[i + 1].record()
        torch.cuda.synchronize()
        for i in range(len(launches)):
            if turn >= 0:
                result[i].append(events[i].elapsed_time(events[i + 1]))
    return [statistics.median(t) for t in result]


def report(name, launch, work):
    size = 8192
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    dense, ours = times([lambda: a @ b.t(), launch])
    d = 2 * size**3 / dense / 1e9
    rate = work / ours / 1e9
    print(f"{name:28} {ours:8.3f} ms {rate:7.1f} TFLOP/s  D {d:6.1f}  {rate / d:5.3f} D", flush=True)


def layer(shape, fc, n, k, experts, offsets, rows):
    def randn(*size):
        return torch.randn(*size, device="cuda", dtype=torch.bfloat16)

    x, dy, w = randn(rows, k), randn(rows, n), randn(experts, n, k)
    work = 2 * rows * n * k
    mm = torch._grouped_mm
    report(f"torch {shape} {fc}", lambda: mm(x, w.transpose(1, 2), offs=offsets), work)
    report(f"torch {shape} dgrad of {fc}", lambda: mm(dy, w, offs=offsets), work)
    if shape != "small":
        report(f"torch {shape} {fc} wgrad bf16", lambda: mm(dy.t(), x, offs=offsets), work)


def main():
    for shape, experts, hidden, intermediate, rows, even in SHAPES:
        random.seed(7)
        counts = [rows // experts if even else 0] * experts
        for _ in range(0 if even else rows):
            counts[random.randrange(experts)] += 1
        offsets = torch.tensor(counts).cumsum(0).to("cuda", torch.int32)
        layer(shape, "fc1", 2 * intermediate, hidden, experts, offsets, rows)
        layer(shape, "fc2", hidden, intermediate, experts, offsets, rows)


if __name__ == "__main__":
    main()
