"""What `cistron generate` writes without chance is what Hugging Face's `generate` writes, token for token, on random models.

Run: .venv/bin/python tests/parity/generated.py PROGRAM
"""
import json
import os
import random
import sys
import tempfile
import unittest
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.append(str(Path(__file__).resolve().parents[1] / "cli"))

import torch
from support import Program
from transformers.utils import logging

import hugging_face as hf

PROGRAM = ""
LETTERS = "LAGVSERTIDPKQNFYMHWCXBUZO.-"  # ids 4 to 30 of esm2
BEGIN, PAD, END, UNKNOWN = range(4)
CONTEXT = 64  # of hf.random_model
SHAPES = [
    dict(hidden_size=48, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2, num_local_experts=5,
         num_experts_per_tok=2, vocab_size=33),
    dict(hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=2, num_local_experts=8,
         num_experts_per_tok=3, vocab_size=33),
    dict(hidden_size=64, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=1, num_local_experts=2,
         num_experts_per_tok=1, vocab_size=33),
]


def text(tokens) -> str:
    """As our tokenizer writes it: special tokens are left out, an unknown one is X."""
    return "".join(LETTERS[t - 4] if 4 <= t <= 30 else "X" if t == UNKNOWN else "" for t in tokens)


def random_prompts(seed: int) -> list[str]:
    chance = random.Random(seed)
    return ["".join(chance.choices(LETTERS[:20], k=length)) for length in (0, 1, 2, 7, 20, 33, 50, 61, 62)] + ["", "MKT"]


def greedy(model, prompt: str) -> list[int]:
    tokens = torch.tensor([[BEGIN] + [LETTERS.index(c) + 4 for c in prompt]])
    room = CONTEXT - tokens.shape[1]
    return model.generate(tokens, do_sample=False, max_new_tokens=room, eos_token_id=END, pad_token_id=PAD)[0].tolist()


class Generated(unittest.TestCase):
    def test_token_for_token(self):
        compared = 0
        for seed, shape in enumerate(SHAPES):
            with self.subTest(seed=seed), tempfile.TemporaryDirectory() as folder:
                compared += self.compare(Path(folder), hf.random_model(seed + 100, **shape), random_prompts(seed))
        print(f"{compared} sequences compared", flush=True)
        self.assertGreater(compared, 3 * 8)

    def compare(self, folder: Path, model, prompts: list[str]) -> int:
        model.save_pretrained(folder / "model")
        (folder / "prompts.fasta").write_text("".join(f">p{i}\n{prompt}\n" for i, prompt in enumerate(prompts)))
        done = Program(PROGRAM).ok("generate", folder / "model", "--tokenizer", "esm2", "--prompts", folder / "prompts.fasta",
                                   "--temperature", 0, "--json", "--quiet")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([row["id"] for row in rows], [f"p{i}" for i in range(len(prompts))])
        exact, compared = hf.in_double(model), 0
        for row, prompt in zip(rows, prompts):
            tokens = greedy(model, prompt)
            begin = len(prompt) + 1
            with hf.all_in_double(), torch.no_grad():
                truth = exact(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].log_softmax(-1)
            with torch.no_grad():
                single = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].double().log_softmax(-1)
            strayed = (single - truth).abs().max().item()
            best = truth[begin - 1:-1].topk(2).values
            if (best[:, 0] - best[:, 1]).min().item() < 4 * strayed:
                continue  # float32 may fall either way
            compared += 1
            self.assertEqual(row["prompt"], prompt)
            self.assertEqual(row["sequence"], text(tokens))
            self.assertEqual(row["stopped"], "end" if tokens[-1] == END else "length")
            likelihood = truth[:-1].gather(1, torch.tensor(tokens[1:])[:, None]).sum().item()
            self.assertLessEqual(abs(row["log_likelihood"] - likelihood), 2 * len(tokens) * max(strayed, 1e-6))
            without_last = truth[:-2].gather(1, torch.tensor(tokens[1:-1])[:, None]).sum().item()
            self.assertGreater(abs(row["log_likelihood"] - without_last), 2 * len(tokens) * max(strayed, 1e-6))  # it can fail
        return compared


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    unittest.main()
