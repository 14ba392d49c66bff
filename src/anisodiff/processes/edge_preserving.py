"""Edge-preserving noise (Vandersanden et al. 2024): less noise at the edges of the image at early times.

For v = 2u − 1 in [−1, 1], levels t = k/N:

    V_t = √ᾱ_t·v0 + b_t(v0) ⊙ ξ,      b_t = √(1 − ᾱ_t) / [(1 − τ)·√(1 + G/λ) + τ]
    G = |Sobel(Σ_c v0)|²/max,    λ(t) = λmin + (λmax − λmin)·t/t_Φ,    τ(t) = sin²(πt/2)

ᾱ_t = Π(1 − β_k), β linear from 1e-4 to 0.02 (Ho et al. 2020). G is normalized by the maximum of each image, not of
the batch. b_t² − (ᾱ_t/ᾱ_s) b_s² ≥ 0 at every pixel, because both factors of b_t increase: so a Markov chain with
these marginals exists.

The paper leaves open, and it is settled here: N = 750, as in the authors' public configuration; λ stays linear after
t_Φ, as in their code; images in [−1, 1]; zero padding, as in their code, so the border counts as an edge
(``boundary=replicate``: it does not); between levels ln ᾱ is interpolated; a constant image has G = 0.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from anisodiff import notation
from anisodiff.noise import Randomness, white
from anisodiff.processes.conditional import ScaledGaussian, check_numbers, levels_of
from anisodiff.stencils.gradient import per_sample
from anisodiff.tensors import cached, to_device

BOUNDARIES = {"zeros": "constant", "replicate": "replicate"}


@cached
def _log_kept(levels: int, beta_min: float, beta_max: float, device: torch.device) -> Tensor:
    """ln ᾱ_k, k = 0 … N, float64 [N + 1]."""
    beta = torch.linspace(beta_min, beta_max, levels, dtype=torch.float64)
    return to_device(torch.cat([beta.new_zeros(1), torch.log1p(-beta).cumsum(0)]), device)


@dataclass(frozen=True, kw_only=True)
class EdgePreserving(ScaledGaussian):
    """DDPM with noise damped by the gradients of the image, isotropic at T."""

    name: ClassVar[str] = "edge-preserving"

    levels: int = 750
    """N."""
    beta_min: float = 1e-4
    beta_max: float = 0.02
    lambda_min: float = 1e-4
    """λ at t = 0."""
    lambda_max: float = 0.1
    """λ at t = transition."""
    transition: float = 0.5
    """t_Φ."""
    boundary: str = "zeros"

    def __post_init__(self) -> None:
        ranges = {
            "levels": (2.0, 1e5), "beta_min": (1e-8, 0.5), "beta_max": (1e-8, 0.5), "lambda_min": (1e-12, 1e12),
            "lambda_max": (1e-12, 1e12), "transition": (1e-3, 1.0),
        }  # fmt: skip
        check_numbers(self, ranges, whole=("levels",))
        if self.beta_min > self.beta_max or self.lambda_min > self.lambda_max:
            raise ValueError(
                f"{self.name}: β and λ must not fall, got β {self.beta_min:g} → {self.beta_max:g} and "
                f"λ {self.lambda_min:g} → {self.lambda_max:g}"
            )
        notation.check_choice(self.boundary, BOUNDARIES, "boundary")

    @property
    def capabilities(self) -> frozenset[str]:
        return super().capabilities | {"levels"}

    def snap_to_grid(self, t: Tensor) -> Tensor:
        return levels_of(t, self.levels)

    def signal_power(self, t: Tensor) -> Tensor:
        """ᾱ at times ``t``, [B] float64."""
        table = _log_kept(self.levels, self.beta_min, self.beta_max, t.device)
        level = t * self.levels
        left = level.floor().long().clamp(0, self.levels - 1)
        return torch.lerp(table[left], table[left + 1], level - left).exp()

    def edges(self, image: Tensor) -> Tensor:
        """G ∈ [0, 1] of ``image`` [B, C, H, W] in [−1, 1]: [B, 1, H, W]."""
        gray = F.pad(image.sum(1, keepdim=True), (1, 1, 1, 1), mode=BOUNDARIES[self.boundary])
        across = gray[..., 2:] - gray[..., :-2]
        down = gray[..., 2:, :] - gray[..., :-2, :]
        across = across[..., :-2, :] + 2 * across[..., 1:-1, :] + across[..., 2:, :]
        down = down[..., :-2] + 2 * down[..., 1:-1] + down[..., 2:]
        square = across.square() + down.square()
        return square / square.amax((-2, -1), keepdim=True).clamp(min=torch.finfo(image.dtype).tiny)

    def scale(self, edges: Tensor, t: Tensor) -> Tensor:
        """b_t from G [B, 1, H, W]."""
        lam = self.lambda_min + (self.lambda_max - self.lambda_min) * t / self.transition
        turn = per_sample(torch.sin(0.5 * torch.pi * t).square(), edges)
        damped = (1 - turn) * torch.sqrt(1 + edges / per_sample(lam, edges)) + turn
        return per_sample((1 - self.signal_power(t)).sqrt(), edges) / damped

    def signed_spread(self, image: Tensor, t: Tensor) -> Tensor:
        """b_t."""
        return self.scale(self.edges(image), t)

    def spread(self, x0: Tensor, t: Tensor) -> Tensor:
        """½ b_t, [B, 1, H, W]."""
        return 0.5 * self.scale(self.edges(2 * x0 - 1), t)

    @property
    def path_obstacle(self) -> str:
        return "its noise depends on the image, so the model's reverse SDE cannot have the same noise"

    def continued(self, x0: Tensor, u: Tensor, s: Tensor, t: Tensor, rng: Randomness) -> Tensor:
        """U_t = ½ + a(U_s − ½) + ½√(b_t² − a²b_s²) ξ, a² = ᾱ_t/ᾱ_s."""
        edges = self.edges(2 * x0 - 1)
        gain = per_sample((self.signal_power(t) / self.signal_power(s)).sqrt(), x0)
        gained = self.scale(edges, t).square() - gain.square() * self.scale(edges, s).square()
        return 0.5 + gain * (u - 0.5) + 0.5 * gained.clamp(min=0).sqrt() * white(x0, rng)
