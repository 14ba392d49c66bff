"""How the spectral statistics of a process are found.

Linear processes (`exactly`): from the spectrum of the images and the equation.

Processes whose state is Gaussian given its image (one window, `signal`): S and the drift of the noise-free part m
come from paths without noise, so that chance has no part in them, however far m lies below the noise. The noise n is
known (`signal`), or drawn and compared with the white ξ it is made of, N_k = Σ|n̂_k|²/Σ|ξ̂_k|²: exact where nothing
but its frequency shapes a mode, and elsewhere what chance does to both cancels.

All others: from two independent runs of every image. Where a signal drowns in the noise, S_k = Cov(û_k, x̂_k)²/D_k
instead, the part that is linear in the image x; where that drowns as well, what a ring of frequencies has left of x.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from anisodiff.dct import band_sums, dct2, frequencies, radial_bands
from anisodiff.equation import Equation
from anisodiff.gaussian_kernel import grid_decay, grid_variance
from anisodiff.noise import KeyedNoise, Silence, combine
from anisodiff.statistics import (
    SpectralStatistics,
    channel_axes,
    principal_axes,
    smooth_phases,
    symmetric,
    window_phases,
)
from anisodiff.tensors import precise, settled

_BATCH = 512
_RINGS = 8
_LEAST = 1e-12
"""Variance of the least noise that can be told from an image in single precision."""
_TOO_QUIET = (
    "the process has times with no noise that single precision could tell from the images: nothing can be learned "
    "there; set a larger intensity"
)


@dataclass(frozen=True, kw_only=True)
class EstimationSettings:
    """How statistics are estimated, whatever the process."""

    seed: int = 0
    channel_pca: bool = False
    """In the principal axes of the channels."""
    progress: Callable[[int, int], None] | None = None


class Simulated(Protocol):
    """What estimation needs of any process."""

    @property
    def T(self) -> float: ...
    def draw(self, x0: Tensor, t: Tensor, rng: KeyedNoise) -> Tensor: ...


class Solved(Protocol):
    """What it needs of an SPDE (`processes.spde.SPDE`)."""

    @property
    def equation(self) -> Equation: ...
    @property
    def step(self) -> Any: ...
    @property
    def gaussian_given_image(self) -> bool: ...
    def snap_to_grid(self, t: Tensor) -> Tensor: ...
    def training_pair(self, x0: Tensor, t: Tensor, rng: KeyedNoise) -> Any: ...


class _Row(NamedTuple):
    """What is found at one time, [H, W] each, float64."""

    noise: Tensor
    signal: Tensor
    weight: Tensor
    target: Tensor
    residual: Tensor


class _Images:
    """The images, their channel means, and their modes and power per frequency about them."""

    def __init__(self, images: Tensor) -> None:
        self.pixels = images
        self.mean = precise(images).mean((0, 2, 3)).float().to(images.device)
        self.modes = dct2(images - self.mean[:, None, None])
        self.power = symmetric(precise(self.modes).square().mean((0, 1)))


def _tabulate(
    images: _Images,
    edges: tuple[float, ...],
    phases: Tensor,
    row: Callable[[Tensor, int], _Row],
    floor: float,
    settings: EstimationSettings,
) -> SpectralStatistics:
    """The tables of ``row``(t, number of the entry) on (cell, phase); a signal is at least ``floor`` of the noise."""
    device, bounds = images.pixels.device, torch.tensor(edges, dtype=torch.float64)
    size = images.pixels.shape[-2:]
    found = [torch.zeros(len(edges) - 1, len(phases), *size, dtype=torch.float64) for _ in _Row._fields]
    for k in range(len(edges) - 1):
        for j, phase in enumerate(phases):
            values = row(bounds[k] + phase * (bounds[k + 1] - bounds[k]), k * len(phases) + j)
            for table, value in zip(found, values):
                table[k, j] = value.cpu()
            if settings.progress:
                settings.progress(k * len(phases) + j + 1, (len(edges) - 1) * len(phases))
    noise, signal, weight, target, residual = found
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
        edges=settled(bounds, device), phases=settled(phases, device), mean=images.mean, data=data, **axes, **single
    )


def exactly(equation: Equation, pixels: Tensor, settings: EstimationSettings) -> SpectralStatistics:
    """Of a linear process on images ``pixels`` [N, C, H, W] in [0, 1]; exact but for the data's spectrum."""
    images = _Images(pixels)
    like = images.power[None, None]

    def row(t: Tensor, _: int) -> _Row:
        when = t.to(like.device).reshape(1)
        begin = torch.zeros_like(when)
        noise = grid_variance(equation, begin, when, like)[0, 0]
        signal = grid_decay(equation, begin, when, like)[0, 0] ** 2 * images.power
        return _Row(noise, signal, torch.ones_like(noise), 1 / noise, torch.zeros_like(noise))

    # nothing else jumps: forty cells carry the statistics, short ones where the noise begins
    edges = {equation.T * (k / 40) ** 2 for k in range(41)} | {equation.smoothing_end or equation.T}
    return _tabulate(images, tuple(sorted(edges)), smooth_phases(), row, 1e-8, settings)


