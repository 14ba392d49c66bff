"""The density of training times."""

import math

import numpy as np
import torch
from torch import Tensor

from anisodiff.models.base import Model, TimeDensity


def level_density(
    model: Model, *, mean: float, std: float, t_min: float, gaps: bool, times: TimeDensity = "level"
) -> tuple[Tensor, Tensor]:
    """Times [M] and their cumulative distribution on [t_min, T], with noise level ~ N(mean, std²).

    ``times``: or t uniform, or the noise level uniform. ``gaps``: no times before the first phase of an interval,
    where the variance of a target diverges.
    """
    edges = model.statistics_edges.cpu().double()
    phases = model.statistics.phases.cpu().double()
    if not gaps:
        phases = torch.cat([torch.zeros(1, dtype=torch.float64), phases])
    part = torch.arange(8, dtype=torch.float64) / 8
    fraction = torch.cat([(phases[:-1, None] + part * phases.diff()[:, None]).flatten(), phases[-1:]])
    t = (edges[:-1, None] + fraction * (edges[1:] - edges[:-1])[:, None]).flatten()
    t = t[t >= t_min]
    if times == "log_uniform":
        t = torch.cat([t.new_full((1,), t_min), t[t > t_min]])
    statistics = model.statistics.to(torch.device("cpu"))
    level = statistics.at(model.level.cpu(), *statistics.locate(t))
    density = torch.exp(-0.5 * ((level.double() - mean) / std) ** 2) if times == "level" else torch.ones_like(t)
    speed = t.diff() if times == "uniform" else level.diff().double().abs()
    if gaps:
        speed = speed * (statistics.locate(t)[0][1:] == statistics.locate(t)[0][:-1])
    mass = torch.cat([torch.zeros(1, dtype=torch.float64), (0.5 * (density[1:] + density[:-1]) * speed).cumsum(0)])
    if not math.isfinite(float(mass[-1])) or mass[-1] <= 0:
        raise ValueError("no time has a noise level in this range; choose another mean or std")
    return t, mass / mass[-1]


def places_among(ascending: Tensor, values: Tensor) -> Tensor:
    """np.searchsorted(ascending, values), int64, on the CPU.

    For more than 200 values torch.searchsorted would start all threads of the host in every training step.
    """
    return torch.from_numpy(np.searchsorted(ascending.numpy(), values.numpy()))


def draw_times(times: Tensor, cumulative: Tensor, uniform: Tensor) -> Tensor:
    """Inverse transform sampling: uniforms [B] → times [B], float64, on the CPU."""
    uniform = uniform.cpu()
    right = places_among(cumulative, uniform).clamp(1, len(times) - 1)
    low, high = cumulative[right - 1], cumulative[right]
    weight = ((uniform - low) / (high - low).clamp(min=1e-300)).clamp(0, 1)
    return torch.lerp(times[right - 1], times[right], weight)
