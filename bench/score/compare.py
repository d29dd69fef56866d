#!/usr/bin/env python3
"""Scoring and generation on a CPU: Hugging Face's Mixtral and Cistron, in turns, with one model and one set of sequences.

Run: .venv/bin/python bench/score/compare.py [--rounds 2] [--threads N] [--new-tokens 128] [--only score/bf16] [--program build/cpu/bin/cistron]
The model has tiny-protein's shape and random weights. score: 500 random proteins of 50 to 510 residues. generate: 64 prompts of 20
residues, greedy, with their keys and values kept; the end token is never likeliest, so both write the same number of tokens. The
peer gets its best: batches of one length or sorted by length, the fastest of its experts'
implementations and batch sizes, the model in bf16 or fp32; only its calls count. Of Cistron the whole process counts, reading
files included. Prints a table, like with like: medians of tokens a second, and of tokens a second of CPU time, which other programs
on the machine disturb less. Takes under four minutes of two quiet cores and 3 GB.
"""
import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
import transformers
from transformers import MixtralConfig, MixtralForCausalLM

RESIDUES = "LAGVSERTIDPKQNFYMHWC"  # ids 4 to 23 of the tokenizer esm2; 0 begins, 1 pads, 2 ends
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def proteins(count: int, shortest: int, longest: int) -> list[str]:
    draw = random.Random(1)
    return ["".join(draw.choices(RESIDUES, k=draw.randint(shortest, longest))) for _ in range(count)]


def write_fasta(path: Path, sequences: list[str]) -> None:
    path.write_text("".join(f">s{i}\n{s}\n" for i, s in enumerate(sequences)))


def ids_of(sequence: str, end: bool) -> list[int]:
    return [0] + [RESIDUES.index(c) + 4 for c in sequence] + [2] * end


class Speed:
    """Tokens over seconds: of the clock and of all threads."""

    def __init__(self, tokens: int, wall: float, cpu: float):
        self.wall, self.cpu = tokens / wall, tokens / cpu


class Peer:
    def __init__(self, folder: Path, implementation: str, dtype: str):
        self.model = MixtralForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], attn_implementation="sdpa",
                                                        experts_implementation=implementation).eval()

    def score(self, sequences: list[str], batch: int) -> Speed:
        order = sorted((ids_of(s, True) for s in sequences), key=len)
        wall, cpu = time.perf_counter(), time.process_time()
        for first in range(0, len(order), batch):
            rows = order[first:first + batch]
            longest = len(rows[-1])
            tokens = torch.tensor([row + [1] * (longest - len(row)) for row in rows])
            mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
            with torch.inference_mode():
                logits = self.model(input_ids=tokens, attention_mask=mask, use_cache=False).logits[:, :-1].float()
                picked = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0] * mask[:, 1:]
                picked.sum(-1).tolist()
        return Speed(sum(len(row) - 1 for row in order), time.perf_counter() - wall, time.process_time() - cpu)

    def generate(self, prompts: list[str], new_tokens: int) -> Speed:
        tokens = torch.tensor([ids_of(p, False) for p in prompts])
        wall, cpu = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            out = self.model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=new_tokens,
                                      eos_token_id=None, pad_token_id=1)
        return Speed(out.numel() - tokens.numel(), time.perf_counter() - wall, time.process_time() - cpu)


def run_cistron(command: list, tokens_of) -> Speed:
    wall, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Speed(sum(tokens_of(json.loads(line)) for line in out.splitlines()), wall, cpu)


class Compare:
    def __init__(self, arguments, folder: Path):
        self.arguments, self.folder = arguments, folder
        self.queries, self.prompts = proteins(500, 50, 510), proteins(64, 20, 20)
        write_fasta(folder / "queries.fasta", self.queries)
        write_fasta(folder / "prompts.fasta", self.prompts)
        torch.manual_seed(0)
        config = MixtralConfig(vocab_size=33, hidden_size=256, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
                               num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=2, max_position_embeddings=512)
        model = MixtralForCausalLM(config)
        with torch.no_grad():
            model.lm_head.weight[2] = 0
        model.save_pretrained(folder / "model")

    def cistron(self, verb: str, dtype: str) -> Speed:
        command = [self.arguments.program, verb, self.folder / "model", "--tokenizer", "esm2", "--json", "--quiet", "--threads",
                   str(self.arguments.threads), "--precision", dtype]
        if verb == "score":
            return run_cistron([*command, "--fasta", self.folder / "queries.fasta"], lambda line: line["tokens"])
        return run_cistron([*command, "--prompts", self.folder / "prompts.fasta", "--temperature", "0", "--max-tokens",
                            str(self.arguments.new_tokens)],
                           lambda line: len(line["sequence"]) - len(line["prompt"]) + (line["stopped"] == "end"))

    def best_peer(self, verb: str, dtype: str):
        """The fastest variant's name and the call that times it. batched_mm copies the weights of every token's choices, 6 GB for a
        batch of 8 queries and a layer: it is left out."""
        best = ("", 0.0, None)
        for implementation in ("eager", "grouped_mm"):
            peer = Peer(self.folder / "model", implementation, dtype)
            peer.score(self.queries[:16], 8)
            for batch in (8, 32) if verb == "score" else (64,):
                if verb == "score":
                    trial = peer.score(self.queries[:96], batch)
                    call = lambda peer=peer, batch=batch: peer.score(self.queries, batch)
                else:
                    trial = peer.generate(self.prompts, 16)
                    call = lambda peer=peer: peer.generate(self.prompts, self.arguments.new_tokens)
                if trial.wall > best[1]:
                    best = (f"{implementation}, batches of {batch}", trial.wall, call)
        return best[0], best[2]

    def run(self, verb: str, dtype: str) -> None:
        variant, peer = self.best_peer(verb, dtype)
        self.cistron(verb, dtype)
        turns = [(peer(), self.cistron(verb, dtype)) for _ in range(self.arguments.rounds)]

        def median(side: int, clock: str) -> float:
            return statistics.median(getattr(turn[side], clock) for turn in turns)

        wall, cpu = ((median(0, clock), median(1, clock)) for clock in ("wall", "cpu"))
        print(f"| {verb}, {dtype} | {wall[0]:,.0f} ({variant}) | {wall[1]:,.0f} | {wall[1] / wall[0]:.2f} | {cpu[0]:,.0f} | {cpu[1]:,.0f} "
              f"| {cpu[1] / cpu[0]:.2f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--only", default="score/fp32 score/bf16 generate/fp32 generate/bf16")
    parser.add_argument("--program", default="build/cpu/bin/cistron")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.utils.logging.disable_progress_bar()
    print("| what | Hugging Face's best, tokens/s | Cistron | ratio | Hugging Face, tokens/s of CPU time | Cistron | ratio |\n"
          "|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        compare = Compare(arguments, Path(folder))
        for pair in arguments.only.split():
            compare.run(*pair.split("/"))
