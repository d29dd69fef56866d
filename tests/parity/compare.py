"""Is a result as near to the truth as Hugging Face's own float32 (or bfloat16) is?"""
import math

import torch

from hugging_face import Run

FACTOR = 2.0
EPSILON = 2.0 ** -24
KINDS = ("logits", "numbers", "grads", "trained")


def vectors(run: Run) -> dict[str, dict[str, torch.Tensor]]:
    """Everything in a run, by kind."""
    numbers = {"loss": run.losses, "aux_loss": run.aux_losses, "grad_norm": run.grad_norms}
    return {"logits": {"logits": run.logits}, "numbers": {k: torch.tensor(v, dtype=torch.float64) for k, v in numbers.items()},
            "grads": run.grads, "trained": run.trained}


def relative_error(value: torch.Tensor, truth: torch.Tensor) -> float:
    scale = torch.linalg.vector_norm(truth).item()
    error = torch.linalg.vector_norm(value.reshape(truth.shape) - truth).item()
    return error / scale if scale else (0.0 if error == 0.0 else math.inf)


def bounds(references: list[Run], truth: Run, kind: str) -> dict[str, float]:
    """What each tensor's relative error, as a norm, may be: FACTOR times the references' largest.

    An error in a small tensor is a draw of few numbers and may by chance be tiny, so no tensor is held to less than the middle of its
    kind, nor to less than what a float32 number can hold.
    """
    exact = vectors(truth)[kind]
    errors = {name: max(relative_error(vectors(run)[kind][name], value) for run in references) for name, value in exact.items()}
    usual = sorted(errors.values())[len(errors) // 2]
    return {name: FACTOR * max(error, usual, EPSILON) for name, error in errors.items()}


def excesses(ours: Run, references: list[Run], truth: Run, kinds=KINDS) -> list[str]:
    """A line for each tensor that misses its bound."""
    lines = []
    for kind in kinds:
        exact, mine = vectors(truth)[kind], vectors(ours)[kind]
        if mine.keys() != exact.keys():
            lines.append(f"{kind}: other names: {sorted(mine.keys() ^ exact.keys())}")
            continue
        for name, bound in bounds(references, truth, kind).items():
            if not (error := relative_error(mine[name], exact[name])) <= bound:
                lines.append(f"{kind} {name}: relative error {error:.3g}, allowed {bound:.3g}")
    return lines


def report(ours: Run, references: list[Run], truth: Run, kinds=KINDS) -> str:
    """The largest share of its bound that any tensor of each kind used."""
    shares = {}
    for kind in kinds:
        exact, mine = vectors(truth)[kind], vectors(ours)[kind]
        shares[kind] = max(relative_error(mine[name], exact[name]) / bound for name, bound in bounds(references, truth, kind).items())
    return "used of the allowed error, at most: " + ", ".join(f"{kind} {100 * share:.0f}%" for kind, share in shares.items())
