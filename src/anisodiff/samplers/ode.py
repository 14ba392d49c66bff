"""Probability flow, the ODE with the marginals of the process, by Heun's method (NFE 2 per step).

    dû/dt = b_ref − α2² (s/2 − D) = −α1 w z û + α2² (û/V − c F)/2 + α2² D

If V obeys the linear reference, dV/dt = −2 α1 w z V + α2², the linear part is û/√V = const for any α1. Where the
drift is known (D = 0), let tan²ϑ = N/S: since α2² c/(2√V) dt = dϑ, the flow per frequency is

    d(û/√V)/dϑ = −F,      û' = √(V'/V) û + √V'·(ϑ − ϑ')·F

with 0 < ϑ < π/2. Where the drift is learned, the two residuals cancel near equilibrium, so they must have the same
weight:

    û' = √(V'/V) û + m φ(½ ln(V'/V))·(c F/2 − D),      φ(x) = (eˣ − 1)/x

F and D are averaged over both ends of the step: second order. The residuals are treated explicitly: a stiff learned
drift (α1 Δt ≫ ¼ in modes whose edge weights are far from their mean) amplifies errors, which no noise damps. Use
`exponential` there.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anisodiff.models.score import ScoreModel
from anisodiff.noise import Randomness
from anisodiff.samplers.base import Memory, Sampler
from anisodiff.samplers.reference import Reference, growth, predictions, reference
from anisodiff.statistics import Coefficients


def heun_step(model: ScoreModel, z: Tensor, t: Tensor, t_next: Tensor) -> Tensor:
    """û' at ``t_next`` from û at ``t`` (both [1]); NFE 2."""
    c, below = model.coefficients(t), model.coefficients(t_next)
    step = reference(model, c, t_next, t)
    return (_learned if model.learns_drift else _known)(model, z, c, below, step)


def heun_step_upward(model: ScoreModel, z: Tensor, t: Tensor, t_next: Tensor) -> Tensor:
    """The same ODE from ``t`` up to ``t_next`` (both [1]), from an image to noise; NFE 2."""
    # an edge of the drift belongs to the interval below it; this step lies in the one above
    c, above = model.coefficients(torch.nextafter(t, t_next)), model.coefficients(t_next)
    step = reference(model, above, t, t_next).upward()
    return (_learned if model.learns_drift else _known)(model, z, c, above, step)


def _known(model: ScoreModel, z: Tensor, c: Coefficients, below: Coefficients, step: Reference) -> Tensor:
    """û' = √(V'/V) û + √V'·(ϑ − ϑ')·F."""
    noise, signal = c.noise * step.back(c.noise, below.noise), c.signal * step.signal(c, below)  # N', S'
    power = noise + signal
    angle = torch.atan((c.noise / c.signal).sqrt()) - torch.atan((noise / signal).sqrt())
    linear, weight = (power / c.power).sqrt() * z, power.sqrt() * angle
    f, _ = model.residuals(z, c)
    there = linear + weight * f
    f_low, _ = model.residuals(there, below)
    # F at t' with respect to V' and S' of the step, not those of the statistics
    score = -there / below.power + below.scale * f_low
    own = (score + there / power) * (noise * power / signal).sqrt()
    return linear + 0.5 * weight * (f + torch.where(step.gained < 0.5 * c.noise, own, f_low))


def _learned(model: ScoreModel, z: Tensor, c: Coefficients, below: Coefficients, step: Reference) -> Tensor:
    """û' = √(V'/V) û + m·φ(½ ln(V'/V))·(ρ/2 − D), ρ = s + û/V.

    If the step ends on an edge of the drift, D at ``t_next`` is that of the interval below: D at ``t`` is then used
    for both ends. The score does not jump.
    """
    kept = step.back(c.power, below.power)  # V'/V
    linear, weight = kept.sqrt() * z, step.mass * growth(0.5 * kept.log())
    f, d = predictions(model, z, c)
    assert d is not None
    push = 0.5 * c.scale * f
    there = linear + weight * (push - d)
    f_low, d_low = predictions(model, there, below)
    assert d_low is not None
    push_low = 0.5 * (there / (kept * c.power) - there / below.power + below.scale * f_low)
    d_low = torch.where(below.interval == c.interval, d_low, d)
    return linear + 0.5 * weight * (push - d + push_low - d_low)


@dataclass(frozen=True, kw_only=True)
class Ode(Sampler):
    """``ode``: NFE 2 per step, deterministic."""

    name: ClassVar[str] = "ode"
    cost: ClassVar[int] = 2
    requires: ClassVar[frozenset[str]] = frozenset(
        {"equation", "isotropic_noise", "white_noise", "score", "reverse_drift"}
    )

    def evaluation_times(self, t: Tensor, t_next: Tensor) -> tuple[Tensor, ...]:
        return t, t_next

    def step(
        self, model: ScoreModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        return heun_step(model, z, t, t_next)
