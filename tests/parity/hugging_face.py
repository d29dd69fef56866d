"""Hugging Face's Mixtral on small random models: the reference in float32, and the truth in float64."""
import contextlib
import copy
from dataclasses import dataclass, field
from unittest import mock

import torch
from transformers import MixtralConfig, MixtralForCausalLM
from transformers.models.mixtral import modeling_mixtral

DEVICE = "cpu"  # or "cuda": where everything here is computed; what a Run holds is on the CPU
LEARNING_RATE, BETAS, EPS, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0  # driver.cpp has the same


@dataclass
class Run:
    """What one implementation makes of a model. Tensors by name; all float64 so that comparing adds no error."""
    logits: torch.Tensor | None = None  # [T, V] of batch 0, packed
    grads: dict[str, torch.Tensor] = field(default_factory=dict)  # of step 1
    losses: list[float] = field(default_factory=list)
    aux_losses: list[float] = field(default_factory=list)
    grad_norms: list[float] = field(default_factory=list)
    trained: dict[str, torch.Tensor] = field(default_factory=dict)
    best: list[torch.Tensor] = field(default_factory=list)  # each step's k + 1 largest routing probabilities [routings, k + 1], or [.., k]


def random_model(seed: int, **shape) -> MixtralForCausalLM:
    """Weights wide enough that every part of the model matters, norms included."""
    torch.manual_seed(seed)
    config = MixtralConfig(max_position_embeddings=64, sliding_window=None, router_aux_loss_coef=0.02, initializer_range=0.2,
                           rope_parameters={"rope_type": "default", "rope_theta": 1e4}, **shape)
    model = MixtralForCausalLM._from_config(config, attn_implementation="eager", experts_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.normal_(1.0, 0.2)
    return model


def copy_of(model: MixtralForCausalLM, attention="eager", experts="eager", **changes) -> MixtralForCausalLM:
    """The same weights, computed in another way, or with other constants."""
    config = copy.deepcopy(model.config)
    for key, value in changes.items():
        setattr(config, key, value)
    other = MixtralForCausalLM._from_config(config, attn_implementation=attention, experts_implementation=experts)
    other.load_state_dict(model.state_dict())
    return other.to(DEVICE)


class _TorchInDouble:
    """The module `torch` for code that asks for float32 by name."""
    def __getattr__(self, name):
        return torch.float64 if name in ("float32", "float") else getattr(torch, name)


@contextlib.contextmanager
def all_in_double():
    """Hugging Face computes norms, router and loss in float32 whatever the model's dtype: within this they are in float64 too."""
    with mock.patch.object(torch.Tensor, "float", torch.Tensor.double), \
         mock.patch.object(modeling_mixtral, "torch", _TorchInDouble()):
        yield


def in_double(model: MixtralForCausalLM) -> MixtralForCausalLM:
    """A float64 copy, its rotary frequencies computed anew."""
    exact = copy_of(model).double()
    rotary = exact.model.rotary_emb
    dim = 2 * rotary.inv_freq.numel()
    theta = model.config.rope_parameters["rope_theta"]
    rotary.inv_freq = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float64, device=DEVICE) / dim)
    return exact


def pad(sequences: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """tokens, attention mask, labels, each [S, longest]."""
    sequences = [s.to(DEVICE) for s in sequences]
    tokens = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(s) for s in sequences], batch_first=True)
    return tokens, mask, tokens.masked_fill(mask == 0, -100)


def forward(model, sequences, autocast=False):
    tokens, mask, labels = pad(sequences)
    with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
        out = model(input_ids=tokens, attention_mask=mask, output_router_logits=True, use_cache=False)
        loss = model.loss_function(out.logits, labels, model.config.vocab_size)
    return out, loss, mask


def _best(router_logits, mask, k: int) -> torch.Tensor:
    probabilities = torch.cat([layer[mask.reshape(-1) == 1] for layer in router_logits]).double().softmax(-1)
    return probabilities.topk(min(k + 1, probabilities.shape[-1])).values.detach().cpu()


def near_tie(truth: Run, references: list[Run], k: int) -> bool:
    """Did a choice of experts come so near to a tie that float32 may fall either way? Near: within four times what the references'
    probabilities had strayed by then, since two may meet and ours may stray twice as far."""
    for step, best in enumerate(truth.best):
        if best.shape[1] > k:
            strayed = max((reference.best[step] - best).abs().max().item() for reference in references)
            if (best[:, k - 1] - best[:, k]).min().item() < 4 * strayed:
                return True
    return False


def _optimizer(model) -> torch.optim.AdamW:
    norms = [p for name, p in model.named_parameters() if "norm" in name]
    others = [p for name, p in model.named_parameters() if "norm" not in name]
    groups = [{"params": others, "weight_decay": WEIGHT_DECAY}, {"params": norms, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPS)


def doubles(tensors) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().double().clone() for name, tensor in tensors}


def train(model: MixtralForCausalLM, batches: list[list[torch.Tensor]], steps: int, autocast: bool = False) -> Run:
    """Steps over the batches in turn; `model` is changed."""
    run, optimizer = Run(), _optimizer(model)
    for step in range(steps):
        out, loss, mask = forward(model, batches[step % len(batches)], autocast)
        (loss + model.config.router_aux_loss_coef * out.aux_loss).backward()
        if step == 0:
            run.logits = out.logits.detach().double()[mask == 1].cpu()
            run.grads = doubles((name, p.grad) for name, p in model.named_parameters())
        run.best.append(_best(out.router_logits, mask, model.config.num_experts_per_tok))
        run.losses.append(loss.item())
        run.aux_losses.append(out.aux_loss.item())
        run.grad_norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        optimizer.zero_grad()
    run.trained = doubles(model.named_parameters())
    return run