def of_spde(process: Solved, pixels: Tensor, settings: EstimationSettings) -> SpectralStatistics:
    """Of a simulated process on images ``pixels`` [N, C, H, W] in [0, 1]."""
    images = _Images(pixels)
    find = _about_a_path if process.gaussian_given_image else _in_pairs
    edges, phases = process.step.cells(process.equation)

    def row(t: Tensor, number: int) -> _Row:
        return find(process, pixels, images.mean, process.snap_to_grid(t), settings.seed + 7919 * number)

    floor = 1e-8 if process.gaussian_given_image else 1e-4
    return _tabulate(images, edges, phases, row, floor, settings)


def by_simulation(process: Simulated, pixels: Tensor, settings: EstimationSettings) -> SpectralStatistics:
    """Of any process on images ``pixels`` [N, C, H, W] in [0, 1], from two simulations of each and nothing else."""
    images = _Images(pixels)

    def row(t: Tensor, number: int) -> _Row:
        sums = _Sums()
        for part in torch.split(torch.arange(len(pixels), device=pixels.device), _BATCH):
            runs = [
                process.draw(pixels[part], t, KeyedNoise(combine(settings.seed + 7919 * number, run, part)))
                for run in (1, 2)
            ]
            _add_runs(sums, images.modes[part], [dct2(u - images.mean[:, None, None]) for u in runs])
        noise, signal = _signal_and_noise(sums, len(pixels) * pixels.shape[1])
        return _Row(noise, signal, torch.ones_like(noise), 1 / noise, torch.zeros_like(noise))

    edges, phases = (0.0, process.T), window_phases(1)
    return _tabulate(images, edges, phases, row, 1e-4, settings)


def from_powers(
    powers: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    T: float,
    pixels: Tensor,
    settings: EstimationSettings,
) -> SpectralStatistics:
    """From ``powers``(images, t, channel means) → S, N [H, W], which is exact for the images it is given."""
    images = _Images(pixels)
    mean = precise(pixels).mean((0, 2, 3))
    parts, phases = torch.split(pixels, 128), window_phases(1)

    def row(t: Tensor, _: int) -> _Row:
        found = [powers(part, t.reshape(1), mean) for part in parts]
        shares = [len(part) / len(pixels) for part in parts]
        signal, noise = (
            sum((w * x for w, x in zip(shares, column)), torch.zeros_like(images.power)) for column in zip(*found)
        )
        return _Row(noise, signal, torch.ones_like(noise), torch.ones_like(noise), torch.ones_like(noise))

    return _tabulate(images, (0.0, T), phases, row, 1e-8, settings)


class _Sums:
    """Sums over samples and channels, in double precision, of rows and columns alike."""

    def __init__(self) -> None:
        self._found: dict[str, Tensor | float] = defaultdict(float)

    def add(self, name: str, value: Tensor) -> None:
        """``value`` [B, C, H, W]."""
        self._found[name] = self._found[name] + precise(value).sum((0, 1))

    def __getitem__(self, name: str) -> Tensor:
        return symmetric(torch.as_tensor(self._found[name]))


def _at_least(target: Tensor, noise: Tensor, count: int) -> Tensor:
    """Y from its estimate by ``count`` samples: 1/N, which is that of isotropic noise, or more.

    By how much more is averaged over wide rings of frequencies. Chance moves a mode's estimate by 2/√count at most:
    what is less than twice that of a whole ring counts as nothing.
    """
    height, width = noise.shape[-2:]
    ring = radial_bands(height, width, _RINGS).to(noise.device)
    modes = band_sums(torch.ones_like(noise), ring, _RINGS).clamp(min=1)
    more = band_sums(target * noise - 1, ring, _RINGS) / modes
    return (1 + torch.where(more > 4 / (count * modes).sqrt(), more, 0.0)[ring]) / noise


