"""Radially averaged power spectra of image sets, and how far two of them are apart, in float64.

    P(r) = mean over images, channels and frequencies with round(min(H,W)·|f|) = r of |FFT(u)(f)|²/(HW)
    error = √( meanᵣ log₁₀²( (P(r)+ε) / (Q(r)+ε) ) ),   r = 1 … ⌊min(H,W)/2⌋,   ε = 1/(12·255²)

u are pixels in [0,1], f in cycles a pixel; the mean (r=0) and the corners beyond Nyquist are left out. ε is
the power of rounding to 8 bits: below it a spectrum says nothing. The error counts decades: 0.3 is a factor
of two in power. It is zero for equal spectra, symmetric, and obeys the triangle inequality.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

QUANTISATION_POWER = 1 / (12 * 255**2)


@dataclass(frozen=True, kw_only=True, eq=False)
class SpectrumStatistics:
    """Number of images, and the sum of their radially averaged spectra ``[R]`` for r = 1 … R."""

    count: int
    total: Tensor

    def merge(self, other: SpectrumStatistics) -> SpectrumStatistics:
        """Statistics of both sets together."""
        if self.total.shape != other.total.shape:
            raise ValueError(f"spectra of different lengths: {len(self.total)} and {len(other.total)}")
        return SpectrumStatistics(count=self.count + other.count, total=self.total + other.total)

    @property
    def power(self) -> Tensor:
        """P(r) ``[R]``."""
        return self.total / self.count


def radii(height: int, width: int) -> Tensor:
    """round(min(H,W)·|f|) of every frequency ``[H,W]`` of an unshifted FFT."""
    fy = torch.fft.fftfreq(height, dtype=torch.float64)
    fx = torch.fft.fftfreq(width, dtype=torch.float64)
    return (torch.hypot(fy[:, None], fx) * min(height, width)).round().long()


def spectrum_statistics(images: Tensor) -> SpectrumStatistics:
    """uint8 ``[B,C,H,W]`` → statistics."""
    height, width = images.shape[-2:]
    if min(height, width) < 2:
        raise ValueError(f"a spectrum needs images of at least 2×2 pixels, got {height}×{width}")
    power = torch.fft.fft2(images.double() / 255).abs().square().mean(dim=1).sum(dim=0) / (height * width)
    ring = radii(height, width).flatten().to(images.device)
    inside = ring <= min(height, width) // 2
    total = torch.bincount(ring[inside], weights=power.flatten()[inside])
    return SpectrumStatistics(count=len(images), total=(total / torch.bincount(ring[inside]))[1:])


def spectrum_error(first: SpectrumStatistics, second: SpectrumStatistics) -> float:
    """Root mean squared difference of log₁₀ power, in decades."""
    p, q = first.power, second.power
    if p.shape != q.shape:
        raise ValueError(f"spectra of different lengths: {len(p)} and {len(q)}; the image sizes differ")
    ratio = ((p + QUANTISATION_POWER) / (q.to(p.device) + QUANTISATION_POWER)).log10()
    return float(ratio.square().mean().sqrt())
