#!/usr/bin/env python3
"""The peer of `cistron bench train` on a CPU: whole training steps of Hugging Face's Mixtral, forward to optimizer.

Run: .venv/bin/python bench/train/hf_mixtral_cpu.py [--threads N] [--batch B] [--seq S] [--steps N] [--only IMPL/DTYPE]
                                                    [--experts E] [--top-k K] [--intermediate F]
Shape: tiny-protein (L 4, H 256, F 256, 4 heads, 8 experts, top-2, vocabulary 33). Prints a JSON object a variant; the median of the
steps after two to warm up stands for the variant. Best of eager and grouped_mm, fp32 and bf16 autocast, is the peer. CPU time is that
of all threads, peak memory that of the process so far.
"""
import argparse
import json
import os
import resource
import statistics
import time

import torch
import transformers
from transformers import MixtralConfig, MixtralForCausalLM

WARM_UP = 2


def train_steps(implementation: str, dtype: str, arguments: argparse.Namespace) -> dict:
    batch, seq, steps = arguments.batch, arguments.seq, arguments.steps
    torch.manual_seed(0)
    config = MixtralConfig(vocab_size=33, hidden_size=256, intermediate_size=arguments.intermediate, num_hidden_layers=4, num_attention_heads=4,
                           num_key_value_heads=4, num_local_experts=arguments.experts,
                           num_experts_per_tok=arguments.top_k, max_position_embeddings=max(512, seq),
                           output_router_logits=True, use_cache=False)
    model = MixtralForCausalLM._from_config(config, attn_implementation="sdpa", experts_implementation=implementation)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(0, 33, (batch, seq))
    seconds, cpu_seconds = [], []
    for _ in range(steps + WARM_UP):
        start, cpu_start = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16"):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    median = statistics.median(seconds[WARM_UP:])
    return {"name": "huggingface-mixtral", "variant": f"{implementation}/{dtype}", "device": "cpu", "batch": batch, "seq": seq,
            "milliseconds": 1e3 * median, "cpu_milliseconds": 1e3 * statistics.median(cpu_seconds[WARM_UP:]),
            "peak_resident_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "tokens_per_second": batch * seq / median, "loss": loss.item(),
            "torch": torch.__version__, "transformers": transformers.__version__}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--top-k", type=int, default=2)
    parser.add_argument("--intermediate", type=int, default=256)
    parser.add_argument("--only", help="one variant, such as grouped_mm/bf16")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    variants = [arguments.only] if arguments.only else [f"{i}/{d}" for i in ("eager", "grouped_mm") for d in ("fp32", "bf16")]
    for variant in variants:
        print(json.dumps(train_steps(*variant.split("/"), arguments)), flush=True)
