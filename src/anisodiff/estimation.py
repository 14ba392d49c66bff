"""Estimation of the spectral statistics of a process (`statistics`).

**Linear processes** (`exactly`): from the spectrum of the images and the equation.

**Gaussian given the image** (one window, or `signal`): S and the drift of the noise-free part m come from simulations
without noise, so they have no Monte-Carlo error, however far m is below the noise. The noise n is known (`signal`),
or simulated and divided by the white noise ξ that drives it, N_k = Σ|n̂_k|²/Σ|ξ̂_k|², so that most of the
Monte-Carlo error cancels.

**All others**: from two independent simulations of every image (`paired_runs`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from anisodiff.dct import band_sums, dct2, frequencies, radial_bands
from anisodiff.equation import Equation
from anisodiff.gaussian_kernel import grid_decay, grid_variance
from anisodiff.noise import KeyedNoise, ZeroNoise, combine
from anisodiff.paired_runs import Sums, add_runs, signal_and_noise
from anisodiff.statistics import (
    SpectralStatistics,
    channel_axes,
    principal_axes,
    smooth_phases,
    symmetric,
    window_phases,
)
from anisodiff.tensors import to_device_exactly, to_float64

_BATCH = 512
_BANDS = 8
_LEAST = 1e-12
"""Smallest variance of the noise that float32 can resolve beside an image."""
_TOO_QUIET = (
    "at some times the noise is below the rounding of single precision beside an image: no score can be learned "
    "there; set a larger intensity"
)


@dataclass(frozen=True, kw_only=True)
class EstimationSettings:
    """Options of every estimate."""

    seed: int = 0
    channel_pca: bool = False
    """Use the principal axes of the channels."""
    progress: Callable[[int, int], None] | None = None


class Simulated(Protocol):
    """The part of a `Process` that is used here."""

    @property
    def T(self) -> float: ...
    def draw(self, x0: Tensor, t: Tensor, rng: KeyedNoise) -> Tensor: ...


class Solved(Protocol):
    """The part of `processes.spde.SPDE` that is used here."""

    @property
    def equation(self) -> Equation: ...
    @property
    def step(self) -> Any: ...
    @property
    def gaussian_given_image(self) -> bool: ...
    def snap_to_grid(self, t: Tensor) -> Tensor: ...
    def training_pair(self, x0: Tensor, t: Tensor, rng: KeyedNoise) -> Any: ...


class _Row(NamedTuple):
    """The statistics at one time: N, S, w, Y and E, [H, W] each, float64."""

    noise: Tensor
    signal: Tensor
    weight: Tensor
    target: Tensor
    residual: Tensor


class _Images:
    """Images, their channel means, and their DCT modes and power about these means."""

    def __init__(self, images: Tensor) -> None:
        self.pixels = images
        self.mean = to_float64(images).mean((0, 2, 3)).float().to(images.device)
        self.modes = dct2(images - self.mean[:, None, None])
        self.power = symmetric(to_float64(self.modes).square().mean((0, 1)))


def _tabulate(
    images: _Images,
    edges: tuple[float, ...],
    phases: Tensor,
    row: Callable[[Tensor, int], _Row],
    floor: float,
    settings: EstimationSettings,
) -> SpectralStatistics:
    """Tables of ``row``(t, index of the entry) on (interval, phase); the signal is at least ``floor``·noise."""
    device, bounds = images.pixels.device, torch.tensor(edges, dtype=torch.float64)
    entries = list[Tensor]()
    for k in range(len(edges) - 1):
        for phase in phases:
            values = row(bounds[k] + phase * (bounds[k + 1] - bounds[k]), len(entries))
            entries.append(torch.stack([value.cpu().double() for value in values]))
            if settings.progress:
                settings.progress(len(entries), (len(edges) - 1) * len(phases))
    shape = (len(_Row._fields), len(edges) - 1, len(phases), *images.pixels.shape[-2:])
    noise, signal, weight, target, residual = torch.stack(entries, 1).reshape(shape)
    signal = torch.maximum(signal, floor * noise)
    tables = {
        "log_noise": noise.log(), "log_signal": signal.log(), "weight": weight, "log_target": target.log(),
        "log_residual": residual.clamp(min=1e-30).log(),
    }  # fmt: skip
    single = {name: value.float().to(device) for name, value in tables.items()}
    if not all(bool(table.isfinite().all()) for table in single.values()):
        raise ValueError(_TOO_QUIET)
    data = images.power.float().to(device)
    axes = principal_axes(images.modes) if settings.channel_pca else channel_axes(images.pixels.shape[1], data)
    return SpectralStatistics(
        edges=to_device_exactly(bounds, device),
        phases=to_device_exactly(phases, device),
        mean=images.mean,
        data=data,
        **axes,
        **single,
    )


def exactly(equation: Equation, pixels: Tensor, settings: EstimationSettings) -> SpectralStatistics:
    """Of a linear process on images ``pixels`` [N, C, H, W] in [0, 1]; exact for the spectrum of these images."""
    images = _Images(pixels)
    like = images.power[None, None]

    def row(t: Tensor, _: int) -> _Row:
        when = t.to(like.device).reshape(1)
        begin = torch.zeros_like(when)
        noise = grid_variance(equation, begin, when, like)[0, 0]
        signal = grid_decay(equation, begin, when, like)[0, 0] ** 2 * images.power
        return _Row(noise, signal, torch.ones_like(noise), 1 / noise, torch.zeros_like(noise))

    # forty intervals to interpolate between, shorter at t = 0; only α1 can jump
    edges = {equation.T * (k / 40) ** 2 for k in range(41)} | {equation.smoothing_end or equation.T}
    return _tabulate(images, tuple(sorted(edges)), smooth_phases(), row, 1e-8, settings)


def of_spde(process: Solved, pixels: Tensor, settings: EstimationSettings) -> SpectralStatistics:
    """Of a process with time steps on images ``pixels`` [N, C, H, W] in [0, 1]."""
    images = _Images(pixels)
    estimate = _from_noise_free_paths if process.gaussian_given_image else _from_two_runs
    edges, phases = process.step.statistics_grid(process.equation)

    def row(t: Tensor, number: int) -> _Row:
        return estimate(process, pixels, images.mean, process.snap_to_grid(t), settings.seed + 7919 * number)

    floor = 1e-8 if process.gaussian_given_image else 1e-4
    return _tabulate(images, edges, phases, row, floor, settings)


def by_simulation(process: Simulated, pixels: Tensor, settings: EstimationSettings) -> SpectralStatistics:
    """Of any process on images ``pixels`` [N, C, H, W] in [0, 1], from two simulations of each."""
    images = _Images(pixels)

    def row(t: Tensor, number: int) -> _Row:
        sums = Sums()
        for part in torch.split(torch.arange(len(pixels), device=pixels.device), _BATCH):
            runs = [
                process.draw(pixels[part], t, KeyedNoise(combine(settings.seed + 7919 * number, run, part)))
                for run in (1, 2)
            ]
            add_runs(sums, images.modes[part], [dct2(u - images.mean[:, None, None]) for u in runs])
        signal, noise = signal_and_noise(sums, len(pixels) * pixels.shape[1])
        return _Row(noise, signal, torch.ones_like(noise), 1 / noise, torch.zeros_like(noise))

    return _tabulate(images, (0.0, process.T), window_phases(1), row, 1e-4, settings)


def from_powers(
    powers: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    T: float,
    pixels: Tensor,
    settings: EstimationSettings,
) -> SpectralStatistics:
    """From ``powers``(images, t, channel means) → S, N [H, W], exact for these images."""
    images = _Images(pixels)
    mean = to_float64(pixels).mean((0, 2, 3))
    parts = torch.split(pixels, 128)

    def row(t: Tensor, _: int) -> _Row:
        found = [powers(part, t.reshape(1), mean) for part in parts]
        shares = [len(part) / len(pixels) for part in parts]
        signal, noise = (
            sum((w * x for w, x in zip(shares, column)), torch.zeros_like(images.power)) for column in zip(*found)
        )
        return _Row(noise, signal, torch.ones_like(noise), torch.ones_like(noise), torch.ones_like(noise))

    return _tabulate(images, (0.0, T), window_phases(1), row, 1e-8, settings)


def _at_least(target: Tensor, noise: Tensor, count: int) -> Tensor:
    """Y ≥ 1/N, the value for isotropic noise, from its estimate ``target`` by ``count`` samples.

    The excess Y N − 1 is averaged over bands of frequencies. The standard error of a mode is at most 2/√count; an
    excess below two standard errors of the band is set to 0.
    """
    height, width = noise.shape[-2:]
    band = radial_bands(height, width, _BANDS).to(noise.device)
    modes = band_sums(torch.ones_like(noise), band, _BANDS).clamp(min=1)
    excess = band_sums(target * noise - 1, band, _BANDS) / modes
    return (1 + torch.where(excess > 4 / (count * modes).sqrt(), excess, 0.0)[band]) / noise


def _from_noise_free_paths(process: Solved, images: Tensor, mean: Tensor, t: Tensor, seed: int) -> _Row:
    """For states u = m + n with m a function of the image, n Gaussian, and a drift linear in both."""
    sums, count = Sums(), images.shape[0] * images.shape[1]
    like = to_float64(images[:1])
    noise = process.step.noise(process.equation, t.reshape(1).to(like.device), like)
    for part in torch.split(torch.arange(len(images), device=images.device), _BATCH):
        x0, when, keys = images[part], t.expand(len(part)), combine(seed, 1, part)
        noiseless = process.training_pair(x0, when, ZeroNoise(keys))
        m, b = dct2(noiseless.state - mean[:, None, None]), _drift(noiseless.drift, x0)
        sums.add("signal", m.square())
        sums.add("cross", m * b)
        sums.add("square", b.square())
        if noise is None:
            drawn = process.training_pair(x0, when, KeyedNoise(keys))
            n, bn = dct2(drawn.state - noiseless.state), _drift(drawn.drift, x0) - b
            sums.add("xi", dct2(KeyedNoise(keys).normal(x0)).square())
            sums.add("noise", n.square())
            sums.add("noise cross", n * bn)
            sums.add("noise square", bn.square())
            sums.add("target", dct2(drawn.target - noiseless.target).square())
            sums.add("mean target", dct2(noiseless.target).square())
    signal, cross, square = (sums[k] / count for k in ("signal", "cross", "square"))
    if noise is not None:
        return _row(process.equation, t, noise, signal, 1 / noise, cross, square)
    noise, target, noise_cross, noise_square = (
        sums[k] / sums["xi"] for k in ("noise", "target", "noise cross", "noise square")
    )
    if noise.min() < _LEAST:
        raise ValueError(_TOO_QUIET)
    target = target + sums["mean target"] / count
    target = _at_least(target, noise, count)
    return _row(process.equation, t, noise, signal, target, cross + noise_cross, square + noise_square)


def _from_two_runs(process: Solved, images: Tensor, mean: Tensor, t: Tensor, seed: int) -> _Row:
    """From two independent simulations of every image."""
    sums, count = Sums(), images.shape[0] * images.shape[1]
    for part in torch.split(torch.arange(len(images), device=images.device), _BATCH):
        x0, when = images[part], t.expand(len(part))
        runs = []
        for run in (1, 2):
            pair = process.training_pair(x0, when, KeyedNoise(combine(seed, run, part)))
            u, b = dct2(pair.state - mean[:, None, None]), _drift(pair.drift, x0)
            sums.add("target", dct2(pair.target).square())
            sums.add("cross", u * b)
            sums.add("square", b.square())
            runs.append(u)
        add_runs(sums, dct2(x0 - mean[:, None, None]), runs)
    target, cross, square = (sums[k] / (2 * count) for k in ("target", "cross", "square"))
    signal, noise = signal_and_noise(sums, count)
    return _row(process.equation, t, noise, signal, _at_least(target, noise, count), cross, square)


def _drift(drift: Tensor | None, like: Tensor) -> Tensor:
    """DCT modes of a drift; zeros without one."""
    return torch.zeros_like(like) if drift is None else dct2(drift)


def _row(
    equation: Equation, t: Tensor, noise: Tensor, signal: Tensor, target: Tensor, cross: Tensor, square: Tensor
) -> _Row:
    """With w and E from ``cross`` = E[b̂û] and ``square`` = E|b̂|²."""
    power, one = signal + noise, t.reshape(1)
    alpha1, alpha2 = float(equation.alpha1(one)), float(equation.alpha2(one))
    z = frequencies(power.shape[-2], power.shape[-1], torch.float64, power.device)
    weight = torch.where(alpha1 * z > 0, -cross / (alpha1 * z * power).clamp(min=1e-300), 1.0)
    return _Row(noise, signal, weight, target, (square - cross.square() / power).clamp(min=0) / alpha2**4)
