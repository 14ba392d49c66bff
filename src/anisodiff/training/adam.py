"""Adam's moments as named tensors for a checkpoint: ``exp_avg.NAME``, ``exp_avg_sq.NAME`` and ``step.NAME``."""

from collections.abc import Mapping

import torch
from torch import Tensor

from anisodiff.tensors import check_shapes

_PARTS = ("step", "exp_avg", "exp_avg_sq")


def moments(adam: torch.optim.Adam, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The moments of the named weights; nothing before the first step."""
    begun = {name: adam.state[p] for name, p in weights.items() if p in adam.state}
    return {f"{part}.{name}": state[part] for name, state in begun.items() for part in _PARTS}


def check_moments(what: str, saved: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Refuse moments that are not those of these weights."""
    begun = {name: p for name, p in weights.items() if any(f"{part}.{name}" in saved for part in _PARTS)}
    step = torch.zeros(())
    like = {f"{part}.{name}": step if part == "step" else p for name, p in begun.items() for part in _PARTS}
    check_shapes(what, saved, like)


def load_moments(adam: torch.optim.Adam, weights: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    """Restore what `moments` returned, bit by bit."""
    for name, p in weights.items():
        if f"step.{name}" not in saved:
            continue
        # a fused optimizer counts steps on the device, a plain one on the CPU
        step = torch.zeros((), device=p.device if adam.defaults["fused"] else "cpu")
        like = {"exp_avg": p, "exp_avg_sq": p, "step": step}
        adam.state[p] = {part: torch.empty_like(like[part]).copy_(saved[f"{part}.{name}"]) for part in _PARTS}
