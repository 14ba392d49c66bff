"""What the baselines are taught: states of a process that is Gaussian given the image, each with its own target.

| process | target | Draws |
|---|---|---|
| flow matching | dU_t/dt = ½(1 − σmin)ξ − (x0 − ½) | `Velocity` |
| heat dissipation | m_{k−1}(x0) − u_k: what is missing to the image one level less blurred | `Deblurring` |
| edge-preserving noise | s_t(x0) ⊙ ξ: the noise as it was added | `ScaledNoise` |

All in the units of images. The network learns the mean of the target given u_t.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from anisodiff.noise import Randomness, white
from anisodiff.objectives.contract import Draw, Regression
from anisodiff.processes.conditional import Conditional, levels_of
from anisodiff.processes.edge_preserving import EdgePreserving
from anisodiff.processes.flow_matching import FlowMatching
from anisodiff.processes.heat_dissipation import HeatDissipation
from anisodiff.tensors import send

ProcessT = TypeVar("ProcessT", bound=Conditional)


@dataclass(frozen=True)
class OfImage(Regression, Generic[ProcessT]):
    """Draws of a process that is Gaussian given the image; what to regress on is left open."""

    process: ProcessT

    @abstractmethod
    def drawn(self, x0: Tensor, t: Tensor, xi: Tensor) -> Draw:
        """States at ``t`` (float64 [B], where the images are) with the noise ``xi``, and their targets."""

    @property
    def learns_drift(self) -> bool:
        """Never."""
        return False

    def draw(self, x0: Tensor, t: Tensor, source: Randomness) -> Draw:
        """States at times ``t`` from images ``x0``."""
        return self.drawn(x0, send(t, x0.device), white(x0, source))

    def pairs(self, x0: Tensor, t: Tensor, source: Randomness) -> Draw:
        """The last piece is the whole path: ±ξ about one mean."""
        xi = white(x0, source)
        both = torch.stack([xi, -xi], 1).flatten(0, 1)
        return self.drawn(x0.repeat_interleave(2, 0), send(t, x0.device).repeat_interleave(2), both)


@dataclass(frozen=True)
class Velocity(OfImage[FlowMatching]):
    """The velocity of the straight path."""

    def snap_to_grid(self, t: Tensor) -> Tensor:
        """Any time will do."""
        return t

    def drawn(self, x0: Tensor, t: Tensor, xi: Tensor) -> Draw:
        """A place on the path from ``x0`` to ``xi``."""
        state = self.process.mean(x0, t) + self.process.spread(x0, t) * xi
        return Draw(state, self.process.velocity(x0, xi), None)


@dataclass(frozen=True)
class Deblurring(OfImage[HeatDissipation]):
    """The step to the next lower level."""

    def snap_to_grid(self, t: Tensor) -> Tensor:
        """The level that t lies below."""
        return levels_of(t, self.process.levels)

    def drawn(self, x0: Tensor, t: Tensor, xi: Tensor) -> Draw:
        """Level k, and what is missing to level k − 1."""
        state = self.process.mean(x0, t) + self.process.spread(x0, t) * xi
        below = (t - 1 / self.process.levels).clamp(min=0)
        return Draw(state, self.process.mean(x0, below) - state, None)


@dataclass(frozen=True)
class ScaledNoise(OfImage[EdgePreserving]):
    """The noise with its scale."""

    def snap_to_grid(self, t: Tensor) -> Tensor:
        """The level that t lies below."""
        return levels_of(t, self.process.levels)

    def drawn(self, x0: Tensor, t: Tensor, xi: Tensor) -> Draw:
        """The state, and the noise in it."""
        noise = self.process.spread(x0, t) * xi
        return Draw(self.process.mean(x0, t) + noise, noise, None)
