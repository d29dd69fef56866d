"""Cistron against Hugging Face's MixtralForCausalLM, live: logits, losses, every gradient, 20 training steps, and the files.

Run: .venv/bin/python tests/parity/parity.py DRIVER      (DRIVER: build/cpu/bin/parity-driver; see driver.cpp)
The truth is Hugging Face in float64; an error is allowed that is at most twice Hugging Face's own in float32 (compare.py).
"""
import copy
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, MixtralForCausalLM
from transformers.utils import logging

import hugging_face as hf
from compare import excesses, worst_ratio

DRIVER = ""
STEPS = 20
NEAR_TIE = 1e-5  # a choice of experts nearer to a tie than this may legally fall either way: another seed is taken

SHAPES = {
    "grouped queries, odd sizes": dict(vocab_size=37, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6,
                                       num_key_value_heads=2, num_local_experts=5, num_experts_per_tok=2),
    "one expert a token, tied head": dict(vocab_size=33, hidden_size=36, intermediate_size=20, num_hidden_layers=3,
                                          num_attention_heads=3, num_key_value_heads=3, num_local_experts=4, num_experts_per_tok=1,
                                          tie_word_embeddings=True),
    "every expert, one key head, wide heads": dict(vocab_size=64, hidden_size=40, intermediate_size=24, num_hidden_layers=2,
                                                   num_attention_heads=4, num_key_value_heads=1, head_dim=16, num_local_experts=3,
                                                   num_experts_per_tok=3),
    "a single expert": dict(vocab_size=30, hidden_size=32, intermediate_size=50, num_hidden_layers=1, num_attention_heads=2,
                            num_key_value_heads=2, num_local_experts=1, num_experts_per_tok=1),
    "many experts, some without tokens": dict(vocab_size=33, hidden_size=64, intermediate_size=16, num_hidden_layers=2,
                                              num_attention_heads=4, num_key_value_heads=4, num_local_experts=40,
                                              num_experts_per_tok=3),
}


