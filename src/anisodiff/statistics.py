"""Second moments of a forward process on a data set, per frequency and time: what preconditioning stands on.

For DCT mode k at time t, about the channel means μ of the data (pooled over channels):

    S_k = Cov(û_k, û'_k)        of two runs from one image: power of what is still known of it
    V_k = E|û_k|²               power of the state;  N_k = V_k − S_k, power of the noise
    w_k = −E[b̂_k û_k]/(α1 z_k V_k)   mean edge weight: the drift's best linear predictor is b_ref = −α1 w_k z_k û_k
    Y_k = E|score target|²      power of the regression target;  E_k = power of the drift's residual

**Channel PCA.** Channels of an image are correlated. In the principal axes of their covariance (rows of ``axes``) the
power of a mode is D_k s_ck, ``shares`` s_ck of mean 1 over the axes, and that of its signal is taken as S_k s_ck;
white noise stays what it is. Without them (the default) axes are the channels and all shares 1.

The best linear predictor of the score is exactly −1/V_k, whatever the data (Stein). Entries stand on a grid of
(cell, phase): cells end where the drift may jump, and t ∈ (e_k, e_{k+1}] belongs to cell k, so the value at an edge
is the limit from the left. Phases are fractions of a cell, ascending to 1; between them logarithms are interpolated
linearly. How the statistics are found: `estimation`.
"""

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from anisodiff.equation import Equation
from anisodiff.tensors import moved, precise, settled, wide

_SHORT = (0.04, 0.15, 0.3, 0.5, 0.75, 1.0)
_POINTS, _MANY = 40, 8


