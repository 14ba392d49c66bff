"""A network that was trained as Song et al. 2021 publish it, inside a `ScoreModel`: what --from FILE.pth starts with.

The published network n knows a noisy image v and its noise, and gives the score n(2v − 1, ln σ)/σ. A `ScoreModel`
asks for something else: it shows a state x of unit scale, tells the noise level, and wants the unit-scale residual F̂
of the score after the Wiener filter. With D the images' power per frequency, σ_d² its mean, μ the channel means, in
the DCT:

    v̂ = μ̂ + √(σ² + σ_d²)·x̂                        what is seen, taken for an image under white noise σ
    F̂ = √(V/D)·(n̂(2v − 1, ln σ) + σ(v̂ − μ̂)/V),    V = D + σ²

For the process `ve` these undo the model's own coefficients: its score *is* n(2u − 1, ln σ)/σ, with σ² the variance
accumulated since t = 0. The published process has σ(t)² where ours has σ(t)² − σ_min²: the same states, at other
times.
Other processes have another noise and another smoothing in every frequency. There σ is the white noise that leaves
as much information of an image (`noise_level`), and what the network says of the image in units of what can be
known is taken over frequency by frequency: a start for fine-tuning, not the score. A second output is passed
through: it begins with 0, the drift's best linear predictor.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from anisodiff.dct import dct2, idct2
from anisodiff.models.base import noise_level
from anisodiff.statistics import SpectralStatistics
from anisodiff.tensors import to_float64

_FLOOR = 1e-8  # of the noise: the least signal in the statistics of linear processes


def equivalent_noise(statistics: SpectralStatistics) -> Tensor:
    """ln σ on (interval, phase), [K, P] float64: Σ_k ln(1 + D_k/σ²) = Σ_k ln(1 + S_k/N_k), as `noise_level` but exact."""
    data = to_float64(statistics.data)
    known = torch.log1p(to_float64(statistics.log_signal - statistics.log_noise).exp()).sum((-2, -1))
    log = to_float64(noise_level(statistics)) + 0.5 * data.mean().log()
    for _ in range(4):  # Newton's method, from a start that is right to 1e-3
        ratio = data * torch.exp(-2 * log)[..., None, None]
        log = log + 0.5 * (torch.log1p(ratio).sum((-2, -1)) - known) / (ratio / (1 + ratio)).sum((-2, -1))
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
        # the model's level is linear between these points, and so is the logarithm of its noise: read back exactly
        told, order = to_float64(conditions).sort()
        for name, value in {
            "mean": statistics.mean,
            "data": statistics.data,
            "condition": told,
            "log_sigma": equivalent_noise(statistics).flatten()[order],
        }.items():
            self.register_buffer(name, value, persistent=False)  # the model's statistics hold them

    def _log_sigma(self, c: Tensor) -> Tensor:
        """ln σ that the model's condition ``c`` stands for, [B]."""
        right = torch.searchsorted(self.condition, c.contiguous()).clamp(1, len(self.condition) - 1)
        low, high = self.condition[right - 1], self.condition[right]
        weight = ((c - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
        return torch.lerp(self.log_sigma[right - 1], self.log_sigma[right], weight)

    def wrap_network(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        self.network = wrap(self.network)

    def forward(
        self, x: Tensor, noise_level: Tensor, labels: Tensor | None = None, dropout_key: Tensor | None = None
    ) -> Tensor:
        """The residual that the model asks for, and a second output as it comes."""
        channels, exactly = x.shape[1], torch.autocast(x.device.type, enabled=False)
        with exactly:  # half precision is for the network alone: a DCT is a product of matrices
            log_sigma = self._log_sigma(noise_level.to(self.condition)).to(x)
            sigma = log_sigma.exp()[:, None, None, None]
            data = self.data.to(x.dtype)
            signal = torch.maximum(data, _FLOOR * sigma.square())
            z = dct2(x) * (sigma.square() + data.mean() * signal / data.clamp(min=1e-30)).sqrt()
            image = idct2(z) + self.mean.to(x.dtype)[:, None, None]
        out: Tensor = self.network(2 * image - 1, log_sigma, labels, dropout_key)
        with exactly:
            out, power = out.to(x.dtype), signal + sigma.square()
            residual = (power / signal).sqrt() * (dct2(out[:, :channels]) + sigma * z / power)
            return torch.cat([idct2(residual), out[:, channels:]], dim=1)
