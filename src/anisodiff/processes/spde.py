"""The general equation: any coefficients, either stencil, either time step."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.checks import check_state
from anisodiff.equation import Equation
from anisodiff.integrators import Exponential, Frozen, TimeStep
from anisodiff.noise import white
from anisodiff.processes.base import Process, check_increasing
from anisodiff.stencils import STENCILS


def describe(equation: Equation) -> dict[str, Any]:
    """The equation's part of an identity, in the notation that reads back to it."""
    return {
        "diffusivity": str(equation.diffusivity),
        "intensity": str(equation.intensity),
        "drift_anisotropy": str(equation.drift_anisotropy),
        "noise_anisotropy": str(equation.noise_anisotropy),
        "correlation_length": equation.correlation_length,
        "T": equation.T,
    }


@dataclass(frozen=True, kw_only=True)
class SPDE(Process):
    """dU = ∇·(g1∇U) dt + g2 dW, discretised by ``stencil`` in space and ``step`` in time."""

    equation: Equation
    stencil: str = "flux"
    step: TimeStep = Exponential()

    def __post_init__(self) -> None:
        if self.stencil not in STENCILS:
            raise ValueError(f"unknown stencil {self.stencil!r}; {notation.nearest(str(self.stencil), STENCILS)}")
        self.step.check(self.equation, self.stencil)

    @property
    def T(self) -> float:
        """The horizon."""
        return self.equation.T

    def simulate(self, x0: Tensor, t: Tensor | float, generator: torch.Generator | None = None) -> Tensor:
        """A draw of U_t given U_0 = ``x0``; samples whose time has come wait (they move by steps of length 0)."""
        u = check_state(x0)
        t = self.equation.times(t, len(u), u.device)
        last = float(t.max()) if len(u) else 0.0  # looked at once, before the first step
        for node, (s, e) in enumerate(pairwise(self.step.nodes(self.equation))):
            if s >= last:
                break
            frozen = self.step.freeze(self.equation, STENCILS[self.stencil], u, node)
            u = frozen.advance(u, white(u, generator), torch.full_like(t, s), t.clamp(s, e))
        return u

    def trajectory(
        self, x0: Tensor, times: Sequence[float], generator: torch.Generator | None = None
    ) -> list[Tensor]:
        """One path at increasing ``times``. What a node froze stays frozen across the times looked at in between."""
        u, now, states = check_state(x0), 0.0, list[Tensor]()
        check_increasing(times)
        for t in times:
            self.equation.times(t, len(u), u.device)
        for node, e in enumerate(self.step.nodes(self.equation)[1:]):
            if len(states) == len(times):
                break
            frozen = self.step.freeze(self.equation, STENCILS[self.stencil], u, node)
            final = e == self.T
            for t in times[len(states) :]:
                if t >= e and not final:
                    break
                u, now = self._move(frozen, u, now, t, generator), t
                states.append(u)
            if not final:
                u, now = self._move(frozen, u, now, e, generator), e
        return states

    def _move(self, frozen: Frozen, u: Tensor, s: float, t: float, generator: torch.Generator | None) -> Tensor:
        if t == s:
            return u
        when = torch.tensor([s, t], dtype=torch.float64, device=u.device)[:, None].expand(2, len(u))
        return frozen.advance(u, white(u, generator), when[0], when[1])

    def identity(self) -> dict[str, Any]:
        """Equation, stencil and time step."""
        return {**describe(self.equation), "stencil": self.stencil, "step": str(self.step)}
