"""Flow matching backward (Lipman et al. 2023): the equation dz/dt = w(z, t) from noise to image, in fixed steps.

    heun       z̃ = z − h w(z, t),        z' = z − h (w(z, t) + w(z̃, t'))/2         h = t − t'
    midpoint   z̃ = z − ½h w(z, t),       z' = z − h w(z̃, t − ½h)

NFE 2 a step and second order, both. Steps are even in t, where straight paths move evenly.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anisodiff.models.velocity import VelocityModel
from anisodiff.noise import Randomness
from anisodiff.samplers.base import Memory, OwnTimes


def heun_flow(model: VelocityModel, z: Tensor, t: Tensor, t_next: Tensor) -> Tensor:
    """z' at ``t_next`` from z at ``t`` (both [1]); NFE 2."""
    h = (t - t_next).to(z.dtype)
    first = model.velocity(z, t)
    return z - 0.5 * h * (first + model.velocity(z - h * first, t_next))


def midpoint_flow(model: VelocityModel, z: Tensor, t: Tensor, t_next: Tensor) -> Tensor:
    """z' at ``t_next`` from z at ``t`` (both [1]); NFE 2."""
    h = (t - t_next).to(z.dtype)
    return z - h * model.velocity(z - 0.5 * h * model.velocity(z, t), 0.5 * (t + t_next))


@dataclass(frozen=True, kw_only=True)
class _Fixed(OwnTimes):
    """Even steps in t."""

    cost: ClassVar[int] = 2
    requires: ClassVar[frozenset[str]] = frozenset({"velocity"})

    def down(self, model: VelocityModel, nfe: int, top: float, t_min: float) -> Tensor:
        """Evenly from ``top`` to 0."""
        return torch.linspace(top, 0, nfe // self.cost + 1, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Heun(_Fixed):
    """``heun``: the mean of the velocities at both ends."""

    name: ClassVar[str] = "heun"

    def step(
        self, model: VelocityModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        return heun_flow(model, z, t, t_next)


@dataclass(frozen=True, kw_only=True)
class Midpoint(_Fixed):
    """``midpoint``: the velocity in the middle."""

    name: ClassVar[str] = "midpoint"

    def step(
        self, model: VelocityModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        return midpoint_flow(model, z, t, t_next)
