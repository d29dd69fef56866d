"""Cistron against Hugging Face's MixtralForCausalLM, live: logits, losses, every gradient, 20 training steps, and the files.

Run: .venv/bin/python tests/parity/parity.py DRIVER [--device cuda]      (DRIVER: build/cpu/bin/parity-driver; see driver.cpp)
With `--device cuda` both sides compute on the card; logits are then seen by way of losses and gradients alone.
The truth is Hugging Face in float64; allowed is twice the largest error of Hugging Face's own float32 implementations (compare.py).
"""
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
from compare import FACTOR, KINDS, excesses, report

DRIVER = ""
STEPS = 20
REFERENCES = (("eager", "eager"), ("eager", "batched_mm"), ("sdpa", "batched_mm"))  # attention, experts: they sum in other orders

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
                                              num_attention_heads=4, num_key_value_heads=4, num_local_experts=24,
                                              num_experts_per_tok=2),
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
    subprocess.run([DRIVER, model, out.parent / "batches.safetensors", out, str(steps), str(hf.LEARNING_RATE), precision, hf.DEVICE],
                   check=True)
    results = {name: value.double() for name, value in load_file(out / "results.safetensors").items()}
    run = hf.Run(logits=results.get("logits"), trained=load(out / "trained"))
    if steps:
        run.losses, run.aux_losses, run.grad_norms = (results[k].tolist() for k in ("loss", "aux_loss", "grad_norm"))
        run.grads = load(out / "grads")
    return run


def load(directory: Path) -> dict[str, torch.Tensor]:
    """The parameters of a Hugging Face directory, read by Hugging Face."""
    return hf.doubles(AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).named_parameters())


def experiment(shape: dict):
    """A model, batches, the float32 runs and the float64 run over them. A seed on which float32 may choose other experts is skipped."""
    for seed in range(1, 30):
        model, batches = hf.random_model(seed, **shape), random_batches(seed, shape["vocab_size"])
        with hf.all_in_double():
            truth = hf.train(hf.in_double(model), batches, STEPS)
        references = [hf.train(hf.copy_of(model, *implementations), batches, STEPS) for implementations in REFERENCES]
        if not hf.near_tie(truth, references, shape["num_experts_per_tok"]):
            return seed, model, batches, references, truth
    raise AssertionError("every seed came near a tie")


def kinds(*some: str) -> list[str]:
    """Of these the ones that the driver gives."""
    return [kind for kind in some if kind != "logits" or hf.DEVICE == "cpu"]


def token_losses(logits: torch.Tensor, batch: list[torch.Tensor]) -> torch.Tensor:
    """Of every predicted token; `logits` are packed."""
    parts = zip(logits.double().log_softmax(-1).split([len(s) for s in batch]), batch, strict=True)
    return torch.cat([-log_p[:-1].gather(1, tokens[1:, None]).flatten() for log_p, tokens in parts])


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
                seed, model, batches, references, truth = experiment(shape)
                model.save_pretrained(self.folder / name / "model")
                ours = run_driver(self.folder / name / "model", batches, self.folder / name / "out", STEPS)
                print(f"{name}: seed {seed}; {report(ours, references, truth, kinds(*KINDS))}", flush=True)
                self.assertEqual(excesses(ours, references, truth, kinds(*KINDS)), [])
                if "without tokens" in name:
                    self.assertFalse(all(g.flatten(1).any(1).all() for n, g in truth.grads.items() if "gate_up" in n), "all had some")

    def test_small_mistakes_are_seen(self):
        """The comparison rejects Hugging Face itself with a constant that is slightly wrong."""
        _, model, batches, references, truth = experiment(SHAPES["grouped queries, odd sizes"])
        self.assertEqual(excesses(references[0], references[1:], truth), [])
        for key, factor in {"rms_norm_eps": 3.0, "router_aux_loss_coef": 1.001}.items():
            wrong = hf.train(hf.copy_of(model, **{key: factor * getattr(model.config, key)}), batches, 1)
            self.assertNotEqual(excesses(wrong, references, truth, ("grads",)), [], key)
        ours = self.of_a_wrong_model(model, batches, "fp32", 1 + 1e-5)
        self.assertNotEqual(excesses(ours, references, truth, ("grads",)), [])

    def of_a_wrong_model(self, model: MixtralForCausalLM, batches, precision: str, factor: float) -> hf.Run:
        """Our first step on a model, one of whose matrices is wrong by a factor."""
        wrong = hf.copy_of(model)
        with torch.no_grad():
            wrong.model.layers[1].self_attn.o_proj.weight.mul_(factor)
        wrong.save_pretrained(self.folder / "wrong")
        return run_driver(self.folder / "wrong", batches, self.folder / "wrong.out", 1, precision)

    def test_bf16(self):
        """One step. Every expert is chosen, since a rounding to bf16 may flip the choice of a few."""
        if hf.DEVICE == "cpu" and "bf16" not in Path("/proc/cpuinfo").read_text():
            self.skipTest("this processor has no bf16")
        shape = SHAPES["every expert, one key head, wide heads"]
        model, batches = hf.random_model(1, **shape), random_batches(1, shape["vocab_size"])
        model.save_pretrained(self.folder / "model")
        ours = run_driver(self.folder / "model", batches, self.folder / "out", 1, "bf16")
        with hf.all_in_double():
            truth = hf.train(hf.in_double(model), batches, 1)
        references = [hf.train(hf.copy_of(model, *implementations), batches, 1, autocast=True) for implementations in REFERENCES]
        print(f"bf16: {report(ours, references, truth, kinds('logits', 'grads'))}", flush=True)
        self.assertEqual(excesses(ours, references, truth, kinds("logits", "grads")), [])
        wrong = self.of_a_wrong_model(model, batches, "bf16", 1.1)
        self.assertNotEqual(excesses(wrong, references, truth, ("grads",)), [])
        # The loss is a mean, whose error is at most the tokens' root mean square error.
        strayed = max((token_losses(run.logits, batches[0]) - token_losses(truth.logits, batches[0])).square().mean().sqrt().item()
                      for run in references)
        self.assertLessEqual(abs(ours.losses[0] - truth.losses[0]), FACTOR * strayed)


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
    if "--device" in sys.argv:
        hf.DEVICE = sys.argv.pop(sys.argv.index("--device") + 1)
        sys.argv.remove("--device")
        if hf.DEVICE == "cuda" and not torch.cuda.is_available():
            print("skipped: PyTorch sees no card")
            sys.exit(77)
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    unittest.main()
