"""What a sampler is: steps from t_max down to t_min along a time grid, and the image expected at the end.

    ẑ_0 = states at times[0],    ẑ_{i+1} = corrector(step(ẑ_i, t_i → t_{i+1})),    x = E[x0 | ẑ_n]

The mathematics stands in one plain function per file; a sampler holds its options, and `Sampler.run` is the loop that
all share. States inside the loop are in the model's coordinates (`Model.to_coordinates`): for a score the DCT of the
images about the channel means. A grid that ends at 0 ends in an image; any other ends with one denoising step.
"""

import math
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
"""What a sampler can require of a process (`Process.capabilities`) or of a model (`Model.provides`), in words."""

_TELLING = frozenset({"velocity", "noise", "deblurring_step", "equation"})
"""Of another kind of process altogether: who lacks it needs to hear no more."""

Memory = dict[str, Any]
"""What a multistep sampler remembers from one step of a trajectory to the next."""


class SampleResult(NamedTuple):
    """Images [B, C, H, W], and the network evaluations that each of them cost, in the mean."""

    images: Tensor
    nfe: float


def option(value: float, what: str, low: float, high: float) -> float:
    """A number of a sampler's options within its range."""
    found = notation.number(value, what)
    if not low <= found <= high:
        raise ValueError(f"{what} must lie in [{low:g}, {high:g}], got {found:g}")
    return found


def whole(value: float, what: str, valid: tuple[int, ...]) -> int:
    """One of a few whole numbers."""
    found = notation.number(value, what)
    if not math.isfinite(found) or int(found) != found or int(found) not in valid:
        raise ValueError(f"{what} must be {' or '.join(map(str, valid))}, got {found:g}")
    return int(found)


@dataclass(frozen=True, kw_only=True)
class Sampler(ABC):
    """Contract of every sampler; subclasses are frozen dataclasses of options."""

    name: ClassVar[str]
    """In the notation and in the registry."""
    cost: ClassVar[int]
    """Network evaluations of one predictor step."""
    requires: ClassVar[frozenset[str]] = frozenset()
    """What it needs of process and model, whatever its options: names of `CAPABILITIES`."""

    corrector: float = 0.0
    """Signal-to-noise ratio of one Langevin step after every predictor step; 0: none."""
    grid: str = "level"
    """Where the times lie, see `grids`."""
    rho: float = 1.0
    """ρ > 1 bends the grid ``level`` towards high noise: even steps of (σ/σ_d)^{1/ρ} instead of ln σ."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "corrector", option(self.corrector, "corrector", 0.0, 1.0))
        object.__setattr__(self, "rho", option(self.rho, "rho", 1.0, 100.0))
        if self.grid not in GRIDS:
            raise ValueError(f"unknown grid {self.grid!r}; {notation.nearest(str(self.grid), GRIDS)}")

    @abstractmethod
    def step(self, model: Any, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory) -> Tensor:
        """ẑ at ``t_next`` from ẑ [B, C, H, W] at ``t`` (both [1], t_next < t); ``memory`` is empty at first."""

    def required(self) -> frozenset[str]:
        """`requires`, and what its options need; correctors need the score."""
        return self.requires | {"score"} if self.corrector > 0 else self.requires

    def missing(self, process: Process, provided: frozenset[str]) -> str:
        """What process and model lack of the requirements, in words; empty if nothing."""
        lacking = self.required() - process.capabilities - provided
        lacking = lacking & _TELLING or lacking
        return " and ".join(words for name, words in CAPABILITIES.items() if name in lacking)

    def prepared(self, process: Process) -> Self:
        """With what it takes from ``process`` filled in; refuses options that contradict the process."""
        return self

    def nfe(self, times: Tensor) -> int:
        """Answers of the model that `run` asks for along ``times``: the last one gives the image.

        Each is one network evaluation, but two where it is guided: see `evaluations`.
        """
        return (len(times) - 1) * self._per_step + 1

    def evaluation_times(self, t: Tensor, t_next: Tensor) -> tuple[Tensor, ...]:
        """The times at which a step from ``t`` to ``t_next`` asks the model, ``cost`` of them; all at ``t``, here."""
        return (t,) * self.cost

    def evaluations(self, model: Model, times: Tensor) -> int:
        """Network evaluations that `run` makes along ``times``, those for guidance included."""
        places = [
            place
            for t, t_next in pairwise(torch.split(times, 1))
            for place in (*self.evaluation_times(t, t_next), *([t_next] if self.corrector > 0 else []))
        ]
        places += [times[-1:]] * (self.nfe(times) - len(places))  # the image at the end
        return int(model.evaluations(torch.cat(places)).sum())

    def within(self, nfe: int) -> Self:
        """With what it takes from the network evaluations that are allowed."""
        return self

    def min_nfe(self, model: Any, t_min: float, t_max: float) -> int:
        """The fewest network evaluations that bring a state from ``t_max`` to an image."""
        return segments(model, t_min, t_max) * self._per_step + 1

    def span(self, model: Model, nfe: int, t_min: float, t_max: float | None) -> float:
        """The first time, T where none is given; what cannot be done is refused."""
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
        """Descending times t_max … t_min, float64: as many as ``nfe`` network evaluations allow."""
        top = self.span(model, nfe, t_min, t_max)
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

        ``callback(i, u)`` sees the state u [B, C, H, W] at times[i+1] after every step.
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
        """Network evaluations that a run along ``times`` has made."""
        return self.evaluations(model, times)

    @property
    def _per_step(self) -> int:
        return self.cost + (self.corrector > 0)

    def __str__(self) -> str:
        return notation.write(self.name, self)


@dataclass(frozen=True, kw_only=True)
class OwnTimes(Sampler):
    """A sampler whose times follow from its method and end at 0, where the state is the image; no corrector."""

    grid: str = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.corrector != 0 or self.grid != "uniform" or self.rho != 1:
            raise ValueError(f"{self.name!r} has its own times and no corrector: omit corrector, grid and rho")

    def nfe(self, times: Tensor) -> int:
        """Network evaluations along ``times``: none is needed at the end."""
        return (len(times) - 1) * self.cost

    def min_nfe(self, model: Any, t_min: float, t_max: float) -> int:
        return self.cost

    @abstractmethod
    def descending_times(self, model: Any, nfe: int, top: float, t_min: float) -> Tensor:
        """Descending times from ``top``, or the level that stands for it, to 0."""

    def times(self, model: Any, nfe: int, *, t_min: float, t_max: float | None = None) -> Tensor:
        return self.descending_times(model, nfe, self.span(model, nfe, t_min, t_max), t_min)


def levels_down(levels: int, top: float, steps: int) -> Tensor:
    """``steps`` + 1 of the levels k/levels from the nearest to ``top`` (1 at least) to 0, as even as can be."""
    first = max(1, round(top * levels))
    chosen = torch.linspace(first, 0, min(steps, first) + 1, dtype=torch.float64).round()
    return chosen / levels
