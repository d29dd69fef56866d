"""What `cistron export` writes opens in Hugging Face, offline, and gives the losses that `cistron score` gives.

Run: .venv/bin/python tests/parity/exported.py PROGRAM
"""
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.append(str(Path(__file__).resolve().parents[1] / "cli"))

import torch
from support import Program, write_config, write_fasta
from transformers import AutoModelForCausalLM, AutoTokenizer, MixtralForCausalLM
from transformers.utils import logging

import hugging_face as hf
from compare import EPSILON, FACTOR, relative_error

PROGRAM = ""


def log_likelihoods(model, sequences: list[torch.Tensor]) -> torch.Tensor:
    """The sum over each sequence's tokens after the first."""
    sums = []
    for tokens in sequences:
        log_p = model(input_ids=tokens[None], use_cache=False).logits[0].double().log_softmax(-1)
        sums.append(log_p[:-1].gather(1, tokens[1:, None]).sum())
    return torch.stack(sums).detach()


class Exported(unittest.TestCase):
    def test_opens_and_agrees(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        program = Program(PROGRAM)
        write_fasta(folder / "a.fasta", 60)
        write_fasta(folder / "queries.fasta", 40, seed=2, length=(1, 60))
        program.ok("prepare", folder / "a.fasta", "--tokenizer", "esm2", "--out", folder / "store")
        write_config(folder / "run.toml", folder / "store")
        program.ok("train", folder / "run.toml", "--out", folder / "run", "--quiet")
        program.ok("export", folder / "run", "--out", folder / "exported")

        tokenizer = AutoTokenizer.from_pretrained(folder / "exported")
        self.assertEqual(tokenizer("LAX")["input_ids"], [0, 4, 5, 24, 2])
        self.assertEqual(tokenizer.decode([4, 5, 24]).replace(" ", ""), "LAX")
        residues = [line for line in (folder / "queries.fasta").read_text().splitlines() if not line.startswith(">")]
        sequences = [torch.tensor(tokenizer(text)["input_ids"]) for text in residues]

        model = AutoModelForCausalLM.from_pretrained(folder / "exported", attn_implementation="eager", experts_implementation="eager")
        self.assertIsInstance(model, MixtralForCausalLM)
        reference = log_likelihoods(model, sequences)
        with hf.all_in_double():
            truth = log_likelihoods(hf.in_double(model), sequences)
        lines = program.ok("score", folder / "run", "--fasta", folder / "queries.fasta", "--json").stdout.splitlines()
        rows = [json.loads(line) for line in lines]
        self.assertEqual([row["tokens"] for row in rows], [len(s) - 1 for s in sequences])
        ours = torch.tensor([row["log_likelihood"] for row in rows], dtype=torch.float64)

        bound = FACTOR * max(relative_error(reference, truth), EPSILON)
        print(f"relative error {relative_error(ours, truth):.3g}, allowed {bound:.3g}", flush=True)
        self.assertLessEqual(relative_error(ours, truth), bound)
        self.assertGreater(relative_error(ours + 1e-3, truth), bound)  # the comparison can fail


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    unittest.main()
