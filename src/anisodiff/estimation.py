"""How the tables of a process are found.

Linear processes: from the spectrum of the images and the equation, exactly.

Processes whose state is Gaussian given its image (`Objective.gaussian`: one window, `signal`): S and the drift of the
noise-free part m come from paths without noise, so that chance has no part in them, however far m lies below the
noise. The noise n is known (`signal`), or drawn and compared with the white ξ it is made of, N_k = Σ|n̂_k|²/Σ|ξ̂_k|²:
exact where nothing but its frequency shapes a mode, and elsewhere what chance does to both cancels.

All others: from two independent runs of every image. Where a signal drowns in the noise, S_k = Cov(û_k, x̂_k)²/D_k
instead, the part that is linear in the image x; where that drowns as well, what a ring of frequencies has left of x.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from anisodiff.dct import band_sums, dct2, frequencies, radial_bands
from anisodiff.gaussian_kernel import grid_decay, grid_variance
from anisodiff.noise import KeyedNoise, Silence, combine
from anisodiff.objectives import Exact, Objective
from anisodiff.statistics import SpectralStatistics, channel_axes, principal_axes, symmetric

_RINGS = 8
_LEAST = 1e-12
"""Variance of the least noise that can be told from an image in single precision."""
_TOO_QUIET = (
    "the process has times with no noise that single precision could tell from the images: nothing can be learned "
    "there; set a larger intensity"
)


class _Row(NamedTuple):
    """What is found at one time, [H, W] each, float64."""

    noise: Tensor
    signal: Tensor
    weight: Tensor
    target: Tensor
    residual: Tensor


class _Sums:
    """Sums over samples and channels, in double precision, of rows and columns alike."""

    def __init__(self) -> None:
        self._found: dict[str, Tensor | float] = defaultdict(float)

    def add(self, name: str, value: Tensor) -> None:
        """``value`` [B, C, H, W]."""
        self._found[name] = self._found[name] + value.double().sum((0, 1))

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


def estimate_statistics(
    objective: Objective,
    images: Tensor,
    *,
    seed: int = 0,
    batch: int = 512,
    channel_pca: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SpectralStatistics:
    """Tables of ``objective`` on ``images`` [N, C, H, W] in [0, 1]; exact but for the data's spectrum when linear.

    ``channel_pca``: in the principal axes of the channels.
    """
    edges = torch.tensor(objective.edges, dtype=torch.float64)
    mean = images.double().mean((0, 2, 3)).float()
    centered = dct2(images - mean[:, None, None])
    data = symmetric(centered.double().square().mean((0, 1)))
    phases = objective.phases
    found = [torch.zeros(len(edges) - 1, len(phases), *images.shape[-2:], dtype=torch.float64) for _ in _Row._fields]
    for k in range(len(edges) - 1):
        for j, phase in enumerate(phases):
            t = objective.snap_to_grid(edges[k] + phase * (edges[k + 1] - edges[k]))
            if isinstance(objective, Exact):
                row = _solved(objective, t.to(images.device).reshape(1), data)
            else:
                find = _about_a_path if objective.gaussian else _in_pairs
                row = find(objective, images, mean, t, seed + 7919 * (k * len(phases) + j), batch)
            for table, value in zip(found, row):
                table[k, j] = value.cpu()
        if progress:
            progress(k + 1, len(edges) - 1)
    noise, signal, weight, target, residual = found
    signal = torch.maximum(signal, (1e-8 if isinstance(objective, Exact) or objective.gaussian else 1e-4) * noise)
    tables = {
        "log_noise": noise.log(), "log_signal": signal.log(), "weight": weight, "log_target": target.log(),
        "log_residual": residual.clamp(min=1e-30).log(),
    }  # fmt: skip
    single = {name: value.float().to(images.device) for name, value in tables.items()}
    if not all(bool(table.isfinite().all()) for table in single.values()):
        raise ValueError(_TOO_QUIET)
    data = data.float()
    axes = principal_axes(centered) if channel_pca else channel_axes(images.shape[1], data)
    return SpectralStatistics(
        edges=edges.to(images.device), phases=phases.to(images.device), mean=mean, data=data, **axes, **single
    )


def _solved(objective: Exact, t: Tensor, data: Tensor) -> _Row:
    """Of a linear process at ``t`` [1], from the power of the images [H, W]."""
    like, begin = data[None, None], torch.zeros_like(t)
    noise = grid_variance(objective.equation, begin, t, like)[0, 0]
    signal = grid_decay(objective.equation, begin, t, like)[0, 0] ** 2 * data
    return _Row(noise, signal, torch.ones_like(noise), 1 / noise, torch.zeros_like(noise))


def _about_a_path(objective: Objective, images: Tensor, mean: Tensor, t: Tensor, seed: int, batch: int) -> _Row:
    """Where a state is a function of its image and noise: u = m + n, b linear in them."""
    sums, count = _Sums(), images.shape[0] * images.shape[1]
    noise = objective.known_noise(t.reshape(1).to(images.device), images[:1].double())
    for part in torch.split(torch.arange(len(images), device=images.device), batch):
        x0, when, keys = images[part], t.expand(len(part)), combine(seed, 1, part)
        quiet = objective.draw(x0, when, Silence(keys))
        m, b = dct2(quiet.state - mean[:, None, None]), _drift(quiet.drift, x0)
        sums.add("signal", m.square())
        sums.add("cross", m * b)
        sums.add("square", b.square())
        if noise is None:
            drawn = objective.draw(x0, when, KeyedNoise(keys))
            n, moved = dct2(drawn.state - quiet.state), _drift(drawn.drift, x0) - b
            sums.add("xi", dct2(KeyedNoise(keys).normal(x0)).square())
            sums.add("noise", n.square())
            sums.add("noise cross", n * moved)
            sums.add("noise square", moved.square())
            sums.add("target", dct2(drawn.score - quiet.score).square())
            sums.add("known target", dct2(quiet.score).square())
    signal, cross, square = (sums[k] / count for k in ("signal", "cross", "square"))
    if noise is not None:
        return _row(objective, t, noise, signal, 1 / noise, cross, square)
    noise, target, more, further = (sums[k] / sums["xi"] for k in ("noise", "target", "noise cross", "noise square"))
    if noise.min() < _LEAST:
        raise ValueError(_TOO_QUIET)
    target = target + sums["known target"] / count
    return _row(objective, t, noise, signal, _at_least(target, noise, count), cross + more, square + further)


def _in_pairs(objective: Objective, images: Tensor, mean: Tensor, t: Tensor, seed: int, batch: int) -> _Row:
    """From two independent runs."""
    sums, count = _Sums(), images.shape[0] * images.shape[1]
    for part in torch.split(torch.arange(len(images), device=images.device), batch):
        x0, when = images[part], t.expand(len(part))
        image = dct2(x0 - mean[:, None, None])
        sums.add("data", image.square())
        runs = []
        for run in (1, 2):
            drawn = objective.draw(x0, when, KeyedNoise(combine(seed, run, part)))
            u, b = dct2(drawn.state - mean[:, None, None]), _drift(drawn.drift, x0)
            sums.add("power", u.square())
            sums.add("link", u * image)
            sums.add("target", dct2(drawn.score).square())
            sums.add("cross", u * b)
            sums.add("square", b.square())
            runs.append(u)
        sums.add("signal", runs[0] * runs[1])
    power, link, target, cross, square = (
        sums[k] / (2 * count) for k in ("power", "link", "target", "cross", "square")
    )
    signal, data = sums["signal"] / count, sums["data"] / count
    # Two runs tell a signal of power²/count from zero, the link to the image one of power/count, that of a whole ring
    # one of power/(count·modes). What none of them tells apart from zero is not a signal. Until its own error is a
    # fifth, a weak mode has what its ring has left: at 32² ln S of signals from 2e-3 to 2e-2 of the noise is then off
    # by 0.1 instead of 0.3 (rms, 200 images).
    chance = power / (2 * count)
    linear = link.square() / data.clamp(min=1e-300)
    pooled = torch.minimum(_left(link, data, chance).square() * data, 0.5 * power)
    told = torch.maximum(6 * chance, torch.minimum(100 * chance, 0.02 * power))
    linear = torch.where(linear > told, linear - chance, pooled)
    signal = torch.where(signal > 10 * power / count**0.5, signal, linear)
    noise = power - signal  # the score's linear part is −1/V: what two estimators do not share must not be lost in V
    return _row(objective, t, noise, signal, _at_least(target, noise, count), cross, square)


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
    objective: Objective, t: Tensor, noise: Tensor, signal: Tensor, target: Tensor, cross: Tensor, square: Tensor
) -> _Row:
    """With w and the power of the drift's residual, from E[b̂û] and E|b̂|²."""
    power, one = signal + noise, t.reshape(1)
    alpha1, alpha2 = float(objective.equation.alpha1(one)), float(objective.equation.alpha2(one))
    z = frequencies(power.shape[-2], power.shape[-1], torch.float64, power.device)
    weight = torch.where(alpha1 * z > 0, -cross / (alpha1 * z * power).clamp(min=1e-300), 1.0)
    return _Row(noise, signal, weight, target, (square - cross.square() / power).clamp(min=0) / alpha2**4)
