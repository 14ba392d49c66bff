"""Posterior sampling given the predicted image, per pixel, for processes that scale the image and add noise.

With ẑ0 = (z − n(z, t))/√ᾱ_t and the noise b_s, b_t that the process adds to ẑ0 (for edge-preserving noise,
Vandersanden et al. 2024, from the edges G(ẑ0) of the prediction), a² = ᾱ_t/ᾱ_s, q = b_t² − a²b_s²:

    z_s | z_t, ẑ0 ~ N( (a b_s² z_t + √ᾱ_s q ẑ0)/b_t²,  q b_s²/b_t² )

If b does not depend on the pixel, this is the ancestral step of Ho et al. 2020. It holds for any s < t, so levels may
be skipped. At s = 0 it is ẑ0. Two differences from the public code of edge-preserving noise: b_s has λ(s), as in the
formula, not λ(t), and the last step to level 0 is made.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from anisodiff import notation
from anisodiff.models.scaled_noise import ScaledNoiseModel
from anisodiff.noise import Randomness, white
from anisodiff.processes.conditional import ScaledGaussian
from anisodiff.samplers.base import Memory, OwnTimes, levels_down
from anisodiff.stencils.gradient import per_sample


def posterior(process: ScaledGaussian, z: Tensor, image: Tensor, t: Tensor, t_next: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [B, C, H, W] and variance [B, 1, H, W] of z at ``t_next`` given z at ``t`` and the image (both [1])."""
    now, below = process.signed_spread(image, t).square(), process.signed_spread(image, t_next).square()
    kept, kept_below = (per_sample(process.signal_power(x), z) for x in (t, t_next))
    gained = now - kept / kept_below * below
    mean = (kept / kept_below).sqrt() * below / now * z + kept_below.sqrt() * gained / now * image
    return mean, gained * below / now


@dataclass(frozen=True, kw_only=True)
class Posterior(OwnTimes):
    """``posterior``: NFE 1 per step, at nearly equidistant levels."""

    name: ClassVar[str] = "posterior"
    cost: ClassVar[int] = 1
    requires: ClassVar[frozenset[str]] = frozenset({"noise", "scaled_signal", "levels"})

    clip: bool = False
    """Clip ẑ0 to [−1, 1] at every step (Ho et al. 2020); edge-preserving noise does so at the end only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "clip", notation.switch(self.clip, "clip"))

    def descending_times(self, model: Any, nfe: int, top: float, t_min: float) -> Tensor:
        return levels_down(model.process.levels, top, nfe)

    def step(
        self, model: ScaledNoiseModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        image = model.image(z, t)
        mean, variance = posterior(model.process, z, image.clamp(-1, 1) if self.clip else image, t, t_next)
        return mean + variance.clamp(min=0).sqrt() * white(z, rng)
