"""Sampling of flow matching (Lipman et al. 2023): the ODE dz/dt = w(z, t) from noise to image, in fixed steps.

    heun       z̃ = z − h w(z, t),        z' = z − h (w(z, t) + w(z̃, t'))/2         h = t − t'
    midpoint   z̃ = z − ½h w(z, t),       z' = z − h w(z̃, t − ½h)

Both are of second order with NFE 2 per step. Time grids:

    uniform    equal steps of t
    level      equal steps of σ^{1/ρ}, σ = t/(1 − t), from 80 to 0.002, then 0 (Karras et al. 2022)
    process    uniform or level, as the density of the training times

As in the public code, the grid ``level`` starts from the prior at σ = 80.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.models.velocity import VelocityModel
from anisodiff.noise import Randomness
from anisodiff.processes.base import Process
from anisodiff.samplers.base import Memory, OwnTimes

_GRIDS = ("process", "uniform", "level")
_OF_DENSITY = {"uniform": "uniform", "skewed": "level"}
SIGMA_MAX, SIGMA_MIN = 80.0, 0.002


def heun_flow(model: VelocityModel, z: Tensor, t: Tensor, t_next: Tensor) -> Tensor:
    """z' at ``t_next`` from z at ``t`` (both [1]); NFE 2."""
    h = (t - t_next).to(z.dtype)
    first = model.velocity(z, t)
    return z - 0.5 * h * (first + model.velocity(z - h * first, t_next))


def midpoint_flow(model: VelocityModel, z: Tensor, t: Tensor, t_next: Tensor) -> Tensor:
    """z' at ``t_next`` from z at ``t`` (both [1]); NFE 2."""
    h = (t - t_next).to(z.dtype)
    return z - h * model.velocity(z - 0.5 * h * model.velocity(z, t), 0.5 * (t + t_next))


def bent_times(steps: int, high: float, rho: float) -> Tensor:
    """``steps`` + 1 times σ/(1 + σ), σ from ``high`` to 0.002 in equal steps of σ^{1/ρ}, then 0; float64."""
    part = torch.arange(steps, dtype=torch.float64) / max(1, steps - 1)
    ends = [sigma ** (1 / rho) for sigma in (high, min(SIGMA_MIN, 0.5 * high))]
    sigma = (ends[0] + part * (ends[1] - ends[0])) ** rho
    return torch.cat([sigma / (1 + sigma), sigma.new_zeros(1)])


@dataclass(frozen=True, kw_only=True)
class _Fixed(OwnTimes):
    """A solver with fixed steps."""

    cost: ClassVar[int] = 2
    requires: ClassVar[frozenset[str]] = frozenset({"velocity"})

    grid: str = "process"
    rho: float = 7.0
    """ρ of the grid ``level``."""

    def __post_init__(self) -> None:
        notation.check_number(self, "rho", 1.0, 100.0)
        if self.corrector != 0:
            raise ValueError(f"{self.name!r} has its own times and no corrector: omit corrector")
        notation.check_choice(self.grid, _GRIDS, "grid")

    def prepared(self, process: Process) -> Self:
        if self.grid != "process":
            return self
        return dataclasses.replace(self, grid=_OF_DENSITY[getattr(process, "density", "uniform")])

    def descending_times(self, model: VelocityModel, nfe: int, top: float, t_min: float) -> Tensor:
        steps = nfe // self.cost
        if self.prepared(model.process).grid == "level":
            return bent_times(steps, SIGMA_MAX if top >= model.T else top / (1 - top), self.rho)
        return torch.linspace(top, 0, steps + 1, dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class Heun(_Fixed):
    """``heun``: Heun's method."""

    name: ClassVar[str] = "heun"

    def evaluation_times(self, t: Tensor, t_next: Tensor) -> tuple[Tensor, ...]:
        return t, t_next

    def step(
        self, model: VelocityModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        return heun_flow(model, z, t, t_next)


@dataclass(frozen=True, kw_only=True)
class Midpoint(_Fixed):
    """``midpoint``: the midpoint method."""

    name: ClassVar[str] = "midpoint"

    def evaluation_times(self, t: Tensor, t_next: Tensor) -> tuple[Tensor, ...]:
        return t, 0.5 * (t + t_next)

    def step(
        self, model: VelocityModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        return midpoint_flow(model, z, t, t_next)
