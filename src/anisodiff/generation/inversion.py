"""Inversion and interpolation by the probability flow: image → noise → image, without chance.

    x at t_min  → u_T:      the flow's own step (`samplers.ode`; of a velocity `samplers.flow`), upward in time
    ξ = R⁻¹(û_T − m)         the whitened coordinates of the Gaussian prior N(m, RRᵀ)
    ξ(a) = (sin((1 − a)Ω) ξ0 + sin(aΩ) ξ1)/sin Ω,      cos Ω = ξ0·ξ1/(|ξ0||ξ1|)

An image is taken for a state at t_min. A step upward solves the same equation as the sampler's step downward, to the
same order; the two are not inverse to each other exactly, and what is left falls with the square of the step.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from anisodiff.models.base import Model
from anisodiff.samplers import Sampler
from anisodiff.samplers.flow import Heun, Midpoint, heun_flow, midpoint_flow
from anisodiff.samplers.ode import Ode, heun_step_upward
from anisodiff.tensors import to_device


def flow_of(provided: frozenset[str]) -> str:
    """The sampler that follows the probability flow of a model."""
    if "velocity" not in provided and not {"score", "reverse_drift"} <= provided:
        known = " and ".join(sorted(provided)) or "nothing of it"
        raise ValueError(f"inversion needs a velocity, or the score and the drift; this model has learned: {known}")
    return "heun" if "velocity" in provided else "ode"


UPWARD: dict[type[Sampler], Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    Ode: heun_step_upward, Heun: heun_flow, Midpoint: midpoint_flow,
}  # fmt: skip
"""The samplers of a flow, and their step upward in time."""


@torch.no_grad()
def upward(model: Model, sampler: Sampler, states: Tensor, times: Tensor) -> Tensor:
    """States [B, C, H, W] at the last of ascending ``times`` (float64) from states at the first."""
    if type(sampler) not in UPWARD:
        raise ValueError(f"the sampler {sampler.name!r} cannot go back to the noise; use 'ode', 'heun' or 'midpoint'")
    z, step = model.to_coordinates(states), UPWARD[type(sampler)]
    for t, t_next in pairwise(torch.split(to_device(times, states.device), 1)):
        z = step(model, z, t, t_next)
    return model.from_coordinates(z)


def spherical(first: Tensor, second: Tensor, places: Tensor) -> Tensor:
    """[len(places), …] between two white vectors of one shape; 0 is the first, 1 the second."""
    cosine = (first * second).sum() / (first.norm() * second.norm())
    angle = torch.acos(cosine.clamp(-1, 1))
    if float(angle.sin()) < 1e-6:  # one direction
        weights = 1 - places, places
    else:
        weights = torch.sin((1 - places) * angle) / angle.sin(), torch.sin(places * angle) / angle.sin()
    shape = (-1, *(1,) * first.dim())
    return weights[0].reshape(shape) * first + weights[1].reshape(shape) * second
