"""Probability flow by the two-step Adams–Bashforth method per frequency (NFE 1 per step).

With tan²ϑ = N/S of each frequency, the flow of `ode` is

    d(û/√V)/dϑ = −X,      X = F − 2D/c,      û' = √(V'/V) û + √V' Δϑ (X + ½ Δϑ/Δϑ_prev (X − X_prev))

with Δϑ = ϑ − ϑ'. F and D have the same weight, because they cancel near equilibrium. X is not extrapolated across an
edge of the drift, where D jumps. Second order with half the NFE of Heun's method, for a drift that is known or weak.
A stiff learned drift amplifies errors, as in `ode`.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from anisodiff.models.score import ScoreModel
from anisodiff.noise import Randomness
from anisodiff.samplers.base import Memory, Sampler
from anisodiff.samplers.ode import Ode
from anisodiff.samplers.reference import predictions, reference

_LARGEST = 1.0  # weight of X − X_prev, that of a step twice as long as the previous one


class Evaluation(NamedTuple):
    """The previous evaluation: its interval, X, Δϑ of the step that followed, and F."""

    interval: Tensor
    slope: Tensor
    angle: Tensor
    f: Tensor


def multistep_step(
    model: ScoreModel, z: Tensor, t: Tensor, t_next: Tensor, before: Evaluation | None
) -> tuple[Tensor, Evaluation]:
    """û' at ``t_next`` from û at ``t`` (both [1]) and this evaluation; first order without ``before``. NFE 1."""
    c, below = model.coefficients(t), model.coefficients(t_next)
    step = reference(model, c, t_next, t)
    noise, signal = c.noise * step.back(c.noise, below.noise), c.signal * step.signal(c, below)  # N', S'
    kept = step.back(c.power, below.power)  # V'/V
    angle = torch.atan((c.noise / c.signal).sqrt()) - torch.atan((noise / signal).sqrt())
    f, d = predictions(model, z, c)
    slope = f if d is None else f - 2.0 * d / c.scale
    made = Evaluation(c.interval, slope, angle, f)
    if before is not None:
        # without signal ϑ is constant, and the weight would be 0/0
        weight = 0.5 * angle / before.angle.clamp(min=torch.finfo(angle.dtype).tiny)
        change = weight.clamp(0.0, _LARGEST) * (slope - before.slope)
        slope = slope + (change if d is None else (before.interval == c.interval) * change)
    return kept.sqrt() * (z + c.power.sqrt() * angle * slope), made


@dataclass(frozen=True, kw_only=True)
class Multistep(Sampler):
    """``multistep``: NFE 1 per step, deterministic."""

    name: ClassVar[str] = "multistep"
    cost: ClassVar[int] = 1
    requires: ClassVar[frozenset[str]] = Ode.requires

    def step(
        self, model: ScoreModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        z, memory["evaluation"] = multistep_step(model, z, t, t_next, memory.get("evaluation"))
        return z
