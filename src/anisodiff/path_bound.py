"""How many nats an image costs at most under a model: the bound of its path.

A model is a law of images: u_T from the prior, then its reverse equation dU = r_θ dt̄ + α2 √q dW̄ down to t_min, then
an image given u_tmin. Let a path of the forward process start from x0. Given x0 its own reverse equation has the
drift r = −b + α2² q ∇ log p(u_t | x0), so by Girsanov

    −ln p(x0) ≤ KL( q(u_T | x0) ‖ prior ) + ½ ∫ E‖ r − r_θ ‖² / (α2² q) dt − E ln p(x0 | u_tmin)
                 prior                      path, t_min … T                   last

b is the drift of this path: with a frozen operator, or with that of the image (`signal`), it depends on x0, and r is
known only where the kernel from x0 to t is. Where b is a function of the state alone, as in `ve`, `heat` and flow
matching, path and prior are KL(q(u_tmin | x0) ‖ p_tmin) for an exact model: the bound is tight, but for the last
term. Elsewhere an exact model, whose r_θ is E[r | u_t], pays ½ ∫ E‖b − E[b | u_t]‖²/(α2² q) dt more: what a path says
of its image that its states do not.

**Times** are even in the information ½ Σ_k ln(1 + S_k/N_k) that is left of an image (19 of 20; the rest even in
t), which is how the integral grows for Gaussian images and the Wiener filter. An image has K of them,
F⁻¹(1 − |2x − 1|) for x = (v + k)/K with one uniform v: no bias, independent of the other images, and an error of
order 1/K², not 1/K, for the integrand is the same at x = 0 and x = 1.

**The last step** is a law of bytes. The noise that is left at t_min is that of one gray level, or of the model's own
t_min where that is more. Every number is normal about E[x0 | u], integrated over its bin; the outer bins reach to
infinity, so the probabilities add up to 1. The width is unknown: a mixture of widths for the whole image, even in
their logarithm, costs at most ln 49 for an image, and nothing is fitted to what is measured.
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
from anisodiff.tensors import moved, precise, wide

LEVELS = 256
"""Values of a byte."""
_EVEN = 0.05
"""Share of the times that is even in t: no time is left out where the tables are wrong."""
_WIDTHS = 2.0 ** (torch.arange(-24, 25, dtype=torch.float64) / 8)
"""Of the last step, in units of the noise."""
_START, _LAST, _TIME = 1, 2, 3
"""Streams of an image's key: its terminal state, its state at t_min, its times. Those of the path follow."""


class Terms(NamedTuple):
    """Nats of every image, float64 [B] each."""

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
        """The times that uniforms [B] stand for, and 1/density there."""
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
    """Even in the information that is left of an image, and in t."""
    x = torch.cat([torch.linspace(0, 1, 513), torch.logspace(-6, 0, 513)[:-1]]).double().sort().values
    t = t_min + (model.T - t_min) * x
    known = information(model, t).cummin(0).values
    lost = (known[0] - known) / (known[0] - known[-1]).clamp(min=1e-300)
    return Times(t, (1 - _EVEN) * lost + _EVEN * x)


def noise_left(model: Model, t: Tensor) -> Tensor:
    """Standard deviation of the noise in a number of the state at times ``t`` (float64 [M], on the CPU), float64."""
    tables = model.statistics.to(torch.device("cpu"))
    return tables.at(tables.log_noise, *tables.locate(t)).double().exp().mean((-2, -1)).sqrt()


def last_time(model: Model, t_min: float, levels: int = LEVELS) -> float:
    """Where the path ends: the noise is one bin, or the model knows no earlier time than ``t_min``."""
    t = t_min + (model.T - t_min) * torch.cat([torch.zeros(1), torch.logspace(-6, 0, 2000)]).double()
    parts = torch.cat([noise_left(model, part) for part in torch.split(t, 64)])
    enough = parts >= 1 / (levels - 1)
    return float(t[int(enough.to(torch.int8).argmax())]) if bool(enough.any()) else t_min


