"""Second moments of a forward process on a data set, per frequency and time: what preconditioning stands on.

For DCT mode k at time t, about the channel means μ of the data (pooled over channels):

    S_k = Cov(û_k, û'_k)        of two runs from one image: power of what is still known of it; where it drowns in
                                the noise, Cov(û_k, x̂_k)²/D_k instead, the part that is linear in the image x
    V_k = E|û_k|²               power of the state;  N_k = V_k − S_k, power of the noise
    w_k = −E[b̂_k û_k]/(α1 z_k V_k)   mean edge weight: the drift's best linear predictor is b_ref = −α1 w_k z_k û_k
    Y_k = E|score target|²      power of the regression target;  E_k = power of the drift's residual

**Colours.** Channels of an image are correlated. In the principal axes of their covariance (rows of ``axes``) the
power of a mode is D_k s_ck, ``shares`` s_ck of mean 1 over the axes, and that of its signal is taken as S_k s_ck;
white noise stays what it is. Without them (the default) axes are the channels and all shares 1.

The best linear predictor of the score is exactly −1/V_k, whatever the data (Stein). Entries stand on a grid of
(cell, phase): cells end where the drift may jump, and t ∈ (e_k, e_{k+1}] belongs to cell k, so the value at an edge
is the limit from the left. Between phases logarithms are interpolated linearly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from anisodiff.hashing import combine
from anisodiff.linear import grid_decay, grid_variance
from anisodiff.noise import KeyedNoise
from anisodiff.objectives import Exact, Objective
from anisodiff.transforms import band_sums, dct2, frequencies, radial_bands

_RINGS = 8


@dataclass(frozen=True)
class Moments:
    """The tables: [K, P, H, W] each but for those that say otherwise; float32, but for edges and phases."""

    edges: Tensor
    phases: Tensor
    """[P], places in a cell, in (0, 1]."""
    mean: Tensor
    """μ, [C]."""
    data: Tensor
    """D_k, power of the images, [H, W]."""
    axes: Tensor
    """Orthonormal rows, [C, C]."""
    shares: Tensor
    """s_ck, [C, H, W], or [1, H, W] where all are 1."""
    log_noise: Tensor
    """ln N."""
    log_signal: Tensor
    """ln S; where no signal can be told from zero, 10⁻⁴ of the noise."""
    weight: Tensor
    """w, 1 when the drift is isotropic; 1 by convention for the constant mode."""
    log_target: Tensor
    """ln Y."""
    log_residual: Tensor
    """ln of the power of b̂ − β û, per α2⁴: the second output's target."""

    def to(self, device: torch.device) -> "Moments":
        """The same on another device."""
        return Moments(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})

    def locate(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Cell (int64) and phase in (0, 1] of times ``t`` (float64 [B])."""
        edges = self.edges.to(t.device, torch.float64)
        cell = (torch.searchsorted(edges, t.contiguous()) - 1).clamp(0, len(edges) - 2)
        return cell, (t - edges[cell]) / (edges[cell + 1] - edges[cell])

    def at(self, table: Tensor, cell: Tensor, phase: Tensor) -> Tensor:
        """A table at (cell, phase): [B, H, W] (or [B] for a table without frequencies)."""
        phases = self.phases.to(phase.device)
        right = torch.searchsorted(phases, phase.contiguous()).clamp(1, len(phases) - 1)
        weight = ((phase - phases[right - 1]) / (phases[right] - phases[right - 1])).clamp(0, 1).to(table.dtype)
        weight = weight.reshape(weight.shape + (1,) * (table.dim() - 2))
        return torch.lerp(table[cell, right - 1], table[cell, right], weight)


def plain_colours(channels: int, data: Tensor) -> dict[str, Tensor]:
    """``axes`` and ``shares`` of channels that are taken as they are; place and precision of ``data``."""
    return {"axes": torch.eye(channels).to(data), "shares": torch.ones_like(data)[None]}


def principal_colours(centred: Tensor) -> dict[str, Tensor]:
    """``axes`` and ``shares`` of images ``centred`` about their channel means, DCT modes [N, C, H, W]; float32.

    An axis points to where most of its numbers are positive: no sign is left to chance.
    """
    modes = centred.double()
    axes = torch.linalg.eigh(torch.einsum("nchw,ndhw->cd", modes, modes)).eigenvectors.mT.flip(0)
    axes = axes * torch.where(axes.sum(1, keepdim=True) < 0, -1.0, 1.0)
    power = _symmetric(turned(modes, axes).square().mean(0))
    shares = (power / power.mean(0).clamp(min=1e-300)).clamp(min=1e-3)
    return {"axes": axes.float(), "shares": (shares / shares.mean(0)).float()}


def turned(z: Tensor, axes: Tensor) -> Tensor:
    """Σ_d axes_cd z_d for ``z`` [B, C, H, W]; by sums, which no device rounds to fewer digits, as it may products."""
    return (axes[:, :, None, None] * z[:, None]).sum(2)


def _symmetric(x: Tensor) -> Tensor:
    """On square images rows and columns are alike: average the two, halving the error of estimation."""
    return 0.5 * (x + x.mT) if x.shape[-1] == x.shape[-2] else x


def _excess(x: Tensor, count: int) -> Tensor:
    """By how much x exceeds 1 in wide rings of frequencies, [H, W], from ``count`` pairs of samples; never negative.

    Chance moves a mode's estimate by 2/√count: what is less than twice that of a whole ring counts as nothing.
    """
    height, width = x.shape[-2:]
    ring = radial_bands(height, width, _RINGS).to(x.device)
    modes = band_sums(torch.ones_like(x), ring, _RINGS).clamp(min=1)
    mean = band_sums(x - 1, ring, _RINGS) / modes
    return torch.where(mean > 4 / (count * modes).sqrt(), mean, 0.0)[ring]


def measure(
    objective: Objective,
    images: Tensor,
    *,
    seed: int = 0,
    batch: int = 512,
    colours: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Moments:
    """Tables of ``objective`` on ``images`` [N, C, H, W] in [0, 1]; exact but for the data's spectrum when linear.

    ``colours``: in the principal axes of the channels.
    """
    edges = torch.tensor(objective.edges, dtype=torch.float64)
    mean = images.double().mean((0, 2, 3)).float()
    centred = dct2(images - mean[:, None, None])
    data = _symmetric(centred.double().square().mean((0, 1)))
    phases = objective.phases
    shape = (len(edges) - 1, len(phases), *images.shape[-2:])
    noise, signal, weight, target, residual = (torch.zeros(shape, dtype=torch.float64) for _ in range(5))
    device = images.device
    for k in range(shape[0]):
        for j, phase in enumerate(phases):
            t = objective.settle(edges[k] + phase * (edges[k + 1] - edges[k]))
            if isinstance(objective, Exact):
                one = t.to(device).reshape(1)
                like = images[:1].double()
                spread = grid_variance(objective.equation, torch.zeros_like(one), one, like)[0, 0]
                known = grid_decay(objective.equation, torch.zeros_like(one), one, like)[0, 0] ** 2 * data
                row: Sequence[Tensor] = (spread, known, torch.ones_like(spread), 1 / spread, torch.zeros_like(spread))
            else:
                row = _measure_at(objective, images, mean, t, seed + 7919 * (k * len(phases) + j), batch)
            for table, value in zip((noise, signal, weight, target, residual), row):
                table[k, j] = value.cpu()
        if progress:
            progress(k + 1, shape[0])
    signal = torch.maximum(signal, (1e-8 if isinstance(objective, Exact) else 1e-4) * noise)
    tables = {
        "log_noise": noise.log(), "log_signal": signal.log(), "weight": weight, "log_target": target.log(),
        "log_residual": residual.clamp(min=1e-30).log(),
    }  # fmt: skip
    single = {name: value.float().to(device) for name, value in tables.items()}
    if not all(bool(table.isfinite().all()) for table in single.values()):
        raise ValueError(
            "the process has times with no noise that single precision could tell from the images: nothing can be "
            "learned there; set a larger intensity"
        )
    data = data.float()
    axes = principal_colours(centred) if colours else plain_colours(images.shape[1], data)
    return Moments(edges=edges.to(device), phases=phases.to(device), mean=mean, data=data, **axes, **single)


def _measure_at(
    objective: Objective, images: Tensor, mean: Tensor, t: Tensor, seed: int, batch: int
) -> Sequence[Tensor]:
    """N, S, w, Y and the drift residual's power at one time, from two independent runs."""
    sums: dict[str, Tensor] = {}

    def add(name: str, value: Tensor) -> None:
        total = value.double().sum((0, 1))
        sums[name] = sums[name] + total if name in sums else total

    index = torch.arange(len(images), device=images.device)
    for part in torch.split(index, batch):
        x0 = images[part]
        image = dct2(x0 - mean[:, None, None])
        when = t.expand(len(part))
        add("data", image.square())
        runs = []
        for run in (1, 2):
            drawn = objective.draw(x0, when, KeyedNoise(combine(seed, run, part)))
            u = dct2(drawn.state - mean[:, None, None])
            b = dct2(drawn.drift) if drawn.drift is not None else torch.zeros_like(u)
            add("power", u.square())
            add("link", u * image)
            add("target", dct2(drawn.score).square())
            add("drift", u * b)
            add("square", b.square())
            runs.append(u)
        add("signal", runs[0] * runs[1])
    count = images.shape[0] * images.shape[1]
    power, target, cross, square = (_symmetric(sums[k]) / (2 * count) for k in ("power", "target", "drift", "square"))
    signal, data = (_symmetric(sums[k]) / count for k in ("signal", "data"))
    # Two runs tell a signal of power²/count from zero, the link to the image one of power/count. What neither tells
    # apart from zero is not a signal.
    chance = power / (2 * count)
    linear = (_symmetric(sums["link"]) / (2 * count)).square() / data.clamp(min=1e-300)
    linear = torch.where(linear > 6 * chance, linear - chance, 0.0)
    signal = torch.where(signal > 10 * power / count**0.5, signal, linear)
    exact = objective.known_noise(t.reshape(1).to(images.device), images[:1].double())
    if exact is not None:
        noise, power = exact, signal + exact
    else:  # the score's linear part is −1/V: what two estimators do not share must not be lost in V
        noise = power - signal
    target = (1 + _excess(target * noise, count)) / noise  # Y ≥ 1/N, which is that of isotropic noise
    one = t.reshape(1)
    alpha1, alpha2 = float(objective.equation.alpha1(one)), float(objective.equation.alpha2(one))
    z = frequencies(images.shape[-2], images.shape[-1], torch.float64, images.device)
    weight = torch.where(alpha1 * z > 0, -cross / (alpha1 * z * power).clamp(min=1e-300), 1.0)
    return noise, signal, weight, target, (square - cross.square() / power).clamp(min=0) / alpha2**4
