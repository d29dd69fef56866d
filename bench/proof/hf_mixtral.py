#!/usr/bin/env python3
"""Trains Hugging Face's Mixtral as `cistron train` does: from the same weights, on the same tokens in the same order (dump_batches),
with the same optimizer, schedule and clipping. Writes metrics.jsonl with our keys.

Run: hf_mixtral.py EXPORTED BATCHES OUT [--steps N --batch-tokens N ...]        on a card, in bf16 with fp32 masters
     hf_mixtral.py EXPORTED BATCHES OUT --check RUN/metrics.jsonl               on a CPU, in fp32: is step 1 the same?
EXPORTED: the initial weights, `cistron export` of a run of one step with optimizer.lr = 0.
"""
import argparse
import inspect
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AttentionInterface, MixtralForCausalLM

FIRST, NO_LABEL, CONTEXT = 128, -100, 1024
WARM = 16  # steps whose time is not that of the others


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("exported", "batches", "out"):
        parser.add_argument(name, type=Path)
    for name, default in {"steps": 1536, "batch-tokens": 65536, "lr": 1e-3, "warmup": 100, "validate-every": 256}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--experts", default="grouped_mm")
    parser.add_argument("--attention", choices=["varlen", "flex_attention", "sdpa"], default="varlen")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--start-when", type=Path, metavar="FILE", help="load everything, then wait until FILE exists")
    parser.add_argument("--check", type=Path, metavar="METRICS")
    return parser.parse_args()


class Batch:
    """Packed sequences as a [1, T] row: positions start again at each, labels are the next token of the same one."""
    def __init__(self, stream: torch.Tensor, sequences: int):
        first, places = stream >= FIRST, torch.arange(len(stream), device=stream.device)
        first[0] = True  # where a batch cuts a sequence both pieces stand alone
        self.tokens = (stream % FIRST).long()
        self.positions = places - torch.where(first, places, 0).cummax(0).values
        self.labels = self.tokens.roll(-1).masked_fill(first.roll(-1), NO_LABEL)
        # Starts, then T as often as it takes, so that the host need not know how many there are.
        self.starts = torch.where(first, places, len(stream)).sort().values[:sequences].int()
        self.starts = torch.nn.functional.pad(self.starts, (0, 1), value=len(stream))


def varlen(module, query, key, value, mask, scaling=None, cu_seq_lens_q=None, **_):
    """PyTorch's own flash attention over packed sequences; [1, heads, T, D]."""
    from torch.nn.attention.varlen import varlen_attn
    causal = {"is_causal": True} if "is_causal" in inspect.signature(varlen_attn).parameters else {"window_size": (-1, 0)}
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    return varlen_attn(q, k, v, cu_seq_lens_q, cu_seq_lens_q, CONTEXT, CONTEXT, **causal)[None], None


