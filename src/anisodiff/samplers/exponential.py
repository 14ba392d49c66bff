"""The reverse process, its linear part solved exactly per frequency.

With B = e^{−w z ∫α1} over [t', t] and Q = ∫α2² e^{−2 w z ∫α1} dr, the decay and the noise of the linear reference
dû = −α1 w_k z_k û dt + α2 dŴ between t' < t, one step down is the Gaussian bridge plus the network's residuals F, G:

    û' = (B V'/V) û + (Q/√(N V))·√S'·(F − (d/c) G) + √R ξ̂

The first factor equals (1 − Q/V)/B; the second is (Q/B)·c, since a linear process has S = B²S'. Where little noise
is gained the forms with Q are used, for differences of measured moments are unreliable there; where the step is
stiff (B ≪ 1) the forms with V'/V and S', which cannot blow up. R lies between the noise of the bridge given the
image, Q N'/N (ancestral sampling), and that when only Wiener's predictor is known, Q V'/V; both become Q as steps
shrink.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from anisodiff.linear import quadrature
from anisodiff.networks.precondition import ScoreModel
from anisodiff.noise import Randomness, white
from anisodiff.transforms import frequencies, idct2


def level_grid(model: ScoreModel, steps: int, t_min: float, *, rho: float = 1.0) -> Tensor:
    """Descending times T … t_min, ``steps`` + 1 or more: even in the noise level, with all edges of the drift.

    ``rho`` > 1 is the grid of Karras et al. 2022 in the noise-to-signal ratio.
    """
    moments = model.moments.to(torch.device("cpu"))
    edges = moments.edges.double()
    fine = torch.unique(torch.cat([torch.linspace(t_min, float(edges[-1]), 4001, dtype=torch.float64), edges[1:]]))
    fine = fine[fine >= t_min]
    level = moments.at(model.level.cpu(), *moments.locate(fine)).double()
    level = torch.cummax(level, 0).values + 1e-9 * torch.arange(len(level))
    scale = level if rho == 1.0 else torch.exp(level / rho)
    kept = edges[(edges > t_min) & (edges < edges[-1])] if model.learns_drift else edges[:0]
    even = torch.linspace(float(scale[-1]), float(scale[0]), max(2, steps + 1 - len(kept)), dtype=torch.float64)
    right = torch.searchsorted(scale, even).clamp(1, len(scale) - 1)
    weight = ((even - scale[right - 1]) / (scale[right] - scale[right - 1])).clamp(0, 1)
    times = torch.lerp(fine[right - 1], fine[right], weight)
    times[0], times[-1] = edges[-1], t_min
    grid: Tensor = torch.unique(torch.cat([times, kept])).flip(0)
    return grid


def _reference(model: ScoreModel, cell: Tensor, after: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """B and Q [H, W] of the step from ``t`` down to ``after`` (both [1]); w is that of the cell above a jump."""
    moments = model.moments
    here, phase = moments.locate(after)
    own = torch.where(after == moments.edges.double()[cell], cell, here)
    low = moments.at(moments.weight, own, torch.where(own == here, phase, 0.0))[0]
    weight = 0.5 * (low + moments.at(moments.weight, *moments.locate(t))[0])
    rate = weight * frequencies(weight.shape[-2], weight.shape[-1], weight.dtype, weight.device)
    decay = torch.exp(-model.equation.smoothing(after, t).to(rate.dtype) * rate)
    mass, speed = (x[0].to(rate.dtype) for x in quadrature(model.equation, after, t))
    return decay, torch.einsum("q,qhw->hw", mass, torch.exp(-speed[:, None, None] * rate))


def _back(now: Tensor, then: Tensor, decay: Tensor, gained: Tensor) -> Tensor:
    """X'/X of a moment that obeys X = B²X' + Q: from Q where it is small, from the measured moments elsewhere."""
    return torch.where(gained < 0.5 * now, (1 - gained / now) / decay.square(), then / now)


@torch.no_grad()
def sample(
    model: ScoreModel,
    start: Tensor,
    times: Tensor,
    source: Randomness,
    *,
    wiener: float = 0.0,
    callback: Callable[[int, Tensor], None] | None = None,
) -> Tensor:
    """Images [B, C, H, W] from terminal states ``start`` along descending ``times``; len(times) evaluations.

    ``wiener`` ∈ [0, 1] mixes R between ancestral (0) and linear-Gaussian (1). The last evaluation, at the last time,
    returns E[x0 | u] (Tweedie, then the linear smoothing undone).
    """
    moments = model.moments
    times = times.to(start.device, torch.float64)
    z = model.centred(start)
    for i, t in enumerate(times):
        one = t.reshape(1)
        c = model.coefficients(one)
        f, g = model.residuals(z, c)
        if i == len(times) - 1:
            noise_free = z * (1 - c.noise / c.power) + c.noise * c.scale * f
            return idct2(noise_free / c.known.clamp(0.05, 1.0).sqrt()) + moments.mean[:, None, None]
        after = times[i + 1].reshape(1)
        decay, gained = _reference(model, c.cell, after, one)
        below = model.coefficients(after)
        kept = _back(c.power, below.power, decay, gained)
        residual = f if g is None else f - c.residual / c.scale * g
        mean = decay * kept * z + gained * (below.signal / (c.noise * c.power)).sqrt() * residual
        spread = gained * torch.lerp(_back(c.noise, below.noise, decay, gained), kept, wiener)
        z = mean + spread.sqrt() * white(z, source)
        if callback:
            callback(i, idct2(z) + moments.mean[:, None, None])
    raise AssertionError("times is never empty")
