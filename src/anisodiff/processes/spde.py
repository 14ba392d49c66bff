"""The discretized SPDE (paper, Eq. 7): any coefficients, stencil and time step."""

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
    """The keys of the equation in an identity."""
    return {
        "diffusivity": str(equation.diffusivity),
        "intensity": str(equation.intensity),
        "drift_anisotropy": str(equation.drift_anisotropy),
        "noise_anisotropy": str(equation.noise_anisotropy),
        "correlation_length": equation.correlation_length,
        "T": equation.T,
    }


def describe_condition(condition: Filter | None) -> dict[str, Any]:
    """The key of the condition in an identity."""
    return {} if condition is None else {"condition": str(condition)}


@dataclass(frozen=True, kw_only=True)
class SPDE(EquationProcess):
    """dU = ∇·(g1∇U) dt + g2 dW, discretized by ``stencil`` in space and ``step`` in time."""

    equation: Equation
    stencil: str = "flux"
    step: TimeStep = Exponential()
    condition: Filter | None = None

    def __post_init__(self) -> None:
        notation.check_choice(self.stencil, STENCILS, "stencil")
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
        """Whether U_t = m(x0) + n with Gaussian n, and a drift linear in m and n: there is one kernel from 0 to T."""
        return len(self.step.nodes(self.equation)) == 2

    def snap_to_grid(self, t: Tensor) -> Tensor:
        return self.step.snap_to_grid(self.equation, t)

    def compiled(self) -> "SPDE":
        result = dataclasses.replace(self, step=self.step.compiled())
        return result if self._size is None else result.made_for(*self._size)

    def check_learnable(self) -> None:
        super().check_learnable()
        if self.equation.correlation_length > 0 and not self.step.plain_noise:
            raise ValueError(
                f"a score needs white noise with step='{self.step}', got correlation_length="
                f"{self.equation.correlation_length:g}; set correlation_length = 0, or step='signal'"
            )

    def draw(self, x0: Tensor, t: Tensor | float, rng: Randomness = None) -> Tensor:
        """A draw of U_t given U_0 = ``x0``; a sample that has reached its time makes steps of length 0."""
        u = check_images(x0)
        t = self.equation.times(t, len(u), u.device)
        last = float(t.max()) if len(u) else 0.0  # the only synchronization with the device
        steps = [(s, e) for s, e in pairwise(self.step.nodes(self.equation)) if s < last]
        fused = self.step.integrate(self.equation, self.stencil, u, t, len(steps), rng)
        if fused is not None:
            return fused
        for node, (s, e) in enumerate(steps):
            frozen = self._freeze(u, node)
            u = frozen.advance(u, self._noise(u, rng), torch.full_like(t, s), t.clamp(s, e))
        return u

    def training_pair(self, x0: Tensor, t: Tensor, rng: Randomness = None) -> TrainingPair:
        """Local denoising score matching (Singhal et al. 2024), with the kernel from the last node before t:

            simulate to the last node s before t;   u_t = m + C^{1/2} ξ;   E[−C^{−1/2} ξ | u_t] = ∇ log p_t(u_t)

        The kernel is that of a window for the exponential step, of a single step for tamed Euler–Maruyama, and from
        the image to t for `signal`; each is exact for its process. The drift is the one frozen at s; the reverse SDE
        needs its projection E[b_frozen | u_t].
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
            f"with step='{self.step}' only the kernel from the last node is known, not from the image; it is with "
            "step='exact', 'signal' or 'exponential(windows=1)'"
        )

    def draw_with_density(self, x0: Tensor, t: float, rng: Randomness = None) -> tuple[Tensor, Tensor]:
        """With a frozen operator ln det C is an unbiased estimate (`Frozen.log_determinant`)."""
        if self.path_obstacle:
            return super().draw_with_density(x0, t, rng)
        xi, probe = white(x0, rng), white(x0, rng).sign()
        begin, end = (self.equation.times(value, len(x0), x0.device) for value in (0.0, t))
        frozen = self._freeze(x0, 0)
        return frozen.advance(x0, xi, begin, end), normal_density(xi, frozen.log_determinant(probe, begin, end))

    def _last_kernel(self, x0: Tensor, t: Tensor, rng: Randomness) -> LocalKernel:
        """The kernel to t of each sample from the last node before it, after simulation up to that node."""
        u = check_state(x0)
        when = self.equation.times(t, len(u), torch.device("cpu"))
        nodes = node_times(self.equation, self.step, torch.device("cpu"))
        node = node_of(nodes, when)
        if bool((node < 0).any()):
            raise ValueError("a training pair needs t > 0 for every sample")
        last, at = int(node.max()), node_times(self.equation, self.step, u.device)
        when, node = to_device_async(when, u.device), to_device_async(node, u.device)
        xi = white(u, rng)  # drawn first, so that it does not depend on the times of the other samples
        begin = self.step.integrate(self.equation, self.stencil, u, at[node], last, rng)
        if begin is None:
            begin = u
            for k in range(last):
                frozen = self._freeze(u, k)
                u = frozen.across(u, white(u, rng))
                begin = torch.where((node == k + 1)[:, None, None, None], u, begin)
        frozen = self._freeze(begin, node)
        return frozen.kernel(begin, xi, at[node], when)

    def _estimate(self, images: Tensor, settings: EstimationSettings) -> SpectralStatistics:
        self.check_learnable()
        return estimation.of_spde(dataclasses.replace(self, condition=None), images, settings)

    def path(self, x0: Tensor, times: Sequence[float], rng: Randomness = None) -> list[Tensor]:
        """One path at increasing ``times``, which do not change its time steps."""
        u, now, states = check_images(x0), 0.0, list[Tensor]()
        check_increasing(times)
        for t in times:
            self.equation.times(t, len(u), u.device)
        for node, e in enumerate(self.step.nodes(self.equation)[1:]):
            if len(states) == len(times):
                break
            frozen = self._freeze(u, node)
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
        frozen = self._freeze(like, 0)
        assert isinstance(frozen, FrozenImage)
        return frozen.noise(white(like, rng), begin, end)

    def _freeze(self, u: Tensor, node: int | Tensor) -> Frozen:
        return self.step.freeze(self.equation, STENCILS[self.stencil], u, node)

    def _noise(self, u: Tensor, rng: Randomness) -> Tensor | None:
        return white(u, rng) if self.equation.noisy else None

    def identity(self) -> dict[str, Any]:
        return {
            **describe(self.equation),
            "stencil": self.stencil,
            "step": str(self.step),
            **describe_condition(self.condition),
        }
