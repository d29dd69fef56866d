"""torch's attention, dense products and cross-entropy at the shapes of dense_bench and attention_bench.

Run: python3 bench/kernels/cuda/step_peer.py
"""
import statistics

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# name, batch, sequence, hidden, heads, kv_heads, head_dim, experts, vocabulary
MODELS = [("mixtral-8x7b", 2, 8192, 4096, 32, 8, 128, 8, 32000), ("fine-grained-64", 8, 2048, 2048, 16, 4, 128, 64, 512),
          ("progen3-3b", 8, 2048, 1280, 16, 16, 80, 8, 134), ("genos-1.2b", 4, 8192, 1024, 16, 8, 64, 8, 128)]


def median_ms(launch, turns=7):
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(turns + 2)]
    for begin, end in events:
        begin.record()
        launch()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events[2:])


def randn(*size, dtype=torch.bfloat16):
    return torch.randn(*size, device="cuda", dtype=dtype)


def report(name, ms, work):
    print(f"{name:44} {ms:8.4f} ms {work / ms / 1e9:7.1f} TFLOP/s", flush=True)


def attention(name, batch, sequence, heads, kv_heads, dim):
    q = randn(batch, sequence, heads, dim).transpose(1, 2).requires_grad_()
    k, v = (randn(batch, sequence, kv_heads, dim).transpose(1, 2).requires_grad_() for _ in range(2))
    dout = randn(batch, sequence, heads, dim).transpose(1, 2)
    product = 2.0 * batch * heads * dim * sequence * (sequence + 1) / 2
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        try:
            with sdpa_kernel(backend):
                def forward():
                    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv_heads)
                out = forward()
                report(f"{name} forward {backend.name}", median_ms(forward), 2 * product)
                for deterministic in (False, True):
                    torch.use_deterministic_algorithms(deterministic)
                    ms = median_ms(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
                    report(f"{name} backward {backend.name}{' deterministic' if deterministic else ''}", ms, 5 * product)
        except RuntimeError as error:
            print(name, backend.name, str(error).splitlines()[0][:150], flush=True)
        torch.use_deterministic_algorithms(False)


def dense(name, tokens, n, k, dtype):
    x, w, dy = randn(tokens, k, dtype=dtype), randn(n, k, dtype=dtype), randn(tokens, n, dtype=dtype)
    work = 2.0 * tokens * n * k
    report(f"{name} forward", median_ms(lambda: x @ w.t()), work)
    report(f"{name} dgrad", median_ms(lambda: dy @ w), work)
    report(f"{name} wgrad", median_ms(lambda: dy.t() @ x), work)


def cross_entropy(name, tokens, vocabulary, hidden):
    x, w = randn(tokens, hidden).requires_grad_(), (randn(vocabulary, hidden) * 0.02).requires_grad_()
    labels = torch.randint(0, vocabulary, (tokens,), device="cuda")

    def step():
        loss = F.cross_entropy(F.linear(x, w).float(), labels)
        torch.autograd.grad(loss, (x, w))
    report(f"{name} head with cross-entropy", median_ms(step, 3), 6.0 * tokens * vocabulary * hidden)


def main():
    print(torch.__version__, "cuDNN", torch.backends.cudnn.version(), flush=True)
    for name, batch, sequence, hidden, heads, kv_heads, dim, experts, vocabulary in MODELS:
        attention(name, batch, sequence, heads, kv_heads, dim)
        tokens = batch * sequence
        dense(f"{name} qkv", tokens, (heads + 2 * kv_heads) * dim, hidden, torch.bfloat16)
        dense(f"{name} out", tokens, hidden, heads * dim, torch.bfloat16)
        dense(f"{name} router f32", tokens, experts, hidden, torch.float32)
        cross_entropy(name, tokens, vocabulary, hidden)


if __name__ == "__main__":
    main()
