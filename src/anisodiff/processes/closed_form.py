"""The linear case λ1 = λ2 = ∞ on the flux stencil: `ve` (paper, Eq. 8), `heat` (Eq. 12).

    dU = α1 ΔU dt + α2 dW,      Û_t | Û_s ~ N( e^{−ΔA z_k} Û_s,  q_k φ_k(s,t) )

In the DCT every mode is an independent Ornstein–Uhlenbeck process (z_k: frequency, q_k: noise spectrum), so mean,
covariance and samples are exact for any s < t, without time steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from anisodiff import estimation
from anisodiff.cartoons import Filter
from anisodiff.dct import dct2, idct2
from anisodiff.equation import Equation
from anisodiff.estimation import EstimationSettings
from anisodiff.gaussian_kernel import grid_decay, grid_variance
from anisodiff.noise import Randomness, Seed, source_of, white
from anisodiff.priors import normal_density
from anisodiff.processes.base import EquationProcess, TrainingPair, check_increasing
from anisodiff.processes.spde import describe, describe_condition
from anisodiff.statistics import SpectralStatistics
from anisodiff.tensors import check_images, check_state, to_device_async, to_highest_precision


@dataclass(frozen=True, kw_only=True)
class ClosedForm(EquationProcess):
    """dU = α1 ΔU dt + α2 dW, solved exactly."""

    equation: Equation
    condition: Filter | None = None

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
    def capabilities(self) -> frozenset[str]:
        return super().capabilities | {"closed_form"}

    def mean(self, u: Tensor, s: Tensor | float, t: Tensor | float) -> Tensor:
        """E[U_t | U_s = u], [B, C, H, W]."""
        begin, end = self._interval(u, s, t)
        return idct2(grid_decay(self.equation, begin, end, u) * dct2(u))

    def variance(self, u: Tensor, s: Tensor | float, t: Tensor | float) -> Tensor:
        """Eigenvalues of Cov[U_t | U_s] in DCT order, [B, 1, H, W]; ``u`` gives shape, dtype and device."""
        begin, end = self._interval(u, s, t)
        return grid_variance(self.equation, begin, end, u)

    def transition(self, u: Tensor, s: Tensor | float, t: Tensor | float, rng: Seed = None) -> Tensor:
        """A draw of U_t given U_s = ``u``, exact for any s ≤ t (each one time, or one per sample)."""
        begin, end = self._interval(u, s, t)
        mode = grid_decay(self.equation, begin, end, u) * dct2(u)
        if self.equation.noisy:  # ξ is white in the DCT, too
            mode = mode + self.variance(u, begin, end).sqrt() * white(u, source_of(rng))
        return idct2(mode)

    def draw(self, x0: Tensor, t: Tensor | float, rng: Randomness = None) -> Tensor:
        return self.transition(check_images(x0), 0.0, t, rng)

    def path(self, x0: Tensor, times: Sequence[float], rng: Randomness = None) -> list[Tensor]:
        check_increasing(times)
        states, u, s = [], check_images(x0), 0.0
        for t in times:
            u, s = self.transition(u, s, t, rng), t
            states.append(u)
        return states

    def training_pair(self, x0: Tensor, t: Tensor, rng: Randomness = None) -> TrainingPair:
        """Denoising score matching with the kernel from 0 to t: the target is −ξ̂/√(q φ) in the DCT."""
        t, xi = to_device_async(t, x0.device), white(x0, rng)
        begin = t.new_zeros(t.shape)
        root = grid_variance(self.equation, begin, t, x0).sqrt()
        mode = grid_decay(self.equation, begin, t, x0) * dct2(x0) + root * xi
        return TrainingPair(idct2(mode), idct2(-xi / root), condition=self.condition_of(x0))

    @property
    def path_obstacle(self) -> str:
        return "" if self.equation.noisy else "there is no noise"

    def draw_with_density(self, x0: Tensor, t: float, rng: Randomness = None) -> tuple[Tensor, Tensor]:
        xi, variance = white(x0, rng), self.variance(x0, 0.0, t)
        state = self.mean(x0, 0.0, t) + idct2(variance.sqrt() * xi)
        return state, normal_density(xi, x0.shape[1] * to_highest_precision(variance).log().sum((-3, -2, -1)))

    def _estimate(self, images: Tensor, settings: EstimationSettings) -> SpectralStatistics:
        self.check_learnable()
        return estimation.exactly(self.equation, images, settings)

    def identity(self) -> dict[str, Any]:
        return {**describe(self.equation), "stencil": "flux", "step": "exact", **describe_condition(self.condition)}

    @property
    def _noise_known(self) -> bool:
        return True

    def _noise_at(self, like: Tensor, t: float, rng: Randomness) -> Tensor:
        return idct2(self.variance(like, 0.0, t).sqrt() * white(like, rng))

    def _interval(self, u: Tensor, s: Tensor | float, t: Tensor | float) -> tuple[Tensor, Tensor]:
        check_state(u)
        begin = self.equation.times(s, len(u), u.device)
        end = self.equation.times(t, len(u), u.device)
        if bool((end < begin).any()):
            raise ValueError("a transition goes forward in time: expected s ≤ t for every sample")
        return begin, end
