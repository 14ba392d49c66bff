"""The general equation: any coefficients, either stencil, either time step."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from anisodiff import estimation, notation
from anisodiff.cartoons import Filter
from anisodiff.equation import Equation
from anisodiff.estimation import EstimationSettings
from anisodiff.integrators import Exponential, Frozen, LocalKernel, TamedEuler, TimeStep, node_of, node_times
from anisodiff.integrators.signal import FrozenImage
from anisodiff.noise import Randomness, white
from anisodiff.priors import normal_density
from anisodiff.processes.base import EquationProcess, TrainingPair, check_increasing
from anisodiff.statistics import SpectralStatistics
from anisodiff.stencils import STENCILS
from anisodiff.tensors import check_images, check_state, highest_precision, to_device_async


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


def describe_condition(condition: Filter | None) -> dict[str, Any]:
    """The condition's part of an identity."""
    return {} if condition is None else {"condition": str(condition)}


@dataclass(frozen=True, kw_only=True)
class SPDE(EquationProcess):
    """dU = ∇·(g1∇U) dt + g2 dW, discretized by ``stencil`` in space and ``step`` in time."""

    equation: Equation
    stencil: str = "flux"
    step: TimeStep = Exponential()
    condition: Filter | None = None

    def __post_init__(self) -> None:
        if self.stencil not in STENCILS:
            raise ValueError(f"unknown stencil {self.stencil!r}; {notation.nearest(str(self.stencil), STENCILS)}")
        self.step.check(self.equation, self.stencil)

    @property
    def taming(self) -> TamedEuler | None:
        taming: TamedEuler | None = self.step.taming
        return taming

    @property
    def plain_noise(self) -> bool:
        return self.step.plain_noise

    @property
    def learns_drift(self) -> bool:
        return self.equation.smooths

    @property
    def gaussian_given_image(self) -> bool:
        """Whether a state is m(x0) + n, n Gaussian, and its drift linear in m and n: one piece from 0 to T."""
        return len(self.step.nodes(self.equation)) == 2

    def snap_to_grid(self, t: Tensor) -> Tensor:
        return self.step.snap_to_grid(self.equation, t)

    def compiled(self) -> "SPDE":
        found = dataclasses.replace(self, step=self.step.compiled())
        return found if self._size is None else found.made_for(*self._size)

    def check_learnable(self) -> None:
        super().check_learnable()
        if self.equation.correlation_length > 0 and not self.step.plain_noise:
            raise ValueError(
                f"a score needs white noise with step='{self.step}', got correlation_length="
                f"{self.equation.correlation_length:g}; set correlation_length = 0, or step='signal'"
            )

    def draw(self, x0: Tensor, t: Tensor | float, rng: Randomness = None) -> Tensor:
        """A draw of U_t given U_0 = ``x0``; samples whose time has come wait (they move by steps of length 0)."""
        u = check_images(x0)
        t = self.equation.times(t, len(u), u.device)
        last = float(t.max()) if len(u) else 0.0  # looked at once, before the first step
        pieces = [(s, e) for s, e in pairwise(self.step.nodes(self.equation)) if s < last]
        walked = self.step.integrate(self.equation, self.stencil, u, t, len(pieces), rng)
        if walked is not None:
            return walked
        for node, (s, e) in enumerate(pieces):
            frozen = self.step.freeze(self.equation, STENCILS[self.stencil], u, node)
            u = frozen.advance(u, self._noise(u, rng), torch.full_like(t, s), t.clamp(s, e))
        return u

    def training_pair(self, x0: Tensor, t: Tensor, rng: Randomness = None) -> TrainingPair:
        """Local denoising score matching (Singhal et al. 2024): the kernel of the last piece of a simulated path.

            simulate to the last node s before t;   u_t ~ N(m, C);   E[−C^{−1/2} ξ | u_t] = ∇ log p_t(u_t)

        With the exponential step the pieces are windows with a frozen operator, with tamed Euler–Maruyama single
        steps, with `signal` one piece from the image to t; all are exact for the process they belong to. The drift
        inside a piece follows what was frozen at its start: the reverse drift needs its projection E[b_frozen | u_t].
        """
        kernel = self._last_kernel(x0, t, rng)
        drift = kernel.drift if self.learns_drift else None
        return TrainingPair(kernel.state, kernel.score, drift, condition=self.condition_of(x0))

    @property
    def path_obstacle(self) -> str:
        if not self.equation.noisy:
            return "there is no noise"
        if self.taming is None and self.gaussian_given_image:
            return ""
        return (
            f"with step='{self.step}' the kernel of a state is known from its last node, not from its image, as with "
            "step='exact', 'signal' or 'exponential(windows=1)'"
        )

    def draw_with_density(self, x0: Tensor, t: float, rng: Randomness = None) -> tuple[Tensor, Tensor]:
        """Where an operator shapes the noise, ln det C is an estimate without bias (`Frozen.log_determinant`)."""
        if self.path_obstacle:
            return super().draw_with_density(x0, t, rng)
        xi, probe = white(x0, rng), white(x0, rng).sign()
        begin, end = (self.equation.times(value, len(x0), x0.device) for value in (0.0, t))
        frozen = self.step.freeze(self.equation, STENCILS[self.stencil], x0, 0)
        return frozen.advance(x0, xi, begin, end), normal_density(xi, frozen.log_determinant(probe, begin, end))

    def _last_kernel(self, x0: Tensor, t: Tensor, rng: Randomness) -> LocalKernel:
        """Every sample is simulated to the last node before its own t; from there the Gaussian kernel is known."""
        u = check_state(x0)
        when = self.equation.times(t, len(u), torch.device("cpu"))
        nodes = node_times(self.equation, self.step, torch.device("cpu"))
        node = node_of(nodes, when)
        if bool((node < 0).any()):
            raise ValueError("the kernel of the last piece needs t > 0 for every sample")
        last, at = int(node.max()), node_times(self.equation, self.step, u.device)
        when, node = to_device_async(when, u.device), to_device_async(node, u.device)
        xi = white(u, rng)  # drawn first: what a sample meets must not depend on how far its neighbors go
        begin = self.step.integrate(self.equation, self.stencil, u, at[node], last, rng)
        if begin is None:
            begin = u
            for k in range(last):
                frozen = self.step.freeze(self.equation, STENCILS[self.stencil], u, k)
                u = frozen.across(u, white(u, rng))
                begin = torch.where((node == k + 1)[:, None, None, None], u, begin)
        frozen = self.step.freeze(self.equation, STENCILS[self.stencil], begin, node)
        return frozen.kernel(begin, xi, at[node], when)

    def _estimate(self, images: Tensor, settings: EstimationSettings) -> SpectralStatistics:
        """From noise-free paths where the state is Gaussian given its image, else from two simulations of each."""
        self.check_learnable()
        return estimation.of_spde(dataclasses.replace(self, condition=None), images, settings)

    def path(self, x0: Tensor, times: Sequence[float], rng: Randomness = None) -> list[Tensor]:
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
                u, now = self._move(frozen, u, now, t, rng), t
                states.append(u)
            if not final:
                u, now = self._move(frozen, u, now, e, rng), e
        return states

    def _move(self, frozen: Frozen, u: Tensor, s: float, t: float, rng: Randomness) -> Tensor:
        if t == s:
            return u
        begin, end = (torch.full((1,), value, dtype=highest_precision(u.device), device=u.device) for value in (s, t))
        return frozen.advance(u, self._noise(u, rng), begin, end)

    @property
    def _noise_known(self) -> bool:
        return self.plain_noise

    def _noise_at(self, like: Tensor, t: float, rng: Randomness) -> Tensor:
        begin, end = (self.equation.times(value, len(like), like.device) for value in (0.0, t))
        frozen = self.step.freeze(self.equation, STENCILS[self.stencil], like, 0)
        assert isinstance(frozen, FrozenImage)
        return frozen.noise(white(like, rng), begin, end)

    def _noise(self, u: Tensor, rng: Randomness) -> Tensor | None:
        return white(u, rng) if self.equation.noisy else None

    def identity(self) -> dict[str, Any]:
        """In the notation that reads back to it."""
        return {
            **describe(self.equation),
            "stencil": self.stencil,
            "step": str(self.step),
            **describe_condition(self.condition),
        }
