"""Processes that are linear and Gaussian: `ve`, `heat`, and everything with λ1 = λ2 = ∞ on the flux stencil.

In the DCT every mode is an independent Ornstein–Uhlenbeck process (z_k: frequency, q_k: noise spectrum):

    Û_t | Û_s ~ N( e^{−ΔA z_k} Û_s,  q_k φ_k(s,t) )

so mean, covariance and samples are exact for any s < t, without time steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anisodiff.dct import dct2, idct2
from anisodiff.equation import Equation
from anisodiff.gaussian_kernel import grid_decay, grid_variance
from anisodiff.noise import Randomness, white
from anisodiff.processes.base import Process, check_increasing
from anisodiff.processes.spde import describe
from anisodiff.tensors import check_images, check_state


@dataclass(frozen=True, kw_only=True)
class ClosedForm(Process):
    """dU = α1 ΔU dt + α2 dW, solved exactly."""

    equation: Equation

    def __post_init__(self) -> None:
        if not self.equation.linear:
            raise ValueError(
                f"step 'exact' needs an isotropic drift, got drift_anisotropy={self.equation.drift_anisotropy}; "
                "set drift_anisotropy='infinite' or step='exponential'"
            )
        if not self.equation.additive:
            raise ValueError(
                f"step 'exact' needs isotropic noise, got noise_anisotropy={self.equation.noise_anisotropy}; "
                "set noise_anisotropy='infinite' or step='tamed'"
            )

    @property
    def T(self) -> float:
        """The horizon."""
        return self.equation.T

    def mean(self, u: Tensor, s: Tensor | float, t: Tensor | float) -> Tensor:
        """E[U_t | U_s = u], [B, C, H, W]."""
        begin, end = self._interval(u, s, t)
        return idct2(grid_decay(self.equation, begin, end, u) * dct2(u))

    def variance(self, u: Tensor, s: Tensor | float, t: Tensor | float) -> Tensor:
        """Eigenvalues of Cov[U_t | U_s] in DCT order, [B, 1, H, W]; ``u`` gives shape, precision and place."""
        begin, end = self._interval(u, s, t)
        return grid_variance(self.equation, begin, end, u)

    def transition(self, u: Tensor, s: Tensor | float, t: Tensor | float, generator: Randomness = None) -> Tensor:
        """A draw of U_t given U_s = ``u``, exact for any s ≤ t (each one time, or one per sample)."""
        begin, end = self._interval(u, s, t)
        mode = grid_decay(self.equation, begin, end, u) * dct2(u)
        if self.equation.noisy:  # white noise is white in every orthonormal basis
            mode = mode + self.variance(u, begin, end).sqrt() * white(u, generator)
        return idct2(mode)

    def simulate(self, x0: Tensor, t: Tensor | float, generator: Randomness = None) -> Tensor:
        """A draw of U_t given U_0 = ``x0``."""
        return self.transition(check_images(x0), 0.0, t, generator)

    def trajectory(self, x0: Tensor, times: Sequence[float], generator: Randomness = None) -> list[Tensor]:
        """One path at increasing ``times``."""
        check_increasing(times)
        states, u, s = [], check_images(x0), 0.0
        for t in times:
            u, s = self.transition(u, s, t, generator), t
            states.append(u)
        return states

    def identity(self) -> dict[str, Any]:
        """The equation; it is solved exactly on the flux stencil."""
        return {**describe(self.equation), "stencil": "flux", "step": "exact"}

    def _interval(self, u: Tensor, s: Tensor | float, t: Tensor | float) -> tuple[Tensor, Tensor]:
        check_state(u)
        begin = self.equation.times(s, len(u), u.device)
        end = self.equation.times(t, len(u), u.device)
        if bool((end < begin).any()):
            raise ValueError("a transition goes forward in time: expected s ≤ t for every sample")
        return begin, end
