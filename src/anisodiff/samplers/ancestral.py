"""Ancestral sampling of a linear process (Ho et al. 2020, here per frequency), with E[x0 | u] for x0:

    û' | û, x̂0 ~ N( (B N'/N) û + (Q/N) B_t' x̂0,  Q N'/N )

since Û_t = B_t x̂0 + √N ξ̂ and Û_t | Û_t' ~ N(B Û_t', Q). B, N, N', Q and B_t' are closed forms of the equation; only
x̂0 = E[x0 | u] comes from the model, as √D·(√S/V û + √(N/V) F), which has no small denominator. The mean is exact for
any step; the variance omits the variance of x0 given u, so the distribution converges at first order.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anisodiff.gaussian_kernel import grid_decay, grid_variance
from anisodiff.models.score import ScoreModel
from anisodiff.noise import Randomness, white
from anisodiff.samplers.base import Memory, Sampler


def ancestral_step(model: ScoreModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness) -> Tensor:
    """A draw of û' at ``t_next`` given û at ``t`` (both [1]); NFE 1."""
    c, equation, zero = model.coefficients(t), model.equation, torch.zeros_like(t)
    f, _ = model.residuals(z, c)
    image = c.data.sqrt() * (c.signal.sqrt() / c.power * z + (c.noise / c.power).sqrt() * f)
    noise, noise_below = (grid_variance(equation, zero, r, z) for r in (t, t_next))
    gained = grid_variance(equation, t_next, t, z)
    mean = grid_decay(equation, t_next, t, z) * noise_below / noise * z
    mean = mean + gained / noise * grid_decay(equation, zero, t_next, z) * image
    return mean + (gained * noise_below / noise).sqrt() * white(z, rng)


@dataclass(frozen=True, kw_only=True)
class Ancestral(Sampler):
    """``ancestral``: NFE 1 a step, for processes in closed form."""

    name: ClassVar[str] = "ancestral"
    cost: ClassVar[int] = 1
    requires: ClassVar[frozenset[str]] = frozenset({"closed_form", "isotropic_noise", "score"})

    def step(
        self, model: ScoreModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        return ancestral_step(model, z, t, t_next, rng)
