"""The predictor–corrector sampler of Song et al. 2021 for `ve`: NFE 2N for N noise levels.

On the geometric grid σ_N > … > σ_1 of noise levels, σ_0 = 0, from i = N to 1:

    corrector   u ← u + ε s(u, σ_i) + √(2ε) ξ,      ε = 2 (r‖ξ‖/‖s‖)²      (Langevin, mean norms of the batch)
    predictor   u ← u + (σ_i² − σ_{i−1}²) s(u, σ_i) + √(σ_i² − σ_{i−1}²) ξ      (reverse diffusion)

The last predictor adds no noise: it is Tweedie's formula. σ is the standard deviation of the noise in the state,
which is σ(t) in the paper and √(σ(t)² − σ(0)²) for our `ve`: the same levels at other times. With mean norms a sample
depends slightly on the rest of its batch; ``norms=sample`` avoids this. The published setting for CIFAR-10 is N =
1000, r = 0.16, σ_1 = 0.01: ``pc`` with NFE 2000.
"""

from dataclasses import dataclass
from typing import ClassVar, get_args

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.equation import Equation
from anisodiff.gaussian_kernel import quadrature
from anisodiff.models.score import ScoreModel
from anisodiff.noise import Randomness, white
from anisodiff.samplers.base import Memory, OwnTimes
from anisodiff.samplers.corrector import Norms, langevin

_HALVINGS = 60


def noise_variance(equation: Equation, t: Tensor) -> Tensor:
    """∫_0^t α2², [B]."""
    return quadrature(equation, torch.zeros_like(t), t)[0].sum(1)


def times_of(equation: Equation, variance: Tensor) -> Tensor:
    """The inverse of `noise_variance`, float64 [B], by bisection."""
    low, high = torch.zeros_like(variance), torch.full_like(variance, equation.T)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        below = noise_variance(equation, middle) < variance
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)


def reverse_diffusion(model: ScoreModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness) -> Tensor:
    """û' at ``t_next`` from û at ``t`` (both [1]), without noise if ``t_next`` is 0; NFE 1."""
    gained = (noise_variance(model.equation, t) - noise_variance(model.equation, t_next)).to(z.dtype)
    noise = gained.sqrt() * (t_next > 0).to(z.dtype)
    return z + gained * model.score(z, t) + noise * white(z, rng)


@dataclass(frozen=True, kw_only=True)
class PredictorCorrector(OwnTimes):
    """``pc(snr=0.16, norms=batch)``: NFE 2 for each noise level."""

    name: ClassVar[str] = "pc"
    cost: ClassVar[int] = 2
    requires: ClassVar[frozenset[str]] = frozenset(
        {"closed_form", "no_drift", "isotropic_noise", "white_noise", "score"}
    )

    snr: float = 0.16
    """r, the corrector's signal-to-noise ratio."""
    sigma_min: float = 0.01
    """The lowest noise level σ_1; at least that of t_min."""
    norms: Norms = "batch"
    """Norms of the corrector: mean over the batch, or of each sample."""

    def __post_init__(self) -> None:
        super().__post_init__()
        notation.check_number(self, "snr", 1e-6, 1.0)
        notation.check_number(self, "sigma_min", 1e-9, 1e6)
        notation.check_choice(self.norms, get_args(Norms), "norms")

    @property
    def depends_on_batch(self) -> bool:
        return self.norms == "batch"

    def descending_times(self, model: ScoreModel, nfe: int, top: float, t_min: float) -> Tensor:
        equation = model.equation
        ends = noise_variance(equation, torch.tensor([t_min, top], dtype=torch.float64)).sqrt()
        low, high = float(ends[0].clamp(min=self.sigma_min)), float(ends[1])
        count = nfe // self.cost if low < high else 1
        sigma = high * (low / high) ** (torch.arange(count, dtype=torch.float64) / max(1, count - 1))
        times = times_of(equation, sigma.square())
        times[0] = top
        return torch.cat([times, times.new_zeros(1)])

    def step(
        self, model: ScoreModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        z = langevin(model, z, t, self.snr, rng, norms=self.norms)
        return reverse_diffusion(model, z, t, t_next, rng)
