"""Edge-preserving noise backward (Vandersanden et al. 2024): the Gaussian posterior of each pixel.

With ẑ0 = (z − n(z, t))/√ᾱ_t, and b_s, b_t from the edges G(ẑ0) of the prediction, a² = ᾱ_t/ᾱ_s, q = b_t² − a²b_s²:

    z_s | z_t, ẑ0 ~ N( (a b_s² z_t + √ᾱ_s q ẑ0)/b_t²,  q b_s²/b_t² )

at every pixel; for G = 0 this is the ancestral step of Ho et al. 2020. It holds for any s < t, so that levels may be
left out. At s = 0 it is ẑ0 itself. Two things differ from the authors' code: b_s has the λ of s, not that of t, as
the formula says, and the last step, to level 0, is made.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from anisodiff import notation
from anisodiff.models.scaled_noise import ScaledNoiseModel
from anisodiff.noise import Randomness, white
from anisodiff.processes import EdgePreserving, Process
from anisodiff.samplers.base import Step
from anisodiff.samplers.own_times import OwnTimes, levels_down
from anisodiff.stencils.gradient import per_sample


def posterior(process: EdgePreserving, z: Tensor, image: Tensor, t: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [B, C, H, W] and variance [B, 1, H, W] of z at ``after`` given z at ``t`` and the image (both [1])."""
    edges = process.edges(image)
    now, below = process.scale(edges, t).square(), process.scale(edges, after).square()
    kept, kept_below = (per_sample(process.kept(x), z) for x in (t, after))
    gained = now - kept / kept_below * below
    mean = (kept / kept_below).sqrt() * below / now * z + kept_below.sqrt() * gained / now * image
    return mean, gained * below / now


@dataclass(frozen=True, kw_only=True)
class Posterior(OwnTimes):
    """``posterior``: one evaluation a step; as many of the levels as there are evaluations."""

    name: ClassVar[str] = "posterior"
    cost: ClassVar[int] = 1
    serves: ClassVar[tuple[type[Process], ...]] = (EdgePreserving,)

    clip: bool = False
    """Predictions are cut to [−1, 1] (Ho et al. 2020; the authors do so at the end only)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "clip", notation.switch(self.clip, "clip"))

    def down(self, model: ScaledNoiseModel, nfe: int, top: float, t_min: float) -> Tensor:
        """Evenly among the levels."""
        return levels_down(model.process.levels, top, nfe)

    def stepper(self, model: ScaledNoiseModel, source: Randomness) -> Step:
        """A draw of the posterior."""

        def step(z: Tensor, t: Tensor, after: Tensor) -> Tensor:
            image = model.image(z, t)
            mean, variance = posterior(model.process, z, image.clamp(-1, 1) if self.clip else image, t, after)
            return mean + variance.clamp(min=0).sqrt() * white(z, source)

        return step
