"""SDEdit strength, comparable between processes.

    s = σ/(σ + σ_data) ∈ (0, 1),    noise level σ/σ_data = s/(1 − s) = exp(`Model.level`(t))

σ is the standard deviation of white noise that would leave as much information about an image as the process does at
t; σ_data² is the variance of a pixel. At s = ½ there is as much noise as image; s is also the time of the straight
path (1 − s)·image + s·noise at unit scale. Edits with equal strength are comparable between processes, edits with
equal times are not. Reports give strength, noise level and t.
"""

import torch
from torch import Tensor

from anisodiff.generation import Generator
from anisodiff.models.base import Model
from anisodiff.tensors import interpolate

_POINTS, _FIRST = 4000, 1e-6


def _curve(model: Model) -> tuple[Tensor, Tensor]:
    """Ascending times in (0, T] and the strength at each, made monotone: the statistics are estimates."""
    T = model.T
    part = torch.arange(1, _POINTS + 1, dtype=torch.float64) / _POINTS
    times = torch.unique(torch.cat([T * part, T * _FIRST ** (1 - part)]))  # the noise begins as a power of t
    statistics = model.statistics.to(times.device)
    level = statistics.at(model.level.to(times.device), *statistics.locate(times)).double()
    return times, torch.sigmoid(torch.cummax(level, 0).values)


def _read(x: float, xs: Tensor, ys: Tensor) -> float:
    """y at x by linear interpolation; the first of several x that are equal counts."""
    return float(interpolate(torch.tensor(x, dtype=xs.dtype), xs, ys))


def strength_of_t(model: Model, t: float) -> float:
    """s ∈ (0, 1) at time ``t`` ∈ (0, T]."""
    return _read(t, *_curve(model))


def noise_level(strength: float) -> float:
    """σ/σ_data at a strength."""
    return strength / (1 - strength)


def report(model: Model, t: float) -> str:
    """How far an edit goes: time, strength and noise level."""
    s = strength_of_t(model, t)
    return f"t = {t:g} (strength {s:.2f}, σ/σ_data = {noise_level(s):.3g})"


def t_of_strength(model: Model, strength: float, *, t_min: float = 0.0) -> float:
    """The earliest time in (t_min, T] of that strength; a strength outside the range of the process is refused."""
    times, strengths = _curve(model)
    low, high = _read(t_min, times, strengths), float(strengths[-1])
    if not low < strength <= high + 1e-9:  # the strength at T, rounded
        raise ValueError(
            f"strength: got {strength:g}, expected a number in ({low:.4f}, {high:.4f}]: the range of this process "
            f"between t_min = {t_min:g} and T = {model.T:g}"
        )
    return _read(strength, strengths, times)


def strength_range(generator: Generator) -> tuple[float, float]:
    """The strengths at t_min and at T."""
    model, t_min = generator.model, generator.plan.config.t_min
    return strength_of_t(model, t_min), strength_of_t(model, generator.process.T)


def time_of(generator: Generator, t: float | None, strength: float | None) -> float:
    """The time given by one of the two; both, neither, and a time outside (t_min, T] are errors."""
    if (t is None) == (strength is None):
        raise ValueError(f"got {'neither t nor' if t is None else 'both t and'} strength; expected one of them")
    t_min, T = generator.plan.config.t_min, generator.process.T
    if t is None:
        assert strength is not None
        return t_of_strength(generator.model, strength, t_min=t_min)
    if not t_min < t <= T:
        raise ValueError(f"t: got {t:g}, expected a time in (t_min, T] = ({t_min:g}, {T:g}]")
    return float(t)
