"""What a sampler is: a way down from t_max to t_min, one step at a time, and the image expected at the end.

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
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.models.base import Model
from anisodiff.noise import Randomness
from anisodiff.processes import SPDE, ClosedForm, Process
from anisodiff.samplers.corrector import langevin
from anisodiff.samplers.grids import GRIDS, grid_between, segments

Step = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(ẑ at t [B, C, H, W], t [1], t' [1]) → ẑ at t' < t."""


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


def require_additive(process: Process, what: str, *, white: bool = True) -> None:
    """Samplers that integrate the noise per frequency need Σ = α2² Q, with Q = 1 where it must be ``white``."""
    if not isinstance(process, SPDE | ClosedForm):
        raise ValueError(f"no sampler is known for a {type(process).__name__}")
    equation = process.equation
    if not equation.additive:
        raise ValueError(f"the sampler {what!r} needs noise_anisotropy=infinite; take 'euler'")
    if white and equation.correlation_length > 0:
        raise ValueError(
            f"the sampler {what!r} needs white noise, got correlation_length={equation.correlation_length:g}; "
            "take 'exponential'"
        )


@torch.no_grad()
def denoised(model: Model, z: Tensor, t: Tensor) -> Tensor:
    """E[x0 | u] [B, C, H, W] of states ``z`` of `Model.to_coordinates` at ``t`` [1]; one evaluation."""
    return model.denoised(z, t)


@dataclass(frozen=True, kw_only=True)
class Sampler(ABC):
    """Contract of every sampler; subclasses are frozen dataclasses of options."""

    name: ClassVar[str]
    """Its name in the notation."""
    cost: ClassVar[int]
    """Network evaluations of one predictor step."""
    serves: ClassVar[tuple[type[Process], ...]] = (SPDE, ClosedForm)
    """The processes whose models it knows how to ask."""

    corrector: float = 0.0
    """Signal-to-noise ratio of one Langevin step after every predictor step; 0: none."""
    grid: str = "level"
    """Where the times lie, see `time_grids`."""
    rho: float = 1.0
    """ρ > 1 bends the grid ``level`` towards high noise: even steps of (σ/σ_d)^{1/ρ} instead of ln σ."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "corrector", option(self.corrector, "corrector", 0.0, 1.0))
        object.__setattr__(self, "rho", option(self.rho, "rho", 1.0, 100.0))
        if self.grid not in GRIDS:
            raise ValueError(f"unknown grid {self.grid!r}; {notation.nearest(str(self.grid), GRIDS)}")

    @property
    def uses_score(self) -> bool:
        """Whether it asks for the score by itself; correctors do."""
        return self.corrector > 0

    @property
    def uses_drift(self) -> bool:
        """Whether it follows the drift as it was learned."""
        return False

    def check_model(self, learns: str) -> None:
        """Refuse a model that has not learned what is asked of it; ``learns`` as in `TrainConfig`."""
        if learns == "reverse_drift" and self.uses_score:
            raise ValueError(
                f"the sampler '{self}' needs the score by itself, got a model trained with learns=reverse_drift; "
                "take 'exponential' without a corrector, or 'euler(drift=projected)'"
            )
        if learns == "score" and self.uses_drift:
            raise ValueError(
                f"the sampler '{self}' needs the drift as well, got a model trained with learns=score; take 'euler'"
            )

    @abstractmethod
    def prepared(self, process: Process) -> Self:
        """Itself with what it takes from ``process`` filled in; refuses a process that it cannot integrate."""

    @abstractmethod
    def stepper(self, model: Any, source: Randomness) -> Step:
        """The predictor of one run; a multistep one remembers its last evaluation.

        ``model`` is of the kind that learns the processes it `serves`.
        """

    def nfe(self, times: Tensor) -> int:
        """Network evaluations that `run` makes along ``times``: the last one gives the image."""
        return (len(times) - 1) * self._per_step + 1

    def within(self, nfe: int) -> Self:
        """Itself with what it takes from the evaluations that are allowed."""
        return self

    def least(self, model: Any, t_min: float, t_max: float) -> int:
        """The fewest evaluations that bring a state from ``t_max`` to an image."""
        return segments(model, t_min, t_max) * self._per_step + 1

    def span(self, model: Model, nfe: int, t_min: float, t_max: float | None) -> float:
        """The first time, T where none is given; what cannot be done is refused."""
        T = model.T
        top = T if t_max is None else float(t_max)
        if not 0 < t_min < top <= T:
            raise ValueError(f"times must obey 0 < t_min < t_max ≤ T = {T:g}, got t_min = {t_min:g}, t_max = {top:g}")
        least = self.least(model, t_min, top)
        if nfe < least:
            raise ValueError(
                f"{nfe} evaluations are too few for {self.name!r} on this process; expected at least {least}"
            )
        return top

    def times(self, model: Any, nfe: int, *, t_min: float, t_max: float | None = None) -> Tensor:
        """Descending times t_max … t_min, float64: as many as ``evaluations`` of the network allow."""
        top = self.span(model, nfe, t_min, t_max)
        return grid_between(model, self.grid, (nfe - 1) // self._per_step, t_min, top, rho=self.rho)

    @torch.no_grad()
    def run(
        self,
        model: Any,
        start: Tensor,
        times: Tensor,
        source: Randomness,
        *,
        callback: Callable[[int, Tensor], None] | None = None,
    ) -> Tensor:
        """Images E[x0 | u] [B, C, H, W] from states ``start`` at times[0] along descending ``times`` (float64).

        ``callback(i, u)`` sees the state u [B, C, H, W] at times[i+1] after every step.
        """
        times = times.to(start.device, torch.float64)
        if times.dim() != 1 or len(times) == 0 or bool((times[1:] >= times[:-1]).any()):
            raise ValueError("times must be a vector that descends")
        self.check_model(model.learns)
        z, step = model.to_coordinates(start), self.stepper(model, source)
        for i, (t, after) in enumerate(pairwise(torch.split(times, 1))):
            z = step(z, t, after)
            if self.corrector > 0:
                z = langevin(model, z, after, self.corrector, source)
            if callback:
                callback(i, model.from_coordinates(z))
        if float(times[-1]) == 0.0:
            return cast(Tensor, model.from_coordinates(z))
        return denoised(model, z, times[-1:])

    @property
    def _per_step(self) -> int:
        return self.cost + (self.corrector > 0)

    def __str__(self) -> str:
        return notation.write(self.name, self)
