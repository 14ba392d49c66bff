"""Second moments of a forward process on a data set, per frequency and time; the preconditioning is built on them.

For DCT mode k at time t, about the channel means μ of the data and pooled over channels:

    S_k = Cov(û_k, û'_k)             signal power: covariance of two independent states of one image
    V_k = E|û_k|²                    power of the state;  N_k = V_k − S_k is the noise power
    w_k = −E[b̂_k û_k]/(α1 z_k V_k)   mean edge weight: b_ref = −α1 w_k z_k û_k is the best linear drift
    Y_k = E|score target|²           power of the regression target
    E_k = E|b̂_k − b_ref|²/α2⁴        power of what b_ref leaves of the drift

The best linear predictor of the score is exactly −û_k/V_k, whatever the data (Stein).

**Channel PCA.** In the principal axes of the covariance of the channels (rows of ``axes``) a mode has the power
D_k s_ck, with ``shares`` s_ck of mean 1 over the axes, and the signal power S_k s_ck; white noise is unchanged.
Without PCA (the default) the axes are the channels and all shares are 1.

**Time.** Tables have one entry per (interval, phase). Intervals end where the drift may jump: t ∈ (e_k, e_{k+1}]
belongs to interval k, so the value at an edge is the limit from the left. A phase is a fraction of an interval in
(0, 1]; between phases the tables (logarithms, but for w) are interpolated linearly. `estimation` computes them.
"""

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from anisodiff.equation import Equation
from anisodiff.tensors import highest_precision, to_device, to_device_exactly, to_float64

_SHORT = (0.04, 0.15, 0.3, 0.5, 0.75, 1.0)
_POINTS, _MANY = 40, 8