def random_batches(seed: int, vocabulary: int) -> list[list[torch.Tensor]]:
    """Three batches of 61 tokens, cut into sequences of different lengths, one of them of a single token."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [[17, 1, 30, 2, 11], [61], [5, 40, 16]]
    return [[torch.randint(0, vocabulary, (n,), generator=generator) for n in some] for some in lengths]


def run_driver(model: Path, batches, out: Path, steps: int, precision: str = "fp32") -> hf.Run:
    tensors = {}
    for i, batch in enumerate(batches):
        tensors[f"tokens.{i}"] = torch.cat(batch).int()
        tensors[f"cu_seqlens.{i}"] = torch.tensor([0] + [len(s) for s in batch]).cumsum(0).int()
    save_file(tensors, out.parent / "batches.safetensors")
    subprocess.run([DRIVER, model, out.parent / "batches.safetensors", out, str(steps), str(hf.LEARNING_RATE), precision], check=True)
    results = {name: value.double() for name, value in load_file(out / "results.safetensors").items()}
    run = hf.Run(logits=results["logits"], trained=load(out / "trained"))
    if steps:
        run.losses, run.aux_losses, run.grad_norms = (results[k].tolist() for k in ("loss", "aux_loss", "grad_norm"))
        run.grads = load(out / "grads")
    return run


def load(directory: Path) -> dict[str, torch.Tensor]:
    """The parameters of a Hugging Face directory, read by Hugging Face."""
    return hf.doubles(AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).named_parameters())


def truth_without_near_ties(shape: dict):
    """A model, batches and the float64 run over them."""
    for seed in range(1, 20):
        model, batches = hf.random_model(seed, **shape), random_batches(seed, shape["vocab_size"])
        with hf.all_in_double():
            truth = hf.train(hf.in_double(model), batches, STEPS)
        if truth.margin > NEAR_TIE:
            return seed, model, batches, truth
    raise AssertionError("every seed came near a tie")


class Training(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_the_truth_is_in_float64(self):
        """A change of 1e-11 in the weights shows in proportion, which it does not where anything is rounded to float32."""
        model, batches = hf.random_model(1, **SHAPES["grouped queries, odd sizes"]), random_batches(1, 37)

        def change(context, step):
            with context, torch.no_grad():
                moved = hf.in_double(model)
                start = hf.forward(moved, batches[0])[1].item()
                moved.model.layers[0].input_layernorm.weight.mul_(1 + step)
                return (hf.forward(moved, batches[0])[1].item() - start) / step

        exact = change(hf.all_in_double(), 1e-6)
        self.assertAlmostEqual(change(hf.all_in_double(), 1e-11) / exact, 1.0, delta=0.01)
        self.assertGreater(abs(change(torch.no_grad(), 1e-11) / exact - 1.0), 0.01)  # without the patch

    def test_parity(self):
        for name, shape in SHAPES.items():
            with self.subTest(name):
                seed, model, batches, truth = truth_without_near_ties(shape)
                model.save_pretrained(self.folder / name / "model")
                ours = run_driver(self.folder / name / "model", batches, self.folder / name / "out", STEPS)
                reference = hf.train(model, batches, STEPS)
                ratios = {kind: worst_ratio(ours, reference, truth, kind) for kind in ("logits", "numbers", "grads", "trained")}
                print(f"{name}: seed {seed}; error over Hugging Face's, the worst:",
                      ", ".join(f"{k} {v:.2f}" for k, v in ratios.items()), flush=True)
                self.assertEqual(excesses(ours, reference, truth), [])

    def test_small_mistakes_are_seen(self):
        """The comparison rejects Hugging Face itself with a constant that is slightly wrong."""
        shape = SHAPES["grouped queries, odd sizes"]
        _, model, batches, truth = truth_without_near_ties(shape)
        reference = hf.train(copy.deepcopy(model), batches, STEPS)
        self.assertEqual(excesses(reference, reference, truth), [])
        for key, factor in {"rms_norm_eps": 3.0, "router_aux_loss_coef": 1.001}.items():
            wrong = copy.deepcopy(model)
            config = copy.deepcopy(model.config)
            setattr(config, key, getattr(config, key) * factor)
            wrong = MixtralForCausalLM._from_config(config, attn_implementation="eager", experts_implementation="eager")
            wrong.load_state_dict(model.state_dict())
            self.assertNotEqual(excesses(hf.train(wrong, batches, STEPS), reference, truth, ("grads",)), [], key)

    @unittest.skipUnless("bf16" in Path("/proc/cpuinfo").read_text(), "this processor has no bf16")
    def test_bf16(self):
        """One step. Every expert is chosen, since a rounding to bf16 may flip the choice of a few."""
        shape = SHAPES["every expert, one key head, wide heads"]
        model, batches = hf.random_model(1, **shape), random_batches(1, shape["vocab_size"])
        model.save_pretrained(self.folder / "model")
        ours = run_driver(self.folder / "model", batches, self.folder / "out", 1, "bf16")
        with hf.all_in_double():
            truth = hf.train(hf.in_double(model), batches, 1)
        reference = hf.train(model, batches, 1, autocast=True)
        print("bf16: error over Hugging Face's, the worst:",
              ", ".join(f"{k} {worst_ratio(ours, reference, truth, k):.2f}" for k in ("logits", "numbers", "grads")), flush=True)
        self.assertEqual(excesses(ours, reference, truth, ("logits", "numbers", "grads")), [])


class Files(unittest.TestCase):
    """What Hugging Face writes, in each of its ways, comes back from Cistron bit for bit."""
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def expect_back(self, model: MixtralForCausalLM):
        run_driver(self.folder / "model", random_batches(1, model.config.vocab_size), self.folder / "out", 0)
        back = AutoModelForCausalLM.from_pretrained(self.folder / "out" / "imported", dtype=torch.float32)
        for name, value in model.float().state_dict().items():
            self.assertTrue(torch.equal(value, back.state_dict()[name]), name)
        for key in ("hidden_size", "num_key_value_heads", "rope_parameters", "rms_norm_eps", "tie_word_embeddings", "vocab_size",
                    "router_aux_loss_coef", "num_experts_per_tok"):
            self.assertEqual(getattr(model.config, key), getattr(back.config, key), key)

    def test_float32_and_tied(self):
        for name in ("grouped queries, odd sizes", "one expert a token, tied head"):
            with self.subTest(name):
                model = hf.random_model(2, **SHAPES[name])
                model.save_pretrained(self.folder / "model")
                self.expect_back(model)

    def test_shards(self):
        model = hf.random_model(3, **SHAPES["every expert, one key head, wide heads"])
        model.save_pretrained(self.folder / "model", max_shard_size="20KB")
        self.assertGreater(len(list((self.folder / "model").glob("*.safetensors"))), 2)
        self.expect_back(model)

    def test_half_precision(self):
        for dtype in (torch.bfloat16, torch.float16):
            with self.subTest(dtype):
                model = hf.random_model(4, **SHAPES["grouped queries, odd sizes"]).to(dtype)
                model.save_pretrained(self.folder / "model")
                self.expect_back(model)

    def test_stacked_experts(self):
        model = hf.random_model(5, **SHAPES["grouped queries, odd sizes"])
        model.save_pretrained(self.folder / "model")
        save_file(model.state_dict(), self.folder / "model" / "model.safetensors", metadata={"format": "pt"})
        self.expect_back(model)


if __name__ == "__main__":
    DRIVER = sys.argv.pop(1)
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    unittest.main()
