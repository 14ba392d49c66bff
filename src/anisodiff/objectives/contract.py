"""What an objective is: draws (u_t, targets) whose conditional means are the score and the projected drift."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from anisodiff.equation import Equation
from anisodiff.noise import Randomness
from anisodiff.processes import SPDE, ClosedForm


@dataclass(frozen=True)
class Draw:
    """States with regression targets, all [B, C, H, W]."""

    state: Tensor
    """u_t."""
    score: Tensor
    """What is regressed on: of an `Objective` its mean given u_t is ∇ log p_t(u_t); see `target`."""
    drift: Tensor | None
    """Its mean given u_t is the drift of the process; None where the drift is linear and known."""

    @property
    def target(self) -> Tensor:
        """`score` under the name that fits methods which learn something else."""
        return self.score


class Regression(ABC):
    """Draws for training: what the trainer needs, whatever is learned."""

    @property
    @abstractmethod
    def learns_drift(self) -> bool:
        """Whether the drift is a second thing to learn."""

    @abstractmethod
    def snap_to_grid(self, t: Tensor) -> Tensor:
        """The times that are learned in place of ``t``: those the objective has low variance at."""

    @abstractmethod
    def draw(self, x0: Tensor, t: Tensor, source: Randomness) -> Draw:
        """States at times ``t`` ∈ (0, T] (float64 [B]) from images ``x0``; randomness from ``source``."""

    @abstractmethod
    def pairs(self, x0: Tensor, t: Tensor, source: Randomness) -> Draw:
        """Two states of every image, [2B, C, H, W]: one path, which ends with ξ in row 2i and with −ξ in row 2i + 1.

        Each of the two has the law of `draw`. A target is −C^{−1/2}ξ, so in the mean over a pair what a gradient owes
        to the sign of ξ cancels: the part that grows as a piece gets shorter.
        """


class Objective(Regression):
    """Draws whose targets are those of a score."""

    @property
    def plain_noise(self) -> bool:
        """Whether the noise is added to what the drift has made of the image, and not moved by it."""
        return False

    @property
    def gaussian(self) -> bool:
        """Whether a state is m(x0) + n, m a function of its image and n Gaussian, and its drift linear in m and n."""
        return False

    @property
    @abstractmethod
    def equation(self) -> Equation:
        """The equation whose score is learned."""

    @property
    @abstractmethod
    def edges(self) -> tuple[float, ...]:
        """Times 0 … T across which the drift may jump: tables never interpolate over them."""

    @property
    @abstractmethod
    def phases(self) -> Tensor:
        """Places in a cell between two edges where tables are measured, in (0, 1], ascending to 1; float64 [P]."""

    def known_noise(self, t: Tensor, like: Tensor) -> Tensor | None:
        """Variance of the modes of a state at ``t`` [1] given its image, [H, W]; None where it has to be measured."""
        return None


LONGEST = 1.8
"""Longest correlation of the noise, in pixels: the finest modes then have e^{−4ℓ²} = 2e-6 of the coarsest's noise."""

ProcessT = TypeVar("ProcessT", SPDE, ClosedForm)


@dataclass(frozen=True)
class OfProcess(Objective, Generic[ProcessT]):
    """An objective that holds the process it draws from."""

    process: ProcessT

    def __post_init__(self) -> None:
        """A score exists only where there is noise, and where it is correlated only if that can be undone."""
        length = self.equation.correlation_length
        if not self.equation.noisy:
            raise ValueError("a score needs noise: set intensity > 0")
        if length > 0 and not isinstance(self.process, ClosedForm) and not self.process.step.plain_noise:
            raise ValueError(
                f"a score needs white noise with step='{self.process.step}', got correlation_length={length:g}; "
                "set correlation_length = 0, or step='signal'"
            )
        if length > LONGEST:
            raise ValueError(
                f"correlation_length = {length:g} leaves the finest modes no noise to learn a score from; "
                f"expected at most {LONGEST:g}"
            )

    @property
    def equation(self) -> Equation:
        """The process's equation."""
        return self.process.equation
