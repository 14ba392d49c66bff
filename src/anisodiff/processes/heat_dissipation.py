"""Inverse heat dissipation (Rissanen et al. 2023): a deterministic blur with a small amount of noise.

    Û_k = e^{−f²σ_B(k)²/2}·x̂0 + σ ξ̂,      f² = (πn1/H)² + (πn2/W)²,      k = 1 … K levels,  t = k/K

in the orthonormal DCT-II, with blur widths σ_B log-spaced from 0.5 to 24 pixels (32²); level 0 is the image. Images
are in [0, 1], as in the paper. Given the image, the noise of different levels is independent. The prior is the
distribution of blurred training images (`simulate`).

The paper leaves open, and it is settled here: between levels ln σ_B is interpolated; below level 1 blur and noise
rise linearly from 0 (training and sampling use no such time); the largest σ_B is 4·√size above 32 pixels, which gives
the published 32 for 64² and 64 for 256², and ¾·size below; 400 levels from 256 pixels on.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from anisodiff.dct import dct2, idct2
from anisodiff.noise import Randomness, white
from anisodiff.processes.conditional import ConditionalGaussian, check_numbers, levels_of
from anisodiff.stencils.gradient import per_sample
from anisodiff.tensors import highest_precision


@dataclass(frozen=True, kw_only=True)
class HeatDissipation(ConditionalGaussian):
    """K levels of blur with white noise of constant σ."""

    name: ClassVar[str] = "heat-dissipation"
    own_prior: ClassVar[str] = "simulate"

    levels: int = 200
    """K."""
    blur_min: float = 0.5
    """σ_B of level 1, in pixels."""
    blur_max: float = 24.0
    """σ_B of level K."""
    noise: float = 0.01
    """σ, for images in [0, 1]."""

    def __post_init__(self) -> None:
        ranges = {"levels": (2.0, 1e5), "blur_min": (1e-3, 1e4), "blur_max": (1e-3, 1e4), "noise": (1e-6, 1.0)}
        check_numbers(self, ranges, whole=("levels",))
        if not self.blur_min < self.blur_max:
            raise ValueError(
                f"{self.name}: expected blur_min < blur_max, got {self.blur_min:g} and {self.blur_max:g}"
            )

    @staticmethod
    def sized(size: int) -> dict[str, Any]:
        blur = 0.75 * size if size <= 32 else 4.0 * math.sqrt(size)
        return {"blur_max": blur, "levels": 200 if size < 256 else 400}

    def width(self, t: Tensor) -> Tensor:
        """σ_B at times ``t``, [B]."""
        level = t * self.levels
        part = (level - 1).clamp(min=0) / (self.levels - 1)
        grown = self.blur_min * (self.blur_max / self.blur_min) ** part
        return torch.where(level < 1, self.blur_min * level, grown)

    def decay(self, t: Tensor, like: Tensor) -> Tensor:
        """e^{−f²σ_B²/2} on the DCT grid of ``like`` [B, C, H, W]: [B, 1, H, W]."""
        exponent = 0.5 * self.width(t).square()[:, None]

        def axis(n: int) -> Tensor:
            f = math.pi * torch.arange(n, dtype=highest_precision(t.device), device=t.device) / n
            return torch.exp(-exponent * f.square())

        rows, columns = (axis(n) for n in like.shape[-2:])
        return (rows[:, :, None] * columns[:, None, :])[:, None].to(like.dtype)

    def mean(self, x0: Tensor, t: Tensor) -> Tensor:
        return idct2(self.decay(t, x0) * dct2(x0))

    def spread(self, x0: Tensor, t: Tensor) -> Tensor:
        """σ from the first level on, [B, 1, 1, 1]."""
        return per_sample(self.noise * (t * self.levels).clamp(max=1), x0)

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset({"levels"})

    def snap_to_grid(self, t: Tensor) -> Tensor:
        return levels_of(t, self.levels)

    def target(self, x0: Tensor, t: Tensor, xi: Tensor, state: Tensor) -> Tensor:
        """m_{k−1}(x0) − u_k."""
        below = (t - 1 / self.levels).clamp(min=0)
        return self.mean(x0, below) - state

    @property
    def path_obstacle(self) -> str:
        return "its levels have independent noise: there is no reverse SDE"

    def continued(self, x0: Tensor, u: Tensor, s: Tensor, t: Tensor, rng: Randomness) -> Tensor:
        """Independent of U_s given the image."""
        return self.mean(x0, t) + self.spread(x0, t) * white(x0, rng)
