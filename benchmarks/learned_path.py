"""A learned forward process: the bound of `path_bound` as a differentiable function of the smoothing.

Time is the noise level η = ln σ. An image is smoothed by the operator of its own edges, and white noise is added:

    U = M + σξ,      dM/dη = a(η) L M,   M = x0 at σ_min,      L = L(w(G_ρ∗x0; λ)) of the flux stencil

a ≥ 0, in pixels² per e-fold of the noise, is piecewise linear; a = 0 is `ve`. Given x0, a reverse SDE has these
marginals for every noise g² > 0 per mode. Here

    g² = 2σ² p,      p = 1 + a w̄ z            w̄, the reference: the isotropic part of the smoothing, Δ ~ −w̄z

With λ = ∞ and w̄ = 1 the drift is a function of the state, as in `heat`; with w̄ = 0 the equation is that of the step
`signal`. After eliminating ξ, ½‖r − r_θ‖²/g² of Girsanov's theorem is

    path = ∫ Σ_k p_k/σ² E(Ŷ_k − Ŷ_θ,k)² dη,      Ŷ = M̂ − a R̂/(2p),      R̂ = (L M)^ + w̄ z M̂

The target Y of the denoiser is x0 for `ve`. The state at σ_min is x0 + σ_min ξ for all smoothings, and so is the last
step of the bound; path + KL(q(U_T | x0) ‖ prior) is what the smoothing can change.

**Optimum.** With the best denoiser, E[Y | u], and the best prior, the expected sum is at least the mutual information
of the path and x0, which is at least that of the state at σ_min and x0; both are equalities if the drift is a
function of the state. So with an exact denoiser no smoothing beats `ve`: the gradient is zero at a = 0, and zero
everywhere for λ = ∞, w̄ = 1. Only the error of a network can favor another process.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anisodiff.dct import dct2, frequencies, idct2
from anisodiff.integrators import chebyshev
from anisodiff.stencils.flux import apply_edges, edge_weights

_TOLERANCE = 1e-6


def _frequencies(like: Tensor) -> Tensor:
    return frequencies(like.shape[-2], like.shape[-1], like.dtype, like.device)


def _per_sample(x: Tensor) -> Tensor:
    return x[:, None, None, None]


@dataclass(frozen=True)
class PathPoint:
    """States at given noise levels with the target of the denoiser, [B, C, H, W] each."""

    state: Tensor
    mean: Tensor
    """M."""
    target: Tensor
    """Y."""
    weight: Tensor
    """p/σ² of the modes, [B, 1, H, W]."""

    def nats(self, denoised: Tensor) -> Tensor:
        """The integrand of the path term for a prediction ``denoised`` [B, C, H, W], per unit of ln σ, [B]."""
        return (self.weight * dct2(self.target - denoised).square()).sum((-3, -2, -1))


class SmoothingPath(nn.Module):
    """a(η), λ, ρ² and w̄ as parameters, from ``sigma_min`` to ``sigma_max``; a at ``nodes`` equidistant ln σ."""

    levels: Tensor
    """ln σ of the nodes."""

    def __init__(
        self, sigma_min: float, sigma_max: float, *, nodes: int = 9, rate: float = 0.0, edge: float = 0.05,
        blur: float = 0.0, reference: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        if nodes < 2:
            raise ValueError(f"nodes: got {nodes}, expected 2 or more")
        low, high = math.log(sigma_min), math.log(sigma_max)
        self.register_buffer("levels", torch.linspace(low, high, nodes, dtype=torch.float64))
        self.rate = nn.Parameter(torch.full((nodes,), float(rate)))
        self.log_edge = nn.Parameter(torch.tensor(math.log(edge)))
        self.blur_variance = nn.Parameter(torch.tensor(float(blur**2)))
        """ρ²: the gradient with respect to ρ vanishes at 0."""
        self.reference = nn.Parameter(torch.tensor(float(reference)))

    @torch.no_grad()
    def project(self) -> None:
        """Project the parameters onto a ≥ 0, ρ² ≥ 0 and 0 ≤ w̄ ≤ 1 after a step of an optimizer."""
        self.rate.clamp_(min=0)
        self.blur_variance.clamp_(min=0)
        self.reference.clamp_(0, 1)

    @property
    def span(self) -> float:
        """ln(σ_max/σ_min)."""
        return float(self.levels[-1] - self.levels[0])

    def smoothing(self, level: Tensor) -> tuple[Tensor, Tensor]:
        """a and A = ∫a at ``level`` = ln σ [B]."""
        gap = self.levels[1] - self.levels[0]
        position = ((level - self.levels[0]) / gap).to(self.rate.dtype)
        left = position.floor().long().clamp(0, len(self.levels) - 2)
        x, below, above = position - left, self.rate[left], self.rate[left + 1]
        passed = nn.functional.pad(0.5 * (self.rate[1:] + self.rate[:-1]).cumsum(0), (1, 0))[left]
        return below + x * (above - below), gap * (passed + x * (below + 0.5 * x * (above - below)))

    def kept(self, level: Tensor, like: Tensor) -> Tensor:
        """e^{−A w̄ z}, the damping of a mode at ``level``, [B, 1, H, W]; exact for λ = ∞ and w̄ = 1."""
        return torch.exp(-_per_sample(self.smoothing(level)[1]) * self.reference * _frequencies(like))

    def smoothed(self, x0: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """M = e^{A L} x0 and L M of images ``x0`` [B, C, H, W] for A = ``total`` [B], by Chebyshev polynomials."""
        blurred = idct2(torch.exp(-0.5 * self.blur_variance * _frequencies(x0)) * dct2(x0))
        weights = edge_weights(blurred, torch.exp(-self.log_edge))
        with torch.no_grad():  # resolve the value and its derivative in A
            z = chebyshev.nodes(chebyshev.FINE - 1, x0.device)
            decay = torch.exp(-total.max().to(z) * z)
            degree = chebyshev.degree_for(torch.stack([decay, z * decay]), _TOLERANCE)
        z = chebyshev.nodes(degree, x0.device)
        c = chebyshev.coefficients(torch.exp(-total.to(z)[:, None] * z)).mT[..., None, None, None].to(x0.dtype)
        before, now, mean = chebyshev.start(weights, x0, c)
        for j in range(2, degree + 1):
            following, mean = chebyshev.recur(weights, before, now, mean, c[j])
            before, now = now, following
        return mean, apply_edges(weights, mean)

    def point(
        self, x0: Tensor, level: Tensor, xi: Tensor, smoothing: tuple[Tensor, Tensor] | None = None
    ) -> PathPoint:
        """States with white noise ``xi`` [B, C, H, W] at ``level`` [B]; ``smoothing``: (a, A), by default of a(η)."""
        rate, total = self.smoothing(level) if smoothing is None else smoothing
        mean, slope = self.smoothed(x0, total)
        sigma, linear = _per_sample(level.exp().to(x0.dtype)), self.reference * _frequencies(x0)
        p = 1 + _per_sample(rate) * linear
        rest = dct2(slope) + linear * dct2(mean)
        target = mean - idct2(0.5 * _per_sample(rate) / p * rest)
        return PathPoint(mean + sigma * xi, mean, target, p / sigma.square())

    def start(self, x0: Tensor, center: Tensor, power: Tensor) -> Tensor:
        """KL(q(U_T | x0) ‖ prior), [B]; the prior has the mean ``center`` [C, H, W] and the modes' variance
        σ_max² + ``power``·e^{−2 A_T w̄ z}, ``power`` [H, W] or [C, H, W] that of the images' modes."""
        level = self.levels[-1:]
        noise = (2 * level).exp().to(x0.dtype)
        total = self.smoothing(level)[1].expand(len(x0))
        ratio = power * self.kept(level, x0)[0].square() / noise
        off = dct2(self.smoothed(x0, total)[0] - center).square() / noise
        return 0.5 * ((off - ratio) / (1 + ratio) + torch.log1p(ratio)).sum((-3, -2, -1))
