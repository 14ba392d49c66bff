"""One step of the unadjusted Langevin algorithm, which leaves p_t nearly as it is (paper, backward pass).

    u ← u + ε s(u, t) + √(2ε) ξ,      ε = 2 (r ‖ξ‖/‖s‖)²

with norms over one sample's own elements, so that the step of a sample depends on no other. r is the
signal-to-noise ratio of the step. Song et al. 2021 take the mean norms of a batch (``norms="batch"``).

What it leaves is not quite p_t, however many steps are made. A step of fixed ε is wrong by O(ε). A step that depends
on the state slows the walk where ‖s‖ is large: for r → 0 its law is p_t·‖s‖² (normalized); one that depends on ξ has
E[‖ξ‖² ξξᵀ] = d + 2 where E‖ξ‖² = d: too warm. Each makes a Gaussian too wide by 2/d in the mean over its d numbers:
together 0.13 % for 32² in color, much for toys.
"""

from typing import Literal

from torch import Tensor

from anisodiff.models.score import ScoreModel
from anisodiff.noise import Randomness, white

Norms = Literal["sample", "batch"]


def langevin(
    model: ScoreModel, z: Tensor, t: Tensor, ratio: float, rng: Randomness, *, norms: Norms = "sample"
) -> Tensor:
    """One step at time ``t`` [1] on centered DCT states [B, C, H, W] (norms and white noise are those of pixels)."""
    score = model.score(z, t)
    xi = white(z, rng)
    step = 2.0 * ratio**2 * _square(xi, norms) / _square(score, norms)
    return z + step * score + (2.0 * step).sqrt() * xi


def _square(x: Tensor, norms: Norms) -> Tensor:
    square = x.square().sum((-3, -2, -1), keepdim=True)
    return square if norms == "sample" else square.sqrt().mean().square()