@dataclass(frozen=True)
class SpectralStatistics:
    """Tables [K, P, H, W] in float32, unless a field says otherwise; K intervals, P phases."""

    edges: Tensor
    """[K + 1], float64."""
    phases: Tensor
    """[P], ascending in (0, 1], float64."""
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
    """ln S, not below a small fraction of the noise (`estimation`)."""
    weight: Tensor
    """w; 1 if the drift is isotropic, and for the constant mode."""
    log_target: Tensor
    """ln Y."""
    log_residual: Tensor
    """ln E, E the power of the target of the second output."""

    def to(self, device: torch.device) -> "SpectralStatistics":
        return SpectralStatistics(**{f.name: to_device_exactly(getattr(self, f.name), device) for f in fields(self)})

    def locate(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Interval (int64) and phase in (0, 1] of times ``t`` (float64 [B])."""
        edges = self.edges.to(t.device, highest_precision(t.device))
        interval = (torch.searchsorted(edges, t.contiguous()) - 1).clamp(0, len(edges) - 2)
        return interval, (t - edges[interval]) / (edges[interval + 1] - edges[interval])

    def at(self, table: Tensor, interval: Tensor, phase: Tensor) -> Tensor:
        """``table`` at (interval, phase): [B, H, W], or [B] for a table [K, P]."""
        phases = to_device(self.phases, phase.device)
        right = torch.searchsorted(phases, phase.contiguous()).clamp(1, len(phases) - 1)
        weight = ((phase - phases[right - 1]) / (phases[right] - phases[right - 1])).clamp(0, 1).to(table.dtype)
        weight = weight.reshape(weight.shape + (1,) * (table.dim() - 2))
        return torch.lerp(table[interval, right - 1], table[interval, right], weight)


def channel_axes(channels: int, data: Tensor) -> dict[str, Tensor]:
    """``axes`` and ``shares`` without channel PCA."""
    return {"axes": torch.eye(channels).to(data), "shares": torch.ones_like(data)[None]}


def principal_axes(centered: Tensor) -> dict[str, Tensor]:
    """``axes`` and ``shares`` of DCT modes [N, C, H, W] of images about their channel means; float32.

    The sign of an axis is fixed by a positive sum of its components.
    """
    modes = to_float64(centered)
    axes = torch.linalg.eigh(torch.einsum("nchw,ndhw->cd", modes, modes)).eigenvectors.mT.flip(0)
    axes = axes * torch.where(axes.sum(1, keepdim=True) < 0, -1.0, 1.0)
    power = symmetric(rotate_channels(modes, axes).square().mean(0))
    shares = (power / power.mean(0).clamp(min=1e-300)).clamp(min=1e-3)
    result = {"axes": axes, "shares": shares / shares.mean(0)}
    return {name: value.float().to(centered.device) for name, value in result.items()}


def rotate_channels(z: Tensor, axes: Tensor) -> Tensor:
    """Σ_d axes_cd z_d for ``z`` [B, C, H, W]; as a sum, because matrix products may be computed in TF32."""
    return (axes[:, :, None, None] * z[:, None]).sum(2)


def symmetric(x: Tensor) -> Tensor:
    """The mean of ``x`` and its transpose for square images, whose rows and columns have equal statistics."""
    return 0.5 * (x + x.mT) if x.shape[-1] == x.shape[-2] else x


def window_phases(intervals: int) -> Tensor:
    """Phases [P] float64 for T divided into ``intervals``. Below the first one the variance of a target diverges.

    Eight or more short intervals have six phases each. Fewer and longer ones have more: half of them uniform in
    ln(phase), because the noise begins as a power of t, half uniform in phase.
    """
    if intervals >= _MANY:
        return torch.tensor(_SHORT, dtype=torch.float64)
    first, count = _SHORT[0] * intervals / 10, max(len(_SHORT), _POINTS // intervals)
    fine = torch.exp(torch.linspace(math.log(first), 0.0, 4001, dtype=torch.float64))
    place = torch.linspace(0.0, 1.0, 4001, dtype=torch.float64) + (fine - first) / (1 - first)
    index = torch.searchsorted(place, torch.linspace(0.0, 2.0, count, dtype=torch.float64)).clamp(max=4000)
    index[-1] = 4000
    return fine[index]


def step_phases(steps: int) -> Tensor:
    """At most six phases for intervals of ``steps`` time steps, at ends of steps, as training times are."""
    chosen = {max(1, round(steps * phase)) for phase in _SHORT}
    return torch.tensor(sorted(chosen), dtype=torch.float64) / steps


def smooth_phases() -> Tensor:
    """For targets whose variance stays finite: uniform, and one phase near 0 for the first interval."""
    return torch.tensor([1e-3, 0.2, 0.4, 0.6, 0.8, 1.0], dtype=torch.float64)


class ScalarCoefficients(NamedTuple):
    """Coefficients of EDM: one number for all frequencies of a sample, [B, 1, 1, 1] each."""

    input: Tensor
    power: Tensor
    scale: Tensor
    residual: Tensor


class Powers(NamedTuple):
    """Powers at given times: [B, 1, H, W], or [B, C, H, W] with channel PCA."""

    signal: Tensor
    """S."""
    noise: Tensor
    """N."""
    power: Tensor
    """V = S + N."""
    share: Tensor | float
    """S/V of an axis divided by S/V of the mean over axes; 1 without channel PCA."""
    weight: Tensor
    """w of the linear drift −α1 w z û."""

    @classmethod
    def at(cls, statistics: SpectralStatistics, interval: Tensor, phase: Tensor, *, plain_noise: bool) -> "Powers":
        """``plain_noise``: the drift acts on the image alone, so w of an axis is proportional to its S/V."""
        mean, noise = (
            statistics.at(x, interval, phase)[:, None].exp() for x in (statistics.log_signal, statistics.log_noise)
        )
        signal = mean * statistics.shares
        power = signal + noise
        share = 1.0 if len(statistics.shares) == 1 else signal / power * (1 + noise / mean)
        weight = statistics.at(statistics.weight, interval, phase)[:, None]
        return cls(signal, noise, power, share, weight * share if plain_noise else weight)


class Coefficients:
    """The statistics and α1, α2 at one time per sample; [B, 1, H, W], or [B, C, H, W] with channel PCA."""

    def __init__(
        self, statistics: SpectralStatistics, equation: Equation, t: Tensor, *, plain_noise: bool = False
    ) -> None:
        interval, phase = statistics.locate(t)

        def at(table: Tensor) -> Tensor:
            return statistics.at(table, interval, phase)[:, None]

        powers = Powers.at(statistics, interval, phase, plain_noise=plain_noise)
        self.signal, self.noise, self.power, share, self.weight = powers
        self.target = at(statistics.log_target).exp()  # Y
        self.residual = at(statistics.log_residual).mul(0.5).exp() * share**0.5  # d = √E
        self.scale = (self.signal / (self.noise * self.power)).sqrt()  # c
        self.data = statistics.data * statistics.shares  # D
        self.kept = self.signal / self.data  # S/D, the squared factor by which smoothing has damped a mode
        self.input = (self.noise + statistics.data.mean() * self.kept).rsqrt()
        self.alpha1, self.alpha2 = (
            x.to(self.power.dtype)[:, None, None, None] for x in (equation.alpha1(t), equation.alpha2(t))
        )
        self.t, self.interval, self.phase = t, interval, phase

    def scalars(self) -> ScalarCoefficients:
        """The same with S, N and d² replaced by their means over all frequencies."""
        signal, noise, square = (
            x.mean((-3, -2, -1), keepdim=True) for x in (self.signal, self.noise, self.residual.square())
        )
        power = signal + noise
        return ScalarCoefficients(power.rsqrt(), power, (signal / (noise * power)).sqrt(), square.sqrt())