class Trainer:
    """bf16 parameters beside fp32 masters, or fp32 alone."""
    def __init__(self, a: argparse.Namespace, device: str, dtype: torch.dtype):
        AttentionInterface.register("varlen", varlen)
        self.model = MixtralForCausalLM.from_pretrained(a.exported, dtype=dtype, attn_implementation=a.attention,
                                                        experts_implementation=a.experts).to(device).train()
        self.call = torch.compile(self.model) if a.compile else self.model
        masters = MixtralForCausalLM.from_pretrained(a.exported, dtype=torch.float32).to(device).named_parameters()
        self.working, masters = list(self.model.parameters()), list(masters)
        self.masters = [p for _, p in masters]
        groups = [{"params": [p for name, p in masters if "norm" not in name], "weight_decay": 0.1},
                  {"params": [p for name, p in masters if "norm" in name], "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=a.lr, betas=(0.9, 0.95), eps=1e-8, fused=device == "cuda")

    def losses(self, batch: Batch):
        """Summed cross-entropy, how many labels, load-balancing loss."""
        call = self.call if torch.is_grad_enabled() else self.model  # held-out batches have many lengths: not compiled
        out = call(input_ids=batch.tokens[None], position_ids=batch.positions[None], use_cache=False, output_router_logits=True,
                        cu_seq_lens_q=batch.starts)
        nll = torch.nn.functional.cross_entropy(out.logits[0].float(), batch.labels, ignore_index=NO_LABEL, reduction="sum")
        return nll, (batch.labels >= 0).sum(), out.aux_loss

    def gradients(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        nll, labels, aux = self.losses(batch)
        loss = nll / labels
        (loss + self.model.config.router_aux_loss_coef * aux).backward()
        for master, working in zip(self.masters, self.working, strict=True):
            master.grad = working.grad.float()
        self.model.zero_grad(set_to_none=True)
        return loss.detach(), aux.detach()

    def step(self, batch: Batch, lr: float) -> torch.Tensor:
        loss, aux = self.gradients(batch)
        norm = torch.nn.utils.clip_grad_norm_(self.masters, 1.0, foreach=True)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(self.working, self.masters)
        return torch.stack([loss, aux, norm])

    @torch.no_grad()
    def held_out(self, stream: torch.Tensor, batch_tokens: int, sequences: int) -> tuple[float, int]:
        starts = torch.cat([(stream >= FIRST).nonzero()[:, 0], torch.tensor([len(stream)], device=stream.device)]).tolist()
        nll, count, begin = 0.0, 0, 0
        for i, end in enumerate(starts[1:]):
            if i + 2 == len(starts) or starts[i + 2] - begin > batch_tokens:
                part, labels, _ = self.losses(Batch(stream[begin:end], sequences))
                nll, count, begin = nll + part.double().item(), count + labels.item(), end
        return nll / count, count


def learning_rate(a: argparse.Namespace, step: int) -> float:
    progress = (step - a.warmup) / max(a.steps - a.warmup, 1)
    return a.lr * (step / a.warmup if step <= a.warmup else 0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2)


def train(a: argparse.Namespace) -> None:
    trainer = Trainer(a, "cuda", torch.bfloat16)
    stream = torch.from_numpy(np.fromfile(a.batches / "train.u8", np.uint8)).cuda().view(-1, a.batch_tokens)
    valid = torch.from_numpy(np.fromfile(a.batches / "valid.u8", np.uint8)).cuda()
    sequences = 2 * int((stream >= FIRST).sum(1).max())  # more than in any piece of the held-out ones too
    a.out.mkdir(parents=True, exist_ok=True)
    while a.start_when and not a.start_when.exists():
        time.sleep(0.1)
    start = begin = time.perf_counter()
    rows, last = [], 0
    with (a.out / "metrics.jsonl").open("w") as metrics:
        for step in range(1, a.steps + 1):
            rows.append(trainer.step(Batch(stream[step - 1], sequences), learning_rate(a, step)))
            if step % a.validate_every and step not in (WARM, a.steps):
                continue
            values = torch.stack(rows).tolist()
            speed = len(rows) * a.batch_tokens / (time.perf_counter() - begin)
            for i, (loss, aux, norm) in enumerate(values, last + 1):
                print(json.dumps({"step": i, "tokens": i * a.batch_tokens, "loss": loss, "aux_loss": aux, "lr": learning_rate(a, i),
                                  "grad_norm": norm, "tokens_per_second": speed}), file=metrics)
            nll, count = trainer.held_out(valid, a.batch_tokens, sequences)
            print(json.dumps({"step": step, "valid_tokens": count, "valid_loss": nll}), file=metrics, flush=True)
            print(f"step {step} loss {values[-1][0]:.4f} held-out {nll:.4f} {speed:.0f} tokens/s", flush=True)
            begin, rows, last = time.perf_counter(), [], step
    print(f"{begin - start:.1f} s of training and validation", flush=True)


def check(a: argparse.Namespace) -> None:
    a.attention = "sdpa"
    trainer = Trainer(a, "cpu", torch.float32)
    stream = torch.from_numpy(np.fromfile(a.batches / "train.u8", np.uint8))[: a.batch_tokens]
    loss, aux = trainer.gradients(Batch(stream, 1))
    norm = sum(p.grad.double().square().sum() for p in trainer.masters).sqrt()  # in fp32 a CPU's norm is off by 5e-5
    theirs = {"loss": loss.item(), "aux_loss": aux.item(), "grad_norm": norm.item()}
    ours = json.loads(a.check.read_text().splitlines()[0])
    for key, value in theirs.items():
        print(f"{key}: theirs {value:.7f}, ours {ours[key]:.7f}")
        if abs(value / ours[key] - 1) > 1e-5:
            raise SystemExit(f"{key} differs")


if __name__ == "__main__":
    options = arguments()
    check(options) if options.check else train(options)