def _about_a_path(process: Solved, images: Tensor, mean: Tensor, t: Tensor, seed: int) -> _Row:
    """Where a state is a function of its image and noise: u = m + n, b linear in them."""
    sums, count = _Sums(), images.shape[0] * images.shape[1]
    like = precise(images[:1])
    noise = process.step.noise(process.equation, t.reshape(1).to(like.device), like)
    for part in torch.split(torch.arange(len(images), device=images.device), _BATCH):
        x0, when, keys = images[part], t.expand(len(part)), combine(seed, 1, part)
        quiet = process.training_pair(x0, when, Silence(keys))
        m, b = dct2(quiet.state - mean[:, None, None]), _drift(quiet.drift, x0)
        sums.add("signal", m.square())
        sums.add("cross", m * b)
        sums.add("square", b.square())
        if noise is None:
            drawn = process.training_pair(x0, when, KeyedNoise(keys))
            n, moved = dct2(drawn.state - quiet.state), _drift(drawn.drift, x0) - b
            sums.add("xi", dct2(KeyedNoise(keys).normal(x0)).square())
            sums.add("noise", n.square())
            sums.add("noise cross", n * moved)
            sums.add("noise square", moved.square())
            sums.add("target", dct2(drawn.target - quiet.target).square())
            sums.add("known target", dct2(quiet.target).square())
    signal, cross, square = (sums[k] / count for k in ("signal", "cross", "square"))
    if noise is not None:
        return _row(process.equation, t, noise, signal, 1 / noise, cross, square)
    noise, target, more, further = (sums[k] / sums["xi"] for k in ("noise", "target", "noise cross", "noise square"))
    if noise.min() < _LEAST:
        raise ValueError(_TOO_QUIET)
    target = target + sums["known target"] / count
    return _row(process.equation, t, noise, signal, _at_least(target, noise, count), cross + more, square + further)


def _in_pairs(process: Solved, images: Tensor, mean: Tensor, t: Tensor, seed: int) -> _Row:
    """From two independent runs."""
    sums, count = _Sums(), images.shape[0] * images.shape[1]
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
        _add_runs(sums, dct2(x0 - mean[:, None, None]), runs)
    target, cross, square = (sums[k] / (2 * count) for k in ("target", "cross", "square"))
    noise, signal = _signal_and_noise(sums, count)
    return _row(process.equation, t, noise, signal, _at_least(target, noise, count), cross, square)


def _add_runs(sums: _Sums, image: Tensor, runs: list[Tensor]) -> None:
    """Modes of two independent ``runs`` from the modes of their ``image``, all [B, C, H, W]."""
    sums.add("data", image.square())
    for u in runs:
        sums.add("power", u.square())
        sums.add("link", u * image)
    sums.add("signal", runs[0] * runs[1])


def _signal_and_noise(sums: _Sums, count: int) -> tuple[Tensor, Tensor]:
    """N and S from sums over ``count`` pairs of runs.

    Two runs tell a signal of power²/count from zero, the link to the image one of power/count, that of a whole ring
    one of power/(count·modes). What none of them tells apart from zero is not a signal. Until its own error is a
    fifth, a weak mode has what its ring has left: at 32² ln S of signals from 2e-3 to 2e-2 of the noise is then off
    by 0.1 instead of 0.3 (rms, 200 images).
    """
    power, link = (sums[k] / (2 * count) for k in ("power", "link"))
    signal, data = sums["signal"] / count, sums["data"] / count
    chance = power / (2 * count)
    linear = link.square() / data.clamp(min=1e-300)
    pooled = torch.minimum(_left(link, data, chance).square() * data, 0.5 * power)
    told = torch.maximum(6 * chance, torch.minimum(100 * chance, 0.02 * power))
    linear = torch.where(linear > told, linear - chance, pooled)
    signal = torch.where(signal > 10 * power / count**0.5, signal, linear)
    # the score's linear part is −1/V: what two estimators do not share must not be lost in V
    return power - signal, signal


def _left(link: Tensor, data: Tensor, chance: Tensor) -> Tensor:
    """Cov(û, x̂)/D in rings of like √z, a mode wide, [H, W]; 0 where it is less than three standard deviations."""
    height, width = link.shape[-2:]
    rings = max(height, width)
    ring = (frequencies(height, width, link.dtype, link.device) / 8).sqrt().mul(rings - 1).round().long()
    total = band_sums(data, ring, rings).clamp(min=1e-300)
    left, spread = band_sums(link, ring, rings) / total, band_sums(chance * data, ring, rings).sqrt() / total
    return torch.where(left > 3 * spread, left, 0.0)[ring]


def _drift(drift: Tensor | None, like: Tensor) -> Tensor:
    """Modes of a drift."""
    return torch.zeros_like(like) if drift is None else dct2(drift)


def _row(
    equation: Equation, t: Tensor, noise: Tensor, signal: Tensor, target: Tensor, cross: Tensor, square: Tensor
) -> _Row:
    """With w and the power of the drift's residual, from E[b̂û] and E|b̂|²."""
    power, one = signal + noise, t.reshape(1)
    alpha1, alpha2 = float(equation.alpha1(one)), float(equation.alpha2(one))
    z = frequencies(power.shape[-2], power.shape[-1], torch.float64, power.device)
    weight = torch.where(alpha1 * z > 0, -cross / (alpha1 * z * power).clamp(min=1e-300), 1.0)
    return _Row(noise, signal, weight, target, (square - cross.square() / power).clamp(min=0) / alpha2**4)
