"""The reverse SDE with its linear part solved exactly per frequency (exponential integrator).

With B, Q, m of the linear reference between t' < t (see `reference`), a step is a Gaussian bridge plus the residuals
F and D = d G of the network (score s = −û/V + c F, drift = reference + α2² D):

    û' = (B V'/V) û + Q √(S'/S)·c F − m φ(ln(B M'/M))·D + √(Q M'/M) ξ̂,      φ(x) = (eˣ − 1)/x

For a linear process the first two terms are exactly E[û' | û] = (û + Q s)/B: B V'/V = (1 − Q/V)/B and S'/S = B⁻².
These forms are used where the step adds little noise; where it is stiff (B ≪ 1), V' and S' are taken from the
statistics, because B⁻² would amplify errors. D is held constant over the step.

**Noise.** M = N + θS, 0 ≤ θ ≤ 1 (``wiener``), is the power of the state in the linear part −û/M of the score. θ = 0
is ancestral sampling (the bridge given the image), θ = 1 the bridge given the Wiener filter only. The noise tends to
Q as steps shrink, and the distribution converges at first order for any θ.

**Second order.** The step holds X = (û + M s)/√S constant, with weight √S'·Q/M: the predicted image in unit scale for
θ = 0, F·√(V/N) for θ = 1. It is extrapolated to the middle of the step from the previous evaluation, X + κ(X −
X_prev), κ = ½ h/h_prev in the logarithm of the accumulated noise, and D alike: two-step Adams–Bashforth with additive
noise, of second order in distribution.

D jumps at an edge of the drift and is not extrapolated across it. X is continuous, but its slope jumps with D: its
extrapolation is multiplied by (B B_prev)⁴, which is 1 for a weak drift and 0 for a stiff one (and by 0 if X and D are
one output, because then X jumps, too). Measured with the best linear score, NFE 50 and ten windows: errors of 1% in
the power of the bands for α1 up to 2 (3% without extrapolation across edges), 10% at the paper's α1 up to 64 (6%
without, 20% with full extrapolation; at NFE 100: 2, 4 and 1%).
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.equation import Equation
from anisodiff.gaussian_kernel import quadrature
from anisodiff.models.score import ScoreModel
from anisodiff.noise import Randomness, white
from anisodiff.samplers.base import Memory, Sampler
from anisodiff.samplers.reference import Reference, growth, predictions, reference
from anisodiff.statistics import Coefficients


class Evaluation(NamedTuple):
    """The previous evaluation of a second-order step, and the step that followed it."""

    c: Coefficients
    clock: Tensor
    state: Tensor
    f: Tensor
    d: Tensor | None
    step: Reference


def accumulated(equation: Equation, t: Tensor) -> Tensor:
    """ln ∫_0^t α2², [1]."""
    return quadrature(equation, torch.zeros_like(t), t)[0].sum(1).log()


def _mixed(c: Coefficients, theta: float) -> Tensor:
    """M = N + θS."""
    return c.noise + theta * c.signal


def _image(z: Tensor, f: Tensor, c: Coefficients, theta: float) -> Tensor:
    """√S X = û + M s, without cancellation."""
    return (1.0 - theta) * c.signal / c.power * z + _mixed(c, theta) * c.scale * f


def _change(z: Tensor, f: Tensor, c: Coefficients, before: Evaluation, theta: float) -> Tensor:
    """√S (X − X_prev).

    X_prev is computed with the same solution of the reference, M̃ = B²M + Q and S̃ = B²S at the previous time; where
    the step between was stiff, with M and S of the statistics.
    """
    old, high = before.step, before.c
    lifted = old.decay.square() * _mixed(c, theta) + old.gained
    gentle = ((1.0 - lifted / high.power) * before.state + lifted * high.scale * before.f) / old.decay
    stiff = (c.signal / high.signal).sqrt() * _image(before.state, before.f, high, theta)
    return _image(z, f, c, theta) - torch.where(old.gained < 0.5 * lifted, gentle, stiff)


def exponential_step(
    model: ScoreModel,
    z: Tensor,
    t: Tensor,
    t_next: Tensor,
    rng: Randomness,
    *,
    wiener: float,
    before: Evaluation | None = None,
) -> tuple[Tensor, Evaluation]:
    """û' at ``t_next`` from û at ``t`` (both [1]) and this evaluation; second order if ``before`` is given. NFE 1."""
    c, below = model.coefficients(t), model.coefficients(t_next)
    f, d = predictions(model, z, c)
    step = reference(model, c, t_next, t)
    mixed = _mixed(c, wiener)
    mixed_kept, grown = step.back(mixed, _mixed(below, wiener)), step.signal(c, below).sqrt()
    mean = step.linear(c, below) * z + step.gained * grown * c.scale * f
    drift_weight = step.mass * growth((step.decay * mixed_kept).log())
    if d is not None:
        mean = mean - drift_weight * d
    clock = accumulated(model.equation, t)
    if before is not None:
        gap = clock - accumulated(model.equation, t_next)
        ratio = 0.5 * (gap / (before.clock - clock)).clamp(max=2.0).to(z.dtype)
        weight = step.gained / mixed * grown
        change = weight * _change(z, f, c, before, wiener)
        if d is not None:
            assert before.d is not None
            same = before.c.interval == c.interval  # a factor: a branch would synchronize with the device
            taken = 0.0 if model.learns == "reverse_drift" else (step.decay * before.step.decay) ** 4
            change = torch.where(same, 1.0, taken) * change
            change = change - same * drift_weight * (d - before.d)
        mean = mean + ratio * change
    return mean + (step.gained * mixed_kept).sqrt() * white(z, rng), Evaluation(c, clock, z, f, d, step)


@dataclass(frozen=True, kw_only=True)
class Exponential(Sampler):
    """``exponential(order=2, wiener=0)``: NFE 1 per step, stable for any α1."""

    name: ClassVar[str] = "exponential"
    cost: ClassVar[int] = 1
    requires: ClassVar[frozenset[str]] = frozenset({"equation", "isotropic_noise", "reverse_drift"})

    order: int = 2
    """2: extrapolate the residuals from the previous evaluation; 1: hold them constant."""
    wiener: float = 0.0
    """θ ∈ [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        notation.check_number(self, "order", 1, 2, whole=True)
        notation.check_number(self, "wiener", 0.0, 1.0)

    def step(
        self, model: ScoreModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        before = memory.pop("evaluation", None)
        z, made = exponential_step(model, z, t, t_next, rng, wiener=self.wiener, before=before)
        if self.order == 2:
            memory["evaluation"] = made
        return z
