"""Probability flow by the two-step Adams–Bashforth method, frequency by frequency (NFE 1 a step).

With tan²ϑ = N/S of each frequency, the flow of `ode` is

    d(û/√V)/dϑ = −X,      X = F − 2D/c,      û' = √(V'/V) û + √V' Δϑ (X + ½ Δϑ/Δϑ_prev (X − X_prev))

with Δϑ = ϑ − ϑ'. F and D have one weight: near equilibrium they cancel. X is not extrapolated across an edge of the
drift, where D jumps. Second order, at half the NFE of Heun's method a step: for few network evaluations and a drift
that is known or gentle. With a stiff learned drift errors are multiplied, as in `ode`.
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

_LARGEST = 1.0  # the weight of X − X_prev; a step twice as long as the one before has it


class Evaluation(NamedTuple):
    """The evaluation before: the interval it lies in, X, Δϑ of the step that followed, and F."""

    interval: Tensor
    slope: Tensor
    angle: Tensor
    f: Tensor


def multistep_step(
    model: ScoreModel, z: Tensor, t: Tensor, t_next: Tensor, before: Evaluation | None
) -> tuple[Tensor, Evaluation]:
    """û' at ``t_next`` from û at ``t`` (both [1]), and the evaluation made; first order without ``before``."""
    c, below = model.coefficients(t), model.coefficients(t_next)
    step = reference(model, c, t_next, t)
    noise, signal = c.noise * step.back(c.noise, below.noise), c.signal * step.signal(c, below)  # N', S'
    kept = step.back(c.power, below.power)  # V'/V
    angle = torch.atan((c.noise / c.signal).sqrt()) - torch.atan((noise / signal).sqrt())
    f, d = predictions(model, z, c)
    slope = f if d is None else f - 2.0 * d / c.scale
    made = Evaluation(c.interval, slope, angle, f)
    if before is not None:
        # where no signal is left ϑ stands still, and the weight would be 0/0
        weight = 0.5 * angle / before.angle.clamp(min=torch.finfo(angle.dtype).tiny)
        change = weight.clamp(0.0, _LARGEST) * (slope - before.slope)
        slope = slope + (change if d is None else (before.interval == c.interval) * change)
    return kept.sqrt() * (z + c.power.sqrt() * angle * slope), made


@dataclass(frozen=True, kw_only=True)
class Multistep(Sampler):
    """``multistep``: NFE 1 a step, no noise."""

    name: ClassVar[str] = "multistep"
    cost: ClassVar[int] = 1
    requires: ClassVar[frozenset[str]] = Ode.requires

    def step(
        self, model: ScoreModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        z, memory["evaluation"] = multistep_step(model, z, t, t_next, memory.get("evaluation"))
        return z
