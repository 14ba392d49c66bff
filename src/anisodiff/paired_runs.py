"""Signal and noise power per DCT mode from two independent simulations of every image.

    S = Cov(û, û'),     N = V − S,     û, û' two states of the same image,  V = E|û|²

Where S is below its own error, the part that is linear in the image x is used instead, S = Cov(û, x̂)²/D; where that
is below its error, too, the mean over modes of similar frequency.
"""

from collections import defaultdict

import torch
from torch import Tensor

from anisodiff.dct import band_sums, frequencies
from anisodiff.statistics import symmetric
from anisodiff.tensors import to_float64


class Sums:
    """Named sums over samples and channels in float64, made `symmetric`."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor | float] = defaultdict(float)

    def add(self, name: str, value: Tensor) -> None:
        """``value`` [B, C, H, W]."""
        self._sums[name] = self._sums[name] + to_float64(value).sum((0, 1))

    def replace(self, name: str, value: Tensor) -> None:
        """Begin the sum ``name`` anew with ``value`` [B, C, H, W]."""
        self._sums[name] = to_float64(value).sum((0, 1))

    def __getitem__(self, name: str) -> Tensor:
        return symmetric(torch.as_tensor(self._sums[name]))


def add_runs(sums: Sums, image: Tensor, runs: list[Tensor]) -> None:
    """Add two independent ``runs`` of the same ``image``, DCT modes [B, C, H, W] each."""
    sums.add("data", image.square())
    for u in runs:
        sums.add("power", u.square())
        sums.add("cross with image", u * image)
    sums.add("signal", runs[0] * runs[1])


def signal_and_noise(sums: Sums, count: int) -> tuple[Tensor, Tensor]:
    """S and N from sums over ``count`` pairs of runs.

    The smallest detectable S is power/√count from the covariance of two runs, power/count from the covariance with
    the image (``cross``), and power/(count·modes) from that of all modes of a ring. A mode uses its own covariance
    with the image once its relative error is below a fifth, and the ring's until then: at 32² ln S of signals from
    2e-3 to 2e-2 of the noise is then off by 0.1 instead of 0.3 (rms, 200 images).
    """
    power, cross = (sums[k] / (2 * count) for k in ("power", "cross with image"))
    signal, data = sums["signal"] / count, sums["data"] / count
    bias = power / (2 * count)
    linear = cross.square() / data.clamp(min=1e-300)
    pooled = torch.minimum(_ring_gain(cross, data, bias).square() * data, 0.5 * power)
    threshold = torch.maximum(6 * bias, torch.minimum(100 * bias, 0.02 * power))
    linear = torch.where(linear > threshold, linear - bias, pooled)
    signal = torch.where(signal > 10 * power / count**0.5, signal, linear)
    return signal, power - signal  # V stays the measured power: the linear part of the score is −û/V


def _ring_gain(cross: Tensor, data: Tensor, bias: Tensor) -> Tensor:
    """Cov(û, x̂)/D averaged over rings of similar √z, [H, W]; 0 where it is below three standard errors."""
    height, width = cross.shape[-2:]
    rings = max(height, width)
    ring = (frequencies(height, width, cross.dtype, cross.device) / 8).sqrt().mul(rings - 1).round().long()
    total = band_sums(data, ring, rings).clamp(min=1e-300)
    gain, error = band_sums(cross, ring, rings) / total, band_sums(bias * data, ring, rings).sqrt() / total
    return torch.where(gain > 3 * error, gain, 0.0)[ring]
