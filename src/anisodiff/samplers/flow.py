"""Flow matching backward (Lipman et al. 2023): the equation dz/dt = w(z, t) from noise to image, in fixed steps.

    heun       z̃ = z − h w(z, t),        z' = z − h (w(z, t) + w(z̃, t'))/2         h = t − t'
    midpoint   z̃ = z − ½h w(z, t),       z' = z − h w(z̃, t − ½h)

Two evaluations a step and second order, both. Steps are even in t, where straight paths move evenly.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anisodiff.models.velocity import VelocityModel
from anisodiff.noise import Randomness
from anisodiff.processes import FlowMatching, Process
from anisodiff.samplers.base import Step
from anisodiff.samplers.own_times import OwnTimes


def heun_flow(model: VelocityModel, z: Tensor, t: Tensor, after: Tensor) -> Tensor:
    """z' at ``after`` from z at ``t`` (both [1]); two evaluations."""
    h = (t - after).to(z.dtype)
    first = model.answer(z, t)
    return z - 0.5 * h * (first + model.answer(z - h * first, after))


def midpoint_flow(model: VelocityModel, z: Tensor, t: Tensor, after: Tensor) -> Tensor:
    """z' at ``after`` from z at ``t`` (both [1]); two evaluations."""
    h = (t - after).to(z.dtype)
    return z - h * model.answer(z - 0.5 * h * model.answer(z, t), 0.5 * (t + after))


@dataclass(frozen=True, kw_only=True)
class _Fixed(OwnTimes):
    """Even steps in t."""

    cost: ClassVar[int] = 2
    serves: ClassVar[tuple[type[Process], ...]] = (FlowMatching,)

    def down(self, model: VelocityModel, nfe: int, top: float, t_min: float) -> Tensor:
        """Evenly from ``top`` to 0."""
        return torch.linspace(top, 0, nfe // self.cost + 1, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Heun(_Fixed):
    """``heun``: the mean of the velocities at both ends."""

    name: ClassVar[str] = "heun"

    def stepper(self, model: VelocityModel, source: Randomness) -> Step:
        """Without any noise."""
        return lambda z, t, after: heun_flow(model, z, t, after)


@dataclass(frozen=True, kw_only=True)
class Midpoint(_Fixed):
    """``midpoint``: the velocity in the middle."""

    name: ClassVar[str] = "midpoint"

    def stepper(self, model: VelocityModel, source: Randomness) -> Step:
        """Without any noise."""
        return lambda z, t, after: midpoint_flow(model, z, t, after)
