"""The forward SPDE (paper, Eq. 3 to 6), independent of its discretization.

    dU = ∇·( g1(t,∇U) ∇U ) dt + g2(t,∇U) dW,      g_i(t,p) = α_i(t)/√(1 + |p/λ_i(t)|²)

on a rectangle with zero-flux boundary, for each channel separately. Space is discretized in `stencils`, time in
`integrators`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.schedules import Constant, Cutoff, Infinite, Pulse, Transition, anisotropy, strength
from anisodiff.tensors import check_times


@dataclass(frozen=True, kw_only=True)
class Equation:
    """The coefficients. Any of them may be given as a number or in the notation of `schedules`."""

    diffusivity: Transition
    """α1, strength of the smoothing drift."""
    intensity: Transition
    """α2, strength of the noise."""
    drift_anisotropy: Transition = Infinite()
    """λ1: gradients far above it stop the smoothing."""
    noise_anisotropy: Transition = Infinite()
    """λ2: gradients far above it stop the noise."""
    correlation_length: float = 0.0
    """ℓ of the noise, in pixels; 0 is white."""
    T: float = 2.0
    """Terminal time: t runs from 0 (data) to T (noise)."""

    def __post_init__(self) -> None:
        for name, check in [
            ("diffusivity", strength),
            ("intensity", strength),
            ("drift_anisotropy", anisotropy),
            ("noise_anisotropy", anisotropy),
        ]:
            object.__setattr__(self, name, check(getattr(self, name), name))
        for name, least in [("correlation_length", "≥"), ("T", ">")]:
            value = notation.number(getattr(self, name), name)
            if not math.isfinite(value) or value < 0 or (least == ">" and value == 0):
                raise ValueError(f"{name} must be finite and {least} 0, got {value:g}")
            object.__setattr__(self, name, value)
        self._check_transitions()

    def _check_transitions(self) -> None:
        if isinstance(self.intensity, Pulse | Cutoff):
            raise ValueError(
                f"intensity must not fade, where there is no noise nothing can be learned, got {self.intensity}; "
                "pulse and cutoff are for the diffusivity"
            )
        if self.smoothing_end is not None and self.smoothing_end >= self.T:
            raise ValueError(
                f"diffusivity: a cutoff ends before T = {self.T:g}, got {self.diffusivity}; a number never ends"
            )
        if isinstance(self.diffusivity, Pulse) and self.diffusivity.width < self.T / 20:
            raise ValueError(
                f"diffusivity: a pulse is resolved from a width of T/20 = {self.T / 20:g} on, got {self.diffusivity}"
            )

    @property
    def smooths(self) -> bool:
        """Whether there is a drift: α1 ≢ 0."""
        return self.diffusivity != Constant(0.0)

    @property
    def smoothing_end(self) -> float | None:
        """The time after which α1 = 0 (`Cutoff`); None if α1 > 0 up to T."""
        return self.diffusivity.jump

    @property
    def noisy(self) -> bool:
        """Whether there is noise: α2 ≢ 0."""
        return self.intensity != Constant(0.0)

    @property
    def linear(self) -> bool:
        """Isotropic drift, λ1 = ∞: linear in u and diagonal in the DCT."""
        return isinstance(self.drift_anisotropy, Infinite) or not self.smooths

    @property
    def additive(self) -> bool:
        """Isotropic noise, λ2 = ∞: g2 does not depend on the state."""
        return isinstance(self.noise_anisotropy, Infinite) or not self.noisy

    def alpha1(self, t: Tensor) -> Tensor:
        """α1(t)."""
        return self.diffusivity.value(t, self.T)

    def alpha2(self, t: Tensor) -> Tensor:
        """α2(t)."""
        return self.intensity.value(t, self.T)

    def inv_lambda1(self, t: Tensor) -> Tensor:
        """1/λ1(t)."""
        return self.drift_anisotropy.inverse(t, self.T)

    def inv_lambda2(self, t: Tensor) -> Tensor:
        """1/λ2(t)."""
        return self.noise_anisotropy.inverse(t, self.T)

    def smoothing(self, s: Tensor, t: Tensor) -> Tensor:
        """ΔA = ∫_s^t α1."""
        return self.diffusivity.integral(s, t, self.T)

    def times(self, t: Tensor | float, batch: int, device: torch.device) -> Tensor:
        """``t`` as float64 [batch]; refuses times outside [0, T] and NaN."""
        return check_times(t, self.T, batch, device)
