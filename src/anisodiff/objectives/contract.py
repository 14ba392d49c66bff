"""What an objective is: draws (u_t, targets) whose conditional means are the score and the projected drift."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from anisodiff.equation import Equation
from anisodiff.noise import Randomness


@dataclass(frozen=True)
class Draw:
    """States with regression targets, all [B, C, H, W]."""

    state: Tensor
    """u_t."""
    score: Tensor
    """Its mean given u_t is ∇ log p_t(u_t)."""
    drift: Tensor | None
    """Its mean given u_t is the drift of the process; None where the drift is linear and known."""


def require_white_noise(equation: Equation) -> None:
    """A score exists only where there is noise, and Q⁻¹ is unbounded unless it is white."""
    if not equation.noisy or equation.correlation_length > 0:
        raise ValueError("a score needs white noise: set intensity > 0 and correlation_length = 0")


class Objective(ABC):
    """Draws for training. Subclasses are frozen dataclasses that hold a process."""

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
    def learns_drift(self) -> bool:
        """Whether the drift is a second thing to learn."""

    @abstractmethod
    def settle(self, t: Tensor) -> Tensor:
        """The times that are learned in place of ``t``: those the objective has low variance at."""

    @abstractmethod
    def draw(self, x0: Tensor, t: Tensor, source: Randomness) -> Draw:
        """States at times ``t`` ∈ (0, T] (float64 [B]) from images ``x0``; randomness from ``source``."""
