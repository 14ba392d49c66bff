"""Samplers of the baselines: each has its own times, down to the image at t = 0, and no corrector."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from anisodiff.processes import Process
from anisodiff.samplers.base import Sampler


@dataclass(frozen=True, kw_only=True)
class OwnTimes(Sampler):
    """A sampler whose times follow from its method; they end in 0, where the state is the image."""

    grid: str = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.corrector != 0 or self.grid != "uniform" or self.rho != 1:
            raise ValueError(f"{self.name!r} has its own times and no corrector: leave corrector, grid and rho away")

    def prepared(self, process: Process) -> Self:
        """As it is."""
        return self

    def nfe(self, times: Tensor) -> int:
        """Network evaluations along ``times``: none is needed at the end."""
        return (len(times) - 1) * self.cost

    def least(self, model: Any, t_min: float, t_max: float) -> int:
        """One step."""
        return self.cost

    @abstractmethod
    def down(self, model: Any, nfe: int, top: float, t_min: float) -> Tensor:
        """Descending times from ``top``, or the level that stands for it, to 0."""

    def times(self, model: Any, nfe: int, *, t_min: float, t_max: float | None = None) -> Tensor:
        """Descending times, float64, the last one 0."""
        return self.down(model, nfe, self.span(model, nfe, t_min, t_max), t_min)


def levels_down(levels: int, top: float, steps: int) -> Tensor:
    """``steps`` + 1 of the levels k/levels from the nearest to ``top`` (1 at least) to 0, as even as can be."""
    first = max(1, round(top * levels))
    chosen = torch.linspace(first, 0, min(steps, first) + 1, dtype=torch.float64).round()
    return chosen / levels
