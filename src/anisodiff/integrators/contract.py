"""What a time step is.

Both of our time steps freeze something at the nodes of a fixed time grid and then move *exactly* until the next
node: tamed Euler–Maruyama freezes drift and noise scale, the exponential step freezes the edge weights. So one
contract serves both, and the piece between two nodes is a Gaussian kernel for both.
"""

from abc import ABC, abstractmethod

from torch import Tensor

from anisodiff.equation import Equation
from anisodiff.stencils import Drift


class Frozen(ABC):
    """What was frozen at a node, and the Gaussian kernel that follows from it until the next node."""

    @abstractmethod
    def advance(self, u: Tensor, xi: Tensor | None, s: Tensor, t: Tensor) -> Tensor:
        """A draw of U_t given U_s = u [B, C, H, W] from white noise ``xi`` (None: the mean); times [B], s ≤ t."""


class TimeStep(ABC):
    """Discretisation in time; subclasses are frozen dataclasses, part of a process's identity."""

    @abstractmethod
    def check(self, equation: Equation, stencil: str) -> None:
        """Refuse a combination this step cannot integrate, naming what to change."""

    @abstractmethod
    def nodes(self, equation: Equation) -> tuple[float, ...]:
        """The time grid 0 = t_0 < … < t_K = T."""

    @abstractmethod
    def freeze(self, equation: Equation, drift: Drift, u: Tensor, node: int) -> Frozen:
        """Freeze the equation at state ``u`` of node number ``node``."""
