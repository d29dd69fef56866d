#!/usr/bin/env python3
"""Times what others run for the layer of experts on a card, in bf16: SonicMoE, torch.compile over grouped_mm, Hugging Face's two.

Prints a line of JSON for each, with the keys of `cistron bench moe --ablate --json`, so that bench/plot_ladder.py draws both.
Routing is given; sorting by it counts with forward. A dense product runs before each timed part: the queue is full, the cache cold.
Needs torch for CUDA and transformers; SonicMoE: sonic-moe 0.1.2, quack-kernels 0.4.1, nvidia-cutlass-dsl 4.4.2, apache-tvm-ffi on
PYTHONPATH, and three minutes of compiling at its first call.

    bench/moe/layer_peers_cuda.py --hidden 2048 --intermediate 1024 --experts 64 --top-k 8 --tokens 16384 --peers sonicmoe,compiled
"""
import argparse
import gc
import json
import statistics
import sys

import torch
import torch.nn.functional as F

BF16 = torch.bfloat16


class Permute(torch.autograd.Function):
    """Rows to their experts. The gradient of a gather is a sum over a token's k rows, not a scatter."""

    @staticmethod
    def forward(ctx, x, order, inverse, k):
        ctx.save_for_backward(inverse)
        ctx.k = k
        return x.index_select(0, order // k)

    @staticmethod
    def backward(ctx, d):
        inverse, = ctx.saved_tensors
        return d.index_select(0, inverse).view(-1, ctx.k, d.size(1)).sum(1), None, None, None


class Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, order, inverse, k):
        ctx.save_for_backward(order)
        ctx.k = k
        return y.index_select(0, inverse).view(-1, k, y.size(1)).sum(1)

    @staticmethod
    def backward(ctx, d):
        order, = ctx.saved_tensors
        return d.index_select(0, order // ctx.k), None, None, None


def grouped_layer(x, experts, weights, gate_up, down, count):
    """Sort by expert, two grouped products with SwiGLU between, back and sum."""
    k, flat = experts.size(1), experts.reshape(-1)
    order = torch.argsort(flat, stable=True)
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(order.numel(), device=order.device)
    ends = torch.cumsum(torch.histc(flat.int(), bins=count, min=0, max=count - 1), 0, dtype=torch.int32)
    rows = Permute.apply(x, order, inverse, k)
    gate, up = F.grouped_mm(rows, gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
    hidden = F.silu(gate) * up * weights.reshape(-1).index_select(0, order).to(x.dtype)[:, None]
    return Combine.apply(F.grouped_mm(hidden, down.transpose(1, 2), offs=ends), order, inverse, k)


def compiled(a, gate_up, down):
    torch._dynamo.reset()
    layer = torch.compile(grouped_layer, dynamic=False)
    return lambda x, experts, weights: layer(x, experts, weights, gate_up, down, a.experts), [gate_up, down]


def hugging_face(a, gate_up, down, implementation):
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts
    config = MixtralConfig(hidden_size=a.hidden, intermediate_size=a.intermediate, num_local_experts=a.experts, num_experts_per_tok=a.top_k)
    config._experts_implementation = implementation
    with torch.device("meta"):
        layer = MixtralExperts(config)
    layer.gate_up_proj, layer.down_proj = torch.nn.Parameter(gate_up), torch.nn.Parameter(down)
    return layer, [layer.gate_up_proj, layer.down_proj]


def sonicmoe(a, gate_up, down):
    """Its weights have gate's and up's rows in turns."""
    import sonicmoe.functional as sonic
    from sonicmoe.enums import ActivationType
    gate, up = gate_up.detach().chunk(2, 1)
    gate_up = torch.stack((gate, up), 2).flatten(1, 2).contiguous().requires_grad_()
    down = down.detach().requires_grad_()

    def layer(x, experts, weights):
        t, k = experts.shape
        sizes = (t * k, t * k, a.experts, a.experts + 1, t * k)
        scatter, reverse, counts, offsets, gather = (torch.empty(n, dtype=torch.int32, device="cuda") for n in sizes)
        sonic.TC_topk_router_metadata_triton(experts.int(), a.experts, counts, offsets, gather, scatter, reverse)
        h, pre = sonic._UpProjection.apply(x, gate_up.permute(1, 2, 0), None, offsets, t * k, k, gather, scatter, reverse, None, False,
                                           ActivationType.SWIGLU, False, False)
        return sonic._DownProjection.apply(h, pre, down.permute(1, 2, 0), None, weights, offsets, t, k, gather, scatter, reverse, None,
                                           False, ActivationType.SWIGLU)
    return layer, [gate_up, down]


PEERS = {"sonicmoe": sonicmoe, "compiled": compiled, "hf_eager": lambda *a: hugging_face(*a, "eager"),
         "hf_grouped_mm": lambda *a: hugging_face(*a, "grouped_mm")}


def inputs(a):
    random = torch.Generator("cuda").manual_seed(0)
    def normal(*shape):
        return torch.randn(*shape, device="cuda", dtype=BF16, generator=random)
    gate_up = torch.stack([normal(2 * a.intermediate, a.hidden) * a.hidden ** -0.5 for _ in range(a.experts)])
    down = torch.stack([normal(a.hidden, a.intermediate) * a.intermediate ** -0.5 for _ in range(a.experts)])
    chosen = torch.randn(a.tokens, a.experts, device="cuda", generator=random).topk(a.top_k, -1)
    x, dy = normal(a.tokens, a.hidden).requires_grad_(), normal(a.tokens, a.hidden)
    return x, dy, chosen.indices, chosen.values.softmax(-1).requires_grad_(), gate_up.requires_grad_(), down.requires_grad_()


def relative_error(a, y, x, experts, weights, gate_up, down):
    """Of eight tokens, against float64: a peer that computes something else is not a peer."""
    worst = 0.0
    for t in range(0, a.tokens, a.tokens // 8):
        want = 0
        for e, w in zip(experts[t].tolist(), weights[t].double()):
            gate, up = (gate_up[e].double() @ x[t].double()).chunk(2)
            want = want + w * (down[e].double() @ (F.silu(gate) * up))
        worst = max(worst, ((y[t].double() - want).norm() / want.norm()).item())
    return worst


def measure(a, make, dense):
    x, dy, experts, weights, gate_up, down = inputs(a)
    layer, parameters = make(a, gate_up, down)
    leaves = [x, weights, *parameters]
    y = layer(x, experts, weights)
    with torch.no_grad():
        error = relative_error(a, y, x, experts, weights, gate_up, down)
    if error > 0.02:
        raise RuntimeError(f"the peer's result is off by {error:.1e}")
    torch.autograd.grad(y, leaves, dy)
    del y
    gc.collect()
    before = torch.cuda.memory_allocated()
    y = layer(x, experts, weights)
    saved = torch.cuda.memory_allocated() - before - y.nbytes
    forward, backward = [], []
    for _ in range(a.warm_up + a.turns):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        y = None
        dense()
        marks[0].record()
        y = layer(x, experts, weights)
        marks[1].record()
        dense()
        marks[2].record()
        torch.autograd.grad(y, leaves, dy)
        marks[3].record()
        torch.cuda.synchronize()
        forward.append(marks[0].elapsed_time(marks[1]))
        backward.append(marks[2].elapsed_time(marks[3]))
    return statistics.median(forward[a.warm_up:]), statistics.median(backward[a.warm_up:]), saved // a.tokens


def release():
    gc.collect()
    torch.cuda.empty_cache()


def row(a, name):
    """The peer's line of JSON at the sizes of `a`."""
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=BF16) for _ in range(2))
    forward, backward, saved = measure(a, PEERS[name], lambda: torch.mm(left, right))
    flops = 6 * a.tokens * a.top_k * a.hidden * a.intermediate
    return {
        "name": "moe", "device": "cuda", "recipe": "bf16", "variant": name,
        "shape": {key: getattr(a, key) for key in ("hidden", "intermediate", "experts", "top_k", "tokens")},
        "milliseconds": forward + backward, "forward_milliseconds": forward, "backward_milliseconds": backward,
        "forward_tflops": flops / forward / 1e9, "backward_tflops": 2 * flops / backward / 1e9,
        "tokens_per_second": a.tokens / (forward + backward) * 1e3, "bytes_saved_per_token": saved}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in {"hidden": 4096, "intermediate": 14336, "experts": 8, "top-k": 2, "tokens": 8192, "turns": 9, "warm-up": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--peers", default=",".join(PEERS))
    a = parser.parse_args()
    for name in a.peers.split(","):
        print(json.dumps(row(a, name)), flush=True)
        release()


if __name__ == "__main__":
    main()
