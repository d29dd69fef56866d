"""Is a result as near to the truth as Hugging Face's own float32 (or bfloat16) is?"""
import math

import torch

from hugging_face import Run

FACTOR = 2.0
EPSILON = 2.0 ** -24


def vectors(run: Run) -> dict[str, dict[str, torch.Tensor]]:
    """Everything in a run, by kind."""
    numbers = {"loss": run.losses, "aux_loss": run.aux_losses, "grad_norm": run.grad_norms}
    return {"logits": {"logits": run.logits}, "numbers": {k: torch.tensor(v, dtype=torch.float64) for k, v in numbers.items()},
            "grads": run.grads, "trained": run.trained}


def relative_error(value: torch.Tensor, truth: torch.Tensor) -> float:
    scale = torch.linalg.vector_norm(truth).item()
    error = torch.linalg.vector_norm(value.reshape(truth.shape) - truth).item()
    return error / scale if scale else (0.0 if error == 0.0 else math.inf)


def excesses(ours: Run, reference: Run, truth: Run, kinds=("logits", "numbers", "grads", "trained")) -> list[str]:
    """One line for each tensor whose error, as a norm, exceeds FACTOR times the reference's.

    The reference's error in a small tensor is a draw of few numbers and may by chance be tiny; so no tensor is held to less than the
    middle of the reference's relative errors in its kind, nor to less than a float32 number can hold.
    """
    lines = []
    ours_all, reference_all, truth_all = vectors(ours), vectors(reference), vectors(truth)
    for kind in kinds:
        if ours_all[kind].keys() != truth_all[kind].keys():
            lines.append(f"{kind}: other names: {sorted(ours_all[kind].keys() ^ truth_all[kind].keys())}")
            continue
        errors = {name: relative_error(reference_all[kind][name], value) for name, value in truth_all[kind].items()}
        usual = sorted(errors.values())[len(errors) // 2]
        for name, value in truth_all[kind].items():
            bound = FACTOR * max(errors[name], usual, EPSILON)
            if not (found := relative_error(ours_all[kind][name], value)) <= bound:
                lines.append(f"{kind} {name}: relative error {found:.3g}, allowed {bound:.3g} (reference {errors[name]:.3g})")
    return lines


def worst_ratio(ours: Run, reference: Run, truth: Run, kind: str) -> float:
    """For the report: our error over the reference's, the largest of a kind's."""
    pairs = zip(vectors(ours)[kind].values(), vectors(reference)[kind].values(), vectors(truth)[kind].values(), strict=True)
    return max(relative_error(a, t) / max(relative_error(b, t), EPSILON) for a, b, t in pairs)
