"""The reverse process, its linear part solved exactly per frequency.

With B = e^{−w z ∫α1} over [t', t] and Q = V − B²V' (powers at t and t' < t), one step down is

    û' = û/B + (Q/B)·s̃_k + √R ξ̂,      s̃ = −û/V + residual

For the linear predictor alone this is the exact Gaussian bridge, û' = (V'B/V)û + …, whatever the step; the network's
residual enters at first order. R lies between the noise of the bridge given the image, Q N'/N (ancestral sampling),
and that of the bridge when only Wiener's predictor is known, Q V'/V; both become Q as steps shrink.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from anisodiff.networks.precondition import ScoreModel
from anisodiff.noise import Randomness, white
from anisodiff.tables import Moments
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


def _at(moments: Moments, cell: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """V and N at time ``t``, and w, which at a lower edge of ``cell`` is the one inside it."""
    here, phase = moments.locate(t)
    noise = moments.at(moments.log_noise, here, phase).exp()
    power = noise + moments.at(moments.log_signal, here, phase).exp()
    own = torch.where(t == moments.edges.double()[cell], cell, here)
    return power[0], noise[0], moments.at(moments.weight, own, torch.where(own == here, phase, 0.0))[0]


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
    frequency = frequencies(z.shape[-2], z.shape[-1], z.dtype, z.device)
    for i, t in enumerate(times):
        one = t.reshape(1)
        c = model.coefficients(one)
        f, g = model.residuals(z, c)
        residual = c.scale * f if g is None else c.scale * f - c.residual * g
        if i == len(times) - 1:
            noise_free = z * (1 - c.noise / c.power) + c.noise * c.scale * f
            return idct2(noise_free / c.known.clamp(0.05, 1.0).sqrt()) + moments.mean[:, None, None]
        after = times[i + 1].reshape(1)
        power, noise, weight = _at(moments, c.cell, one)
        power_, noise_, weight_ = _at(moments, c.cell, after)
        amount = model.equation.smoothing(after, one).to(z.dtype)
        decay = torch.exp(-0.5 * (weight + weight_) * amount * frequency)
        gained = (power - decay**2 * power_).clamp(min=0)
        mean = (decay * power_ / power).clamp(max=1 / decay) * z + gained / decay * residual
        spread = gained * torch.lerp(noise_ / noise, power_ / power, wiener)
        z = mean + spread.sqrt() * white(z, source)
        if callback:
            callback(i, idct2(z) + moments.mean[:, None, None])
    raise AssertionError("times is never empty")
