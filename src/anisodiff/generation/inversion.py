"""Inversion and interpolation by the probability flow: image → noise → image, deterministic.

    x at t_min  → u_T:      the flow's own step (`samplers.ode`; of a velocity `samplers.flow`), forward in time
    ξ = R⁻¹(û_T − m)         the whitened coordinates of the Gaussian prior N(m, RRᵀ)
    ξ(a) = (sin((1 − a)Ω) ξ0 + sin(aΩ) ξ1)/sin Ω,      cos Ω = ξ0·ξ1/(|ξ0||ξ1|)

An image counts as a state at t_min. A step forward solves the same equation as the sampler's step backward, to the
same order. They are not exact inverses: the error falls with the square of the step.
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


def flow_sampler(provided: frozenset[str]) -> str:
    """The sampler that follows the probability flow of a model."""
    if "velocity" not in provided and not {"score", "reverse_drift"} <= provided:
        learned = " and ".join(sorted(provided)) or "nothing of it"
        raise ValueError(f"inversion needs a velocity, or the score and the drift; this model has learned: {learned}")
    return "heun" if "velocity" in provided else "ode"


FORWARD_STEPS: dict[type[Sampler], Callable[[Any, Tensor, Tensor, Tensor], Tensor]] = {
    Ode: heun_step_upward, Heun: heun_flow, Midpoint: midpoint_flow,
}  # fmt: skip
"""The samplers of a flow, and their step forward in time."""


@torch.no_grad()
def invert_flow(model: Model, sampler: Sampler, states: Tensor, times: Tensor) -> Tensor:
    """States [B, C, H, W] at the last of ascending ``times`` (float64) from states at the first."""
    if type(sampler) not in FORWARD_STEPS:
        raise ValueError(f"the sampler {sampler.name!r} cannot go back to the noise; use 'ode', 'heun' or 'midpoint'")
    z, step = model.to_coordinates(states), FORWARD_STEPS[type(sampler)]
    for t, t_next in pairwise(torch.split(to_device(times, states.device), 1)):
        z = step(model, z, t, t_next)
    return model.from_coordinates(z)


def slerp(first: Tensor, second: Tensor, places: Tensor) -> Tensor:
    """Spherical interpolation of two white vectors, [len(places), …]; 0 is the first, 1 the second."""
    cosine = (first * second).sum() / (first.norm() * second.norm())
    angle = torch.acos(cosine.clamp(-1, 1))
    if float(angle.sin()) < 1e-6:  # one direction
        weights = 1 - places, places
    else:
        weights = torch.sin((1 - places) * angle) / angle.sin(), torch.sin(places * angle) / angle.sin()
    shape = (-1, *(1,) * first.dim())
    return weights[0].reshape(shape) * first + weights[1].reshape(shape) * second
