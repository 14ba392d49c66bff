"""The general equation: any coefficients, either stencil, either time step."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.equation import Equation
from anisodiff.integrators import Exponential, Frozen, LocalKernel, TimeStep, node_of, node_times
from anisodiff.noise import Randomness, white
from anisodiff.processes.base import Process, check_increasing
from anisodiff.stencils import STENCILS
from anisodiff.tensors import check_images, check_state, send


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
    """dU = ∇·(g1∇U) dt + g2 dW, discretized by ``stencil`` in space and ``step`` in time."""

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

    def simulate(self, x0: Tensor, t: Tensor | float, generator: Randomness = None) -> Tensor:
        """A draw of U_t given U_0 = ``x0``; samples whose time has come wait (they move by steps of length 0)."""
        u = check_images(x0)
        t = self.equation.times(t, len(u), u.device)
        last = float(t.max()) if len(u) else 0.0  # looked at once, before the first step
        for node, (s, e) in enumerate(pairwise(self.step.nodes(self.equation))):
            if s >= last:
                break
            frozen = self.step.freeze(self.equation, STENCILS[self.stencil], u, node)
            u = frozen.advance(u, self._noise(u, generator), torch.full_like(t, s), t.clamp(s, e))
        return u

    def local(self, x0: Tensor, t: Tensor, source: Randomness = None, *, pairs: bool = False) -> LocalKernel:
        """A draw of U_t, t ∈ (0, T] (float64 [B], on any device), with the kernel of its last piece node → t.

        Every sample is simulated to the last node before its own t; from there the Gaussian kernel is known. With
        ``pairs`` every path ends twice, with ξ and with −ξ: [2B, C, H, W], rows 2i and 2i + 1 belong together.
        """
        u = check_state(x0)
        when = self.equation.times(t, len(u), torch.device("cpu"))
        nodes = node_times(self.equation, self.step, torch.device("cpu"))
        node = node_of(nodes, when)
        if bool((node < 0).any()):
            raise ValueError("the kernel of the last piece needs t > 0 for every sample")
        last, at = int(node.max()), node_times(self.equation, self.step, u.device)
        when, node = send(when, u.device), send(node, u.device)
        xi = white(u, source)  # drawn first: what a sample meets must not depend on how far its neighbors go
        begin = u
        for k in range(last):
            frozen = self.step.freeze(self.equation, STENCILS[self.stencil], u, k)
            u = frozen.across(u, white(u, source))
            begin = torch.where((node == k + 1)[:, None, None, None], u, begin)
        if pairs:
            xi = torch.stack([xi, -xi], 1).flatten(0, 1)
            begin, node, when = (x.repeat_interleave(2, 0) for x in (begin, node, when))
        frozen = self.step.freeze(self.equation, STENCILS[self.stencil], begin, node)
        return frozen.kernel(begin, xi, at[node], when)

    def trajectory(self, x0: Tensor, times: Sequence[float], generator: Randomness = None) -> list[Tensor]:
        """One path at increasing ``times``. What a node froze stays frozen across the times looked at in between."""
        u, now, states = check_images(x0), 0.0, list[Tensor]()
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

    def _move(self, frozen: Frozen, u: Tensor, s: float, t: float, generator: Randomness) -> Tensor:
        if t == s:
            return u
        begin, end = (torch.full((1,), value, dtype=torch.float64, device=u.device) for value in (s, t))
        return frozen.advance(u, self._noise(u, generator), begin, end)

    def _noise(self, u: Tensor, source: Randomness) -> Tensor | None:
        return white(u, source) if self.equation.noisy else None

    def identity(self) -> dict[str, Any]:
        """Equation, stencil and time step."""
        return {**describe(self.equation), "stencil": self.stencil, "step": str(self.step)}
