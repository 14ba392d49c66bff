"""An upper bound on the negative log-likelihood of an image, in nats.

A model generates u_T from the prior, then follows its reverse SDE dU = r_θ dt̄ + α2 √q dW̄ down to t_min, then draws
an image given u_tmin. A forward path from x0 has, given x0, a reverse SDE with the drift
r = −b + α2² q ∇ log p(u_t | x0), so by Girsanov's theorem

    −ln p(x0) ≤ KL( q(u_T | x0) ‖ prior ) + ½ ∫ E‖ r − r_θ ‖² / (α2² q) dt − E ln p(x0 | u_tmin)
                 prior                      path, t_min … T                   last

b is the drift of this path. With a frozen operator, or with that of the image (`signal`), it depends on x0, and r is
known only if the kernel from x0 to t is. Where b is a function of the state alone, as in `ve`, `heat` and flow
matching, path + prior of an exact model is KL(q(u_tmin | x0) ‖ p_tmin), and the bound is tight up to the last term.
Elsewhere an exact model, r_θ = E[r | u_t], has the extra term ½ ∫ E‖b − E[b | u_t]‖²/(α2² q) dt.

**Times.** The density of times is 95% uniform in the mutual information ½ Σ_k ln(1 + S_k/N_k), as which the integral
grows for Gaussian images and the Wiener filter, and 5% uniform in t. The K times of an image are
F⁻¹(1 − |2x − 1|), x = (v + k)/K with one uniform v: unbiased, with an error of order 1/K² instead of 1/K because
the integrand is equal at x = 0 and x = 1.

**Last step.** p(x0 | u_tmin) is a distribution of bytes: each value is normal about E[x0 | u], integrated over its
bin; the outer bins are unbounded, so the probabilities sum to 1. t_min is where the noise is one gray level, or the
model's own t_min if that is later. The standard deviation is a mixture of 49 values, uniform in their logarithm; this
costs at most ln 49 per image, and nothing is fitted to the evaluated images.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from anisodiff.dct import dct2
from anisodiff.models.base import Model
from anisodiff.models.time_density import draw_times, places_among
from anisodiff.noise import KeyedNoise, combine
from anisodiff.priors import GaussianPrior
from anisodiff.processes.base import Process
from anisodiff.tensors import highest_precision, to_device, to_float64

LEVELS = 256
"""Values of a byte."""
_UNIFORM = 0.05
"""Share of the density of times that is uniform in t, in case the statistics are inaccurate."""
_WIDTHS = 2.0 ** (torch.arange(-24, 25, dtype=torch.float64) / 8)
"""Standard deviations of the last step, in units of the noise."""
_START, _LAST, _TIME = 1, 2, 3
"""Streams of the key of an image: its terminal state, its state at t_min, its times; then the states of the path."""


class Terms(NamedTuple):
    """The terms of the bound in nats, float64 [B] each."""

    path: Tensor
    prior: Tensor
    last: Tensor

    @property
    def total(self) -> Tensor:
        return self.path + self.prior + self.last


class Times(NamedTuple):
    """A density on [t_min, T], constant between ascending ``times`` [M]; float64, on the CPU."""

    times: Tensor
    cumulative: Tensor

    def at(self, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Inverse transform sampling: times for uniforms [B], and 1/density there."""
        uniform = uniform.cpu()
        right = places_among(self.cumulative, uniform).clamp(1, len(self.times) - 1)
        spans, masses = self.times.diff(), self.cumulative.diff()
        return draw_times(self.times, self.cumulative, uniform), (spans / masses)[right - 1]


def information(model: Model, t: Tensor) -> Tensor:
    """½ Σ_k ln(1 + S_k/N_k) at times ``t`` (float64 [M], on the CPU), pooled over channels, float64 [M]."""
    tables = model.statistics.to(torch.device("cpu"))
    snr = tables.log_signal - tables.log_noise
    parts = (tables.at(snr, *tables.locate(part)).double() for part in torch.split(t, 64))
    return torch.cat([0.5 * torch.nn.functional.softplus(part).sum((-2, -1)) for part in parts])


def path_times(model: Model, t_min: float) -> Times:
    """The density of times above."""
    x = torch.cat([torch.linspace(0, 1, 513), torch.logspace(-6, 0, 513)[:-1]]).double().sort().values
    t = t_min + (model.T - t_min) * x
    known = information(model, t).cummin(0).values
    lost = (known[0] - known) / (known[0] - known[-1]).clamp(min=1e-300)
    return Times(t, (1 - _UNIFORM) * lost + _UNIFORM * x)


