#!/usr/bin/env python3
"""Times training steps of Hugging Face's Mixtral on a card, in bf16 (parameters, gradients and AdamW's states), without clipping.

One line of JSON: bench/train/hf_mixtral_cuda.py --experts-implementation grouped_mm --layers 2 --batch 2 --seq 8192
"""
import argparse
import json
import statistics

import torch
import transformers


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in {"layers": 2, "batch": 2, "seq": 8192, "hidden": 4096, "intermediate": 14336, "experts": 8, "top-k": 2,
                          "heads": 32, "kv-heads": 8, "vocabulary": 32000, "steps": 12, "warm-up": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--experts-implementation", choices=["eager", "grouped_mm", "batched_mm"], default="eager")
    parser.add_argument("--attention", choices=["sdpa", "eager", "flash_attention_2"], default="sdpa")
    return parser.parse_args()


def make_model(a: argparse.Namespace) -> torch.nn.Module:
    config = transformers.MixtralConfig(
        hidden_size=a.hidden, intermediate_size=a.intermediate, num_hidden_layers=a.layers, num_local_experts=a.experts,
        num_experts_per_tok=a.top_k, num_attention_heads=a.heads, num_key_value_heads=a.kv_heads, vocab_size=a.vocabulary,
        max_position_embeddings=a.seq, output_router_logits=False, use_cache=False)
    config._attn_implementation = a.attention
    config._experts_implementation = a.experts_implementation
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = transformers.MixtralForCausalLM(config)
        torch.set_default_dtype(torch.float32)
    return model.train()


def time_steps(a: argparse.Namespace, model: torch.nn.Module) -> tuple[list[float], float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(0, a.vocabulary, (a.batch, a.seq), device="cuda")
    times = []
    for step in range(a.warm_up + a.steps):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
        if step >= a.warm_up:
            times.append(begin.elapsed_time(end))
    return times, loss.item()


def main() -> None:
    a = arguments()
    torch.manual_seed(0)
    times, loss = time_steps(a, make_model(a))
    median = statistics.median(times)
    print(json.dumps({
        "name": "train", "device": "cuda", "recipe": "bf16", "variant": a.experts_implementation,
        "shape": {"layers": a.layers, "batch": a.batch, "seq": a.seq}, "milliseconds": median,
        "tokens_per_second": a.batch * a.seq / median * 1e3, "peak_bytes": torch.cuda.max_memory_allocated(),
        "loss": loss, "transformers": transformers.__version__, "torch": torch.__version__}), flush=True)


if __name__ == "__main__":
    main()
