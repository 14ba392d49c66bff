"""Local denoising score matching (Singhal et al. 2024): the kernel of the last piece of a simulated path.

    simulate to the last node s before t;  u_t ~ N(m, C);  target −C^{−1/2} ξ,  E[target | u_t] = ∇ log p_t(u_t)

With the exponential step the pieces are windows with a frozen operator, with tamed Euler–Maruyama single steps, with
`signal` there is one piece from the image to t; all are exact for the process they belong to. The drift inside a
piece follows what was frozen at its start, so the reverse drift needs its projection E[b_frozen | u_t], the second
target.
"""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff.integrators import LocalKernel, TamedEuler
from anisodiff.noise import Randomness
from anisodiff.objectives.contract import Draw, OfProcess
from anisodiff.objectives.phases import from_the_start, step_phases, table_phases
from anisodiff.processes.spde import SPDE

_CELLS = 20


@dataclass(frozen=True)
class Simulated(OfProcess[SPDE]):
    """States of a simulated path with the drift frozen in its last piece; which score to regress on is left open."""

    @abstractmethod
    def target(self, x0: Tensor, t: Tensor, piece: LocalKernel) -> Tensor:
        """The score's target for states ``piece`` that came from images ``x0`` at times ``t`` [B]; [B, C, H, W]."""

    @property
    def edges(self) -> tuple[float, ...]:
        """Where the drift jumps; single steps are so short that they need no edges: twenty cells of whole steps."""
        nodes = self.process.step.jumps(self.equation)
        if not isinstance(self.process.step, TamedEuler):
            return nodes
        return (*nodes[: -1 : self._together], nodes[-1])

    @property
    def phases(self) -> Tensor:
        """In a window from where the target's variance diverges on; of single steps the ends."""
        if isinstance(self.process.step, TamedEuler):
            return step_phases(self._together)
        phases = table_phases(len(self.edges) - 1)
        return from_the_start(phases) if self.process.step.plain_noise else phases

    @property
    def _together(self) -> int:
        """Single steps in a cell, two at least, so that there is something to interpolate between."""
        return max(2, -(-(len(self.process.step.nodes(self.equation)) - 1) // _CELLS))

    @property
    def learns_drift(self) -> bool:
        """Where there is a drift at all."""
        return self.equation.smooths

    @property
    def plain_noise(self) -> bool:
        """As the step has it."""
        return self.process.step.plain_noise

    @property
    def gaussian(self) -> bool:
        """Where the path has a single piece."""
        return len(self.process.step.nodes(self.equation)) == 2

    def known_noise(self, t: Tensor, like: Tensor) -> Tensor | None:
        """The step's, if it knows."""
        return self.process.step.noise(self.equation, t, like)

    def snap_to_grid(self, t: Tensor) -> Tensor:
        """With single steps the end of the step t lies in: the last piece is a whole one. With windows any time."""
        step = self.process.step
        if not isinstance(step, TamedEuler):
            return t
        return (torch.ceil(t / step.dt - 1e-6) * step.dt).clamp(min=step.dt, max=self.process.T)

    def draw(self, x0: Tensor, t: Tensor, source: Randomness) -> Draw:
        """States with the score's target and the drift frozen in their last piece."""
        return self._drawn(x0, t, self.process.local(x0, t, source))

    def pairs(self, x0: Tensor, t: Tensor, source: Randomness) -> Draw:
        """The path up to the last node is simulated once, its last piece is drawn twice."""
        piece = self.process.local(x0, t, source, pairs=True)
        return self._drawn(x0.repeat_interleave(2, 0), t.repeat_interleave(2), piece)

    def _drawn(self, x0: Tensor, t: Tensor, piece: LocalKernel) -> Draw:
        return Draw(piece.state, self.target(x0, t, piece), piece.drift if self.learns_drift else None)


@dataclass(frozen=True)
class Local(Simulated):
    """``window`` with the exponential step, ``one step`` with the tamed one."""

    def target(self, x0: Tensor, t: Tensor, piece: LocalKernel) -> Tensor:
        """The score of the last piece."""
        return piece.score