def noise_left(model: Model, t: Tensor) -> Tensor:
    """Standard deviation of the noise of a pixel at times ``t`` (float64 [M], on the CPU), float64 [M]."""
    tables = model.statistics.to(torch.device("cpu"))
    return tables.at(tables.log_noise, *tables.locate(t)).double().exp().mean((-2, -1)).sqrt()


def last_time(model: Model, t_min: float) -> float:
    """The time at which the noise is one bin wide, ``t_min`` at the earliest."""
    t = t_min + (model.T - t_min) * torch.cat([torch.zeros(1), torch.logspace(-6, 0, 2000)]).double()
    parts = torch.cat([noise_left(model, part) for part in torch.split(t, 64)])
    enough = parts >= 1 / (LEVELS - 1)
    return float(t[int(enough.to(torch.int8).argmax())]) if bool(enough.any()) else t_min


def byte_probability(x0: Tensor, mean: Tensor, width: Tensor | float, levels: int = LEVELS) -> Tensor:
    """ln of the probability of N(mean, width²) in the bin of each value of ``x0``; the outer bins are unbounded.

    ``x0``: multiples of 1/(levels − 1) in [0, 1]; all float64 of one shape.
    """
    half = 0.5 / (levels - 1)
    low = torch.where(x0 < half, -math.inf, (x0 - half - mean) / width)
    high = torch.where(x0 > 1 - half, math.inf, (x0 + half - mean) / width)
    above = low > 0  # use the lower tail, where differences do not cancel
    low, high = torch.where(above, -high, low), torch.where(above, -low, high)
    lower, upper = torch.special.log_ndtr(low), torch.special.log_ndtr(high)
    result: Tensor = upper + torch.log(-torch.expm1(lower - upper))
    return result


def obstacle(process: Process, model: Model) -> str:
    """Why there is no bound; empty if there is one."""
    return process.path_obstacle or model.path_obstacle


class _Field(KeyedNoise):
    """DCT modes of the keyed noise, for processes that add noise per mode: all processes then share one ξ."""

    def normal(self, like: Tensor) -> Tensor:
        return dct2(super().normal(like))


@dataclass(frozen=True, kw_only=True)
class PathBound:
    """The bound for a ``model`` of ``process`` with ``prior``, from ``count`` times per image."""

    process: Process
    model: Model
    prior: GaussianPrior
    t_min: float
    """Where the reverse SDE ends."""
    count: int = 4
    levels: int = LEVELS

    def __post_init__(self) -> None:
        if reason := obstacle(self.process, self.model):
            raise ValueError(f"no bound on the likelihood: {reason}")

    @cached_property
    def times(self) -> Times:
        return path_times(self.model, self.t_min)

    def terms(self, x0: Tensor, keys: Tensor) -> Terms:
        """For images ``x0`` [B, C, H, W], bytes divided by 255; ``keys`` int64 [B] seed all noise. NFE count + 1."""
        return Terms(self.path(x0, keys), self.start(x0, keys), self.last(x0, keys))

    def start(self, x0: Tensor, keys: Tensor) -> Tensor:
        """ln q(u_T | x0) − ln prior(u_T), [B]."""
        state, density = self.process.draw_with_density(x0, self.process.T, self._noise(keys, _START))
        return density - self.prior.log_density(state)

    def path(self, x0: Tensor, keys: Tensor) -> Tensor:
        """The integral over t, [B]."""
        uniform = KeyedNoise(combine(keys, _TIME)).uniform()
        total = torch.zeros(len(x0), dtype=highest_precision(x0.device), device=x0.device)
        for k in range(self.count):
            place = 1 - (2 * (uniform + k) / self.count - 1).abs()
            t, span = (to_device(x, x0.device) for x in self.times.at(place))
            pair = self.process.training_pair(x0, t, self._noise(keys, _TIME + 1 + k))
            total += span * self.model.path_rate(pair, t) / self.count
        return total

    def last(self, x0: Tensor, keys: Tensor) -> Tensor:
        """−ln p(x0 | u_tmin), [B]."""
        when = torch.full((len(x0),), self.t_min, dtype=torch.float64)
        pair = self.process.training_pair(x0, to_device(when, x0.device), self._noise(keys, _LAST))
        t, model = to_device(when[:1], x0.device), self.model.conditioned(pair.condition)
        mean = model.denoised(model.to_coordinates(pair.state), t)
        widths = float(noise_left(self.model, when[:1])) * _WIDTHS
        each = [
            byte_probability(to_float64(x0), to_float64(mean), float(w), self.levels).sum((-3, -2, -1))
            for w in widths
        ]
        return to_device(math.log(len(widths)) - torch.stack(each).logsumexp(0), x0.device)

    def _noise(self, keys: Tensor, stream: int) -> KeyedNoise:
        kind = _Field if "closed_form" in self.process.capabilities else KeyedNoise
        return kind(combine(keys, stream))
