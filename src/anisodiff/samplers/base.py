"""The contract of a sampler: predictor and corrector steps down a time grid, then denoising (paper, Sec. 3.4).

    z_0 = states at times[0],    z_{i+1} = corrector(step(z_i, t_i → t_{i+1})),    x = E[x0 | z_n]

Each module has its step as one function; a sampler holds the options, and `Sampler.run` is the common loop. States z
are in the coordinates of the model (`Model.to_coordinates`): for a score, the DCT of the state about the channel
means. A grid that ends at t = 0 needs no denoising.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.models.base import Model
from anisodiff.noise import Randomness
from anisodiff.processes.base import Process
from anisodiff.samplers.corrector import langevin
from anisodiff.samplers.grids import GRIDS, grid_between, segments
from anisodiff.tensors import to_device, to_highest_precision

LEARNED = {
    "score": "the score by itself, which this model did not learn (learns=score_and_drift and score do)",
    "reverse_drift": "the drift, which this model did not learn (learns=score_and_drift and reverse_drift do)",
    "velocity": "a model that predicts the velocity",
    "noise": "a model that predicts the noise",
    "deblurring_step": "a model that predicts deblurring steps",
}
CAPABILITIES = LEARNED | {
    "equation": "a process of the SPDE",
    "isotropic_noise": "isotropic noise (noise_anisotropy=infinite)",
    "white_noise": "white noise (correlation_length=0)",
    "no_drift": "noise without a drift (ve)",
    "closed_form": "a closed-form process (step=exact)",
    "scaled_signal": "a process that scales the image",
    "levels": "a process with levels",
}
"""Requirements of samplers on process (`Process.capabilities`) or model (`Model.provides`), for error messages."""

_DECISIVE = frozenset({"velocity", "noise", "deblurring_step", "equation"})
"""If one of these is missing, the process is of another kind, and the error message names only these."""

Memory = dict[str, Any]
"""The state of a multistep sampler between the steps of a trajectory."""


class SampleResult(NamedTuple):
    """Images [B, C, H, W] and their mean number of network evaluations."""

    images: Tensor
    nfe: float


@dataclass(frozen=True, kw_only=True)
class Sampler(ABC):
    """A sampler; subclasses are frozen dataclasses of its options."""

    name: ClassVar[str]
    """Its name in the notation and in the registry."""
    cost: ClassVar[int]
    """Network evaluations of one predictor step."""
    requires: ClassVar[frozenset[str]] = frozenset()
    """Requirements on process and model for all options: names of `CAPABILITIES`."""

    corrector: float = 0.0
    """Signal-to-noise ratio of one Langevin step after every predictor step; 0: no corrector."""
    grid: str = "level"
    """The time grid, see `grids`."""
    rho: float = 1.0
    """ρ of the grid ``level``: equal steps of (σ/σ_d)^{1/ρ}, of ln σ for ρ = 1."""

    def __post_init__(self) -> None:
        notation.check_number(self, "corrector", 0.0, 1.0)
        notation.check_number(self, "rho", 1.0, 100.0)
        notation.check_choice(self.grid, GRIDS, "grid")

    @abstractmethod
    def step(self, model: Any, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory) -> Tensor:
        """z at ``t_next`` from z [B, C, H, W] at ``t`` (both [1], t_next < t); ``memory`` is empty at first."""

    def required(self) -> frozenset[str]:
        """`requires` and the requirements of the options; correctors require the score."""
        return self.requires | {"score"} if self.corrector > 0 else self.requires

    def missing(self, process: Process, provided: frozenset[str]) -> str:
        """The requirements that process and model do not meet, for an error message; empty if all are met."""
        lacking = self.required() - process.capabilities - provided
        lacking = lacking & _DECISIVE or lacking
        return " and ".join(words for name, words in CAPABILITIES.items() if name in lacking)

    @property
    def depends_on_batch(self) -> bool:
        """Whether a sample depends on the others of its batch, rounding apart."""
        return False

    def prepared(self, process: Process) -> Self:
        """The sampler with the options that depend on ``process``; a ValueError if its options contradict it."""
        return self

    def nfe(self, times: Tensor) -> int:
        """Predictions of `run` along ``times``, with the final denoising: the NFE without guidance."""
        return (len(times) - 1) * self._per_step + 1

    def evaluation_times(self, t: Tensor, t_next: Tensor) -> tuple[Tensor, ...]:
        """The times of the ``cost`` predictions in a step from ``t`` to ``t_next``; by default all at ``t``."""
        return (t,) * self.cost

    def evaluations(self, model: Model, times: Tensor) -> int:
        """Network evaluations of `run` along ``times``, with guidance."""
        when = [
            each
            for t, t_next in pairwise(torch.split(times, 1))
            for each in (*self.evaluation_times(t, t_next), *([t_next] if self.corrector > 0 else []))
        ]
        when += [times[-1:]] * (self.nfe(times) - len(when))  # the final denoising
        return int(model.evaluations(torch.cat(when)).sum())

    def within(self, nfe: int) -> Self:
        """The sampler with ``nfe`` as its limit, if it chooses its own number of evaluations."""
        return self

    def min_nfe(self, model: Any, t_min: float, t_max: float) -> int:
        """The smallest NFE from ``t_max`` to an image."""
        return segments(model, t_min, t_max) * self._per_step + 1

    def _check_times(self, model: Model, nfe: int, t_min: float, t_max: float | None) -> float:
        """t_max, by default T; a ValueError if the times or ``nfe`` are impossible."""
        T = model.T
        top = T if t_max is None else float(t_max)
        if not 0 < t_min < top <= T:
            raise ValueError(f"times must obey 0 < t_min < t_max ≤ T = {T:g}, got t_min = {t_min:g}, t_max = {top:g}")
        least = self.min_nfe(model, t_min, top)
        if nfe < least:
            raise ValueError(
                f"an NFE of {nfe} is too small for {self.name!r} on this process; expected at least {least}"
            )
        return top

    def times(self, model: Any, nfe: int, *, t_min: float, t_max: float | None = None) -> Tensor:
        """Descending times t_max … t_min for ``nfe`` network evaluations, float64."""
        top = self._check_times(model, nfe, t_min, t_max)
        return grid_between(model, self.grid, (nfe - 1) // self._per_step, t_min, top, rho=self.rho)

    @torch.no_grad()
    def run(
        self,
        model: Any,
        start: Tensor,
        times: Tensor,
        rng: Randomness,
        *,
        callback: Callable[[int, Tensor], None] | None = None,
    ) -> SampleResult:
        """Images E[x0 | u] [B, C, H, W] from states ``start`` at times[0] along descending ``times`` (float64).

        ``callback(i, u)`` is called after every step with the state u [B, C, H, W] at times[i+1].
        """
        times = to_highest_precision(times)
        if times.dim() != 1 or len(times) == 0 or bool((times[1:] >= times[:-1]).any()):
            raise ValueError("times must be a vector that descends")
        times = to_device(times, start.device)
        lacking = (self.required() & LEARNED.keys()) - model.provided
        if lacking:
            raise ValueError(
                f"the sampler {self.name!r} needs {' and '.join(LEARNED[name] for name in sorted(lacking))}"
            )
        z, memory = model.to_coordinates(start), Memory()
        for i, (t, t_next) in enumerate(pairwise(torch.split(times, 1))):
            z = self.step(model, z, t, t_next, rng, memory)
            if self.corrector > 0:
                z = langevin(model, z, t_next, self.corrector, rng)
            if callback:
                callback(i, model.from_coordinates(z))
        ended = float(times[-1]) == 0.0
        images = model.from_coordinates(z) if ended else model.denoised(z, times[-1:])
        return SampleResult(images, self.nfe_used(model, times, memory))

    def nfe_used(self, model: Model, times: Tensor, memory: Memory) -> float:
        """Mean network evaluations of a finished run along ``times``."""
        return self.evaluations(model, times)

    @property
    def _per_step(self) -> int:
        return self.cost + (self.corrector > 0)

    def __str__(self) -> str:
        return notation.write(self.name, self)

    @property
    def brief(self) -> str:
        """For people: its name, with the options that differ from their defaults."""
        return notation.write(self.name, self, brief=True)


@dataclass(frozen=True, kw_only=True)
class OwnTimes(Sampler):
    """A sampler with its own time grid, which ends at t = 0; no corrector."""

    grid: str = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.corrector != 0 or self.grid != "uniform" or self.rho != 1:
            raise ValueError(f"{self.name!r} has its own times and no corrector: omit corrector, grid and rho")

    def nfe(self, times: Tensor) -> int:
        return (len(times) - 1) * self.cost

    def min_nfe(self, model: Any, t_min: float, t_max: float) -> int:
        return self.cost

    @abstractmethod
    def descending_times(self, model: Any, nfe: int, top: float, t_min: float) -> Tensor:
        """Descending times from ``top``, or the nearest level, to 0."""

    def times(self, model: Any, nfe: int, *, t_min: float, t_max: float | None = None) -> Tensor:
        return self.descending_times(model, nfe, self._check_times(model, nfe, t_min, t_max), t_min)


def levels_down(levels: int, top: float, steps: int) -> Tensor:
    """``steps`` + 1 nearly equidistant levels k/levels from the nearest to ``top`` (at least 1) to 0."""
    first = max(1, round(top * levels))
    chosen = torch.linspace(first, 0, min(steps, first) + 1, dtype=torch.float64).round()
    return chosen / levels
