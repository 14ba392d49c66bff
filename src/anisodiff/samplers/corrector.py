"""One step of the unadjusted Langevin algorithm (paper, Sec. 3.4), which approximately preserves p_t.

    u ← u + ε s(u, t) + √(2ε) ξ,      ε = 2 (r ‖ξ‖/‖s‖)²

r is the signal-to-noise ratio of the step. The norms are those of one sample, so that samples are independent of each
other. Song et al. 2021 take the mean norms of a batch (``norms="batch"``).

The stationary distribution is not exactly p_t. A fixed ε has an error of O(ε). An ε that depends on the state slows
the dynamics where ‖s‖ is large: for r → 0 the stationary density is ∝ p_t·‖s‖². An ε that depends on ξ has E[‖ξ‖²
ξξᵀ] = (d + 2)·1, not E‖ξ‖²·1 = d·1. Each of the last two increases the variance of a Gaussian in d dimensions by a
factor of about 1 + 2/d: together 0.13% for 32² in color.
"""

from typing import Literal

from torch import Tensor

from anisodiff.models.score import ScoreModel
from anisodiff.noise import Randomness, white

Norms = Literal["sample", "batch"]


def langevin(
    model: ScoreModel, z: Tensor, t: Tensor, ratio: float, rng: Randomness, *, norms: Norms = "sample"
) -> Tensor:
    """One step at time ``t`` [1] on states ``z`` in the DCT, which preserves norms and white noise; NFE 1."""
    score = model.score(z, t)
    xi = white(z, rng)
    step = 2.0 * ratio**2 * _square(xi, norms) / _square(score, norms)
    return z + step * score + (2.0 * step).sqrt() * xi


def _square(x: Tensor, norms: Norms) -> Tensor:
    square = x.square().sum((-3, -2, -1), keepdim=True)
    return square if norms == "sample" else square.sqrt().mean().square()