@dataclass(frozen=True)
class SpectralStatistics:
    """[K, P, H, W] each but for those that say otherwise; float32, but for edges and phases."""

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

    def to(self, device: torch.device) -> "SpectralStatistics":
        """The same on another device."""
        return SpectralStatistics(**{f.name: settled(getattr(self, f.name), device) for f in fields(self)})

    def locate(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Cell (int64) and phase in (0, 1] of times ``t`` (float64 [B])."""
        edges = self.edges.to(t.device, wide(t.device))
        cell = (torch.searchsorted(edges, t.contiguous()) - 1).clamp(0, len(edges) - 2)
        return cell, (t - edges[cell]) / (edges[cell + 1] - edges[cell])

    def at(self, table: Tensor, cell: Tensor, phase: Tensor) -> Tensor:
        """A table at (cell, phase): [B, H, W] (or [B] for a table without frequencies)."""
        phases = moved(self.phases, phase.device)
        right = torch.searchsorted(phases, phase.contiguous()).clamp(1, len(phases) - 1)
        weight = ((phase - phases[right - 1]) / (phases[right] - phases[right - 1])).clamp(0, 1).to(table.dtype)
        weight = weight.reshape(weight.shape + (1,) * (table.dim() - 2))
        return torch.lerp(table[cell, right - 1], table[cell, right], weight)


def channel_axes(channels: int, data: Tensor) -> dict[str, Tensor]:
    """``axes`` and ``shares`` of channels that are taken as they are; place and precision of ``data``."""
    return {"axes": torch.eye(channels).to(data), "shares": torch.ones_like(data)[None]}


def principal_axes(centered: Tensor) -> dict[str, Tensor]:
    """``axes`` and ``shares`` of images ``centered`` about their channel means, DCT modes [N, C, H, W]; float32.

    An axis points to where most of its numbers are positive: no sign is left to chance.
    """
    modes = precise(centered)
    axes = torch.linalg.eigh(torch.einsum("nchw,ndhw->cd", modes, modes)).eigenvectors.mT.flip(0)
    axes = axes * torch.where(axes.sum(1, keepdim=True) < 0, -1.0, 1.0)
    power = symmetric(rotate_channels(modes, axes).square().mean(0))
    shares = (power / power.mean(0).clamp(min=1e-300)).clamp(min=1e-3)
    found = {"axes": axes, "shares": shares / shares.mean(0)}
    return {name: value.float().to(centered.device) for name, value in found.items()}


def rotate_channels(z: Tensor, axes: Tensor) -> Tensor:
    """Σ_d axes_cd z_d for ``z`` [B, C, H, W]; by sums, which no device rounds to fewer digits, as it may products."""
    return (axes[:, :, None, None] * z[:, None]).sum(2)


def symmetric(x: Tensor) -> Tensor:
    """On square images rows and columns are alike: average the two, halving the error of estimation."""
    return 0.5 * (x + x.mT) if x.shape[-1] == x.shape[-2] else x


def window_phases(cells: int) -> Tensor:
    """For ``cells`` windows, [P] float64. The first place lies where a target's variance begins to diverge.

    Short cells (eight or more) need six places. Fewer and longer ones need more: half of them even in ln(phase), for
    the noise begins as a power of t, half even in phase.
    """
    if cells >= _MANY:
        return torch.tensor(_SHORT, dtype=torch.float64)
    first, count = _SHORT[0] * cells / 10, max(len(_SHORT), _POINTS // cells)
    fine = torch.exp(torch.linspace(math.log(first), 0.0, 4001, dtype=torch.float64))
    place = torch.linspace(0.0, 1.0, 4001, dtype=torch.float64) + (fine - first) / (1 - first)
    index = torch.searchsorted(place, torch.linspace(0.0, 2.0, count, dtype=torch.float64)).clamp(max=4000)
    index[-1] = 4000
    return fine[index]


def step_phases(steps: int) -> Tensor:
    """For cells of ``steps`` time steps each: ends of steps, six at most, where single steps are learned."""
    chosen = {max(1, round(steps * phase)) for phase in _SHORT}
    return torch.tensor(sorted(chosen), dtype=torch.float64) / steps


def smooth_phases() -> Tensor:
    """Where nothing diverges: even, but for the very beginning of a cell, where the first has no noise yet."""
    return torch.tensor([1e-3, 0.2, 0.4, 0.6, 0.8, 1.0], dtype=torch.float64)


class ScalarCoefficients(NamedTuple):
    """EDM's c_in, c_skip and c_out: one number for all frequencies of a sample, [B, 1, 1, 1] each."""

    input: Tensor
    power: Tensor
    scale: Tensor
    residual: Tensor


class Powers(NamedTuple):
    """S, N and V at given times, S/V of every channel axis over that of their mean, and w."""

    signal: Tensor
    noise: Tensor
    power: Tensor
    share: Tensor | float
    weight: Tensor
    """Of the linear drift −α1 w z û."""

    @classmethod
    def at(cls, statistics: SpectralStatistics, cell: Tensor, phase: Tensor, *, plain_noise: bool) -> "Powers":
        """[B, 1, H, W], with channel PCA [B, C, H, W]; the share is 1 where the channels are the axes.

        ``plain_noise``: the drift moves the image alone, and so pulls an axis by as much as is known of it.
        """
        mean, noise = (
            statistics.at(x, cell, phase)[:, None].exp() for x in (statistics.log_signal, statistics.log_noise)
        )
        signal = mean * statistics.shares
        power = signal + noise
        share = 1.0 if len(statistics.shares) == 1 else signal / power * (1 + noise / mean)
        weight = statistics.at(statistics.weight, cell, phase)[:, None]
        return cls(signal, noise, power, share, weight * share if plain_noise else weight)


class Coefficients:
    """The statistics at one time per sample, as [B, 1, H, W] fields; with channel PCA [B, C, H, W]."""

    def __init__(
        self, statistics: SpectralStatistics, equation: Equation, t: Tensor, *, plain_noise: bool = False
    ) -> None:
        cell, phase = statistics.locate(t)

        def look(table: Tensor) -> Tensor:
            return statistics.at(table, cell, phase)[:, None]

        known = Powers.at(statistics, cell, phase, plain_noise=plain_noise)
        self.signal, self.noise, self.power, share, self.weight = known
        self.target = look(statistics.log_target).exp()
        self.residual = look(statistics.log_residual).mul(0.5).exp() * share**0.5  # d_k
        self.scale = (self.signal / (self.noise * self.power)).sqrt()  # c_k
        self.data = statistics.data * statistics.shares  # D
        self.known = self.signal / self.data  # S/D: the square of what smoothing leaves of a mode
        self.input = (self.noise + statistics.data.mean() * self.known).rsqrt()
        self.alpha1, self.alpha2 = (
            x.to(self.power.dtype)[:, None, None, None] for x in (equation.alpha1(t), equation.alpha2(t))
        )
        self.t, self.cell, self.phase = t, cell, phase

    def scalars(self) -> ScalarCoefficients:
        """EDM's c_in, c_skip and c_out: one number a sample, [B, 1, 1, 1] each."""
        signal, noise, square = (
            x.mean((-3, -2, -1), keepdim=True) for x in (self.signal, self.noise, self.residual.square())
        )
        power = signal + noise
        return ScalarCoefficients(power.rsqrt(), power, (signal / (noise * power)).sqrt(), square.sqrt())
