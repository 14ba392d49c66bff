"""Local denoising score matching (Singhal et al. 2024): the kernel of the last piece of a simulated path.

    simulate to the last node s before t;  u_t ~ N(m, C);  target −C^{−1/2} ξ,  E[target | u_t] = ∇ log p_t(u_t)

With the exponential step the pieces are windows with a frozen operator, with tamed Euler–Maruyama single steps; both
are exact for the chain they belong to. The drift inside a piece follows what was frozen at s, so the reverse drift
needs its projection E[b_frozen | u_t], the second target.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff.equation import Equation
from anisodiff.integrators import TamedEuler
from anisodiff.noise import Randomness
from anisodiff.objectives.contract import Draw, Objective, require_white_noise
from anisodiff.processes.spde import SPDE


@dataclass(frozen=True)
class Local(Objective):
    """``window`` with the exponential step, ``one step`` with the tamed one."""

    process: SPDE

    def __post_init__(self) -> None:
        require_white_noise(self.equation)

    @property
    def equation(self) -> Equation:
        """The process's equation."""
        return self.process.equation

    @property
    def edges(self) -> tuple[float, ...]:
        """Window edges; single steps are so short that their jumps need no edges: twenty cells."""
        if isinstance(self.process.step, TamedEuler):
            return tuple(self.process.T * k / 20 for k in range(21))
        return self.process.step.nodes(self.equation)

    @property
    def learns_drift(self) -> bool:
        """Where there is a drift at all."""
        return self.equation.smooths

    def settle(self, t: Tensor) -> Tensor:
        """With single steps the end of the step t lies in: the last piece is a whole one. With windows any time."""
        step = self.process.step
        if not isinstance(step, TamedEuler):
            return t
        return (torch.ceil(t / step.dt - 1e-6) * step.dt).clamp(min=step.dt, max=self.process.T)

    def draw(self, x0: Tensor, t: Tensor, source: Randomness) -> Draw:
        """States with the score of their last piece and the drift frozen in it."""
        state, score, drift = self.process.local(x0, t, source)
        return Draw(state, score, drift if self.learns_drift else None)
