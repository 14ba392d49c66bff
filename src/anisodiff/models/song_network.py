"""A published network of Song et al. 2021 inside a `ScoreModel` (``--from FILE.pth``).

The published network n has the score n(2v − 1, ln σ)/σ for an image v with noise σ. The network of a `ScoreModel`
maps a unit-scale state x and the noise level to the unit-scale residual F̂ of the Wiener filter. In the DCT, with D
the power of the images per frequency, σ_d² its mean and μ the channel means:

    v̂ = μ̂ + √(σ² + σ_d²)·x̂                        an image with white noise σ
    F̂ = √(V/D)·(n̂(2v − 1, ln σ) + σ(v̂ − μ̂)/V),    V = D + σ²

For the process `ve` these invert the coefficients of the model: its score is n(2u − 1, ln σ)/σ, with σ² the variance
accumulated since t = 0. (The published process has σ(t)² where ours has σ(t)² − σ_min²: the same states at other
times.) For other processes σ is the white noise of equal mutual information (`noise_level`), and F̂ is an
initialization for fine-tuning, not the score. A second output is passed through; it starts at 0, the best linear
predictor of the drift.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from anisodiff.dct import dct2, idct2
from anisodiff.models.base import noise_level
from anisodiff.statistics import SpectralStatistics
from anisodiff.tensors import interpolate, to_float64

_FLOOR = 1e-8  # of the noise: the least signal in the statistics of linear processes


def equivalent_noise(statistics: SpectralStatistics) -> Tensor:
    """ln σ on (interval, phase), [K, P] float64: `noise_level` + ln σ_d, refined by Newton's method."""
    data = to_float64(statistics.data)
    information = torch.log1p(to_float64(statistics.log_signal - statistics.log_noise).exp()).sum((-2, -1))
    log = to_float64(noise_level(statistics)) + 0.5 * data.mean().log()
    for _ in range(4):  # the start has an error of 1e-3
        ratio = data * torch.exp(-2 * log)[..., None, None]
        log = log + 0.5 * (torch.log1p(ratio).sum((-2, -1)) - information) / (ratio / (1 + ratio)).sum((-2, -1))
    return log


class SongNetwork(nn.Module):
    """F(x, c): x[B,C,H,W], condition c[B] → [B,C or 2C,H,W], around a published network n(2v − 1, ln σ)."""

    mean: Tensor
    data: Tensor
    condition: Tensor
    log_sigma: Tensor

    def __init__(self, network: nn.Module, statistics: SpectralStatistics, conditions: Tensor) -> None:
        """``conditions``: the noise_level input of the model on the grid of its statistics, [K·P]."""
        super().__init__()
        self.network = network
        # both the noise level and ln σ are linear between these points, so interpolation is exact
        condition, order = to_float64(conditions).sort()
        for name, value in {
            "mean": statistics.mean,
            "data": statistics.data,
            "condition": condition,
            "log_sigma": equivalent_noise(statistics).flatten()[order],
        }.items():
            self.register_buffer(name, value, persistent=False)  # stored with the statistics of the model

    def _log_sigma(self, c: Tensor) -> Tensor:
        """ln σ for the noise_level input ``c``, [B]."""
        return interpolate(c, self.condition, self.log_sigma)

    def wrap_network(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        self.network = wrap(self.network)

    def forward(
        self, x: Tensor, noise_level: Tensor, labels: Tensor | None = None, dropout_key: Tensor | None = None
    ) -> Tensor:
        channels, full_precision = x.shape[1], torch.autocast(x.device.type, enabled=False)
        with full_precision:  # else autocast would compute the DCT in half precision
            log_sigma = self._log_sigma(noise_level.to(self.condition)).to(x)
            sigma = log_sigma.exp()[:, None, None, None]
            data = self.data.to(x.dtype)
            signal = torch.maximum(data, _FLOOR * sigma.square())
            z = dct2(x) * (sigma.square() + data.mean() * signal / data.clamp(min=1e-30)).sqrt()
            image = idct2(z) + self.mean.to(x.dtype)[:, None, None]
        out: Tensor = self.network(2 * image - 1, log_sigma, labels, dropout_key)
        with full_precision:
            out, power = out.to(x.dtype), signal + sigma.square()
            residual = (power / signal).sqrt() * (dct2(out[:, :channels]) + sigma * z / power)
            return torch.cat([idct2(residual), out[:, channels:]], dim=1)