def byte_probability(x0: Tensor, mean: Tensor, width: Tensor | float, levels: int = LEVELS) -> Tensor:
    """ln of the mass that N(mean, width²) has in the bin of every number of ``x0``; the outer bins are half lines.

    ``x0``: multiples of 1/(levels − 1) in [0, 1]; all float64 of one shape.
    """
    half = 0.5 / (levels - 1)
    low = torch.where(x0 < half, -math.inf, (x0 - half - mean) / width)
    high = torch.where(x0 > 1 - half, math.inf, (x0 + half - mean) / width)
    above = low > 0  # the tail that is not near 1, where differences would vanish
    low, high = torch.where(above, -high, low), torch.where(above, -low, high)
    lower, upper = torch.special.log_ndtr(low), torch.special.log_ndtr(high)
    found: Tensor = upper + torch.log(-torch.expm1(lower - upper))
    return found


def obstacle(process: Process, model: Model) -> str:
    """Why there is no bound, in words; empty where there is one."""
    return process.path_obstacle or model.path_obstacle


class _Field(KeyedNoise):
    """Noise for a process that draws DCT modes: those of the field that other processes are given."""

    def normal(self, like: Tensor) -> Tensor:
        return dct2(super().normal(like))


@dataclass(frozen=True, kw_only=True)
class PathBound:
    """The bound of a ``model`` of ``process`` that starts from ``prior``, with ``count`` times for every image."""

    process: Process
    model: Model
    prior: GaussianPrior
    t_min: float
    """Where the path ends."""
    count: int = 4
    levels: int = LEVELS

    def __post_init__(self) -> None:
        if reason := obstacle(self.process, self.model):
            raise ValueError(f"no bound on the likelihood: {reason}")

    @cached_property
    def times(self) -> Times:
        return path_times(self.model, self.t_min)

    def terms(self, x0: Tensor, keys: Tensor) -> Terms:
        """Of images ``x0`` [B, C, H, W], bytes over 255; all chance is in ``keys``, int64 [B]. NFE count + 1."""
        return Terms(self.path(x0, keys), self.start(x0, keys), self.last(x0, keys))

    def start(self, x0: Tensor, keys: Tensor) -> Tensor:
        """ln q(u_T | x0) − ln prior(u_T), [B]."""
        state, density = self.process.draw_with_density(x0, self.process.T, self._noise(keys, _START))
        return density - self.prior.log_density(state)

    def path(self, x0: Tensor, keys: Tensor) -> Tensor:
        """The integral, from `count` times, [B]."""
        uniform = KeyedNoise(combine(keys, _TIME)).uniform()
        total = torch.zeros(len(x0), dtype=wide(x0.device), device=x0.device)
        for k in range(self.count):
            place = 1 - (2 * (uniform + k) / self.count - 1).abs()
            t, span = (moved(x, x0.device) for x in self.times.at(place))
            pair = self.process.training_pair(x0, t, self._noise(keys, _TIME + 1 + k))
            total += span * self.model.path_rate(pair, t) / self.count
        return total

    def last(self, x0: Tensor, keys: Tensor) -> Tensor:
        """−ln p(x0 | u_tmin), [B]."""
        when = torch.full((len(x0),), self.t_min, dtype=torch.float64)
        pair = self.process.training_pair(x0, moved(when, x0.device), self._noise(keys, _LAST))
        t, model = moved(when[:1], x0.device), self.model.conditioned(pair.condition)
        mean = model.denoised(model.to_coordinates(pair.state), t)
        widths = float(noise_left(self.model, when[:1])) * _WIDTHS
        each = [byte_probability(precise(x0), precise(mean), float(w), self.levels).sum((-3, -2, -1)) for w in widths]
        return moved(math.log(len(widths)) - torch.stack(each).logsumexp(0), x0.device)

    def _noise(self, keys: Tensor, stream: int) -> KeyedNoise:
        kind = _Field if "closed_form" in self.process.capabilities else KeyedNoise
        return kind(combine(keys, stream))
