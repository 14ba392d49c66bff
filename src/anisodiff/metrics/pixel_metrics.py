"""Distances between two sets of images on pixels u in [0,1], in float64; statistics of a batch in one pass.

Sliced Wasserstein distance (Rabin et al. 2011); u as one vector x of D = 3·H·W numbers, θ uniform on the unit sphere:

    SW₂² = E_θ W₂²(θᵀx, θᵀy),    W₂² = ∫₀¹ (F⁻¹(q) − G⁻¹(q))² dq

For y = x + c it is ‖c‖/√D in expectation. The sets may differ in number: the integral runs over the common
refinement of both sets' quantile steps, exactly.

Spectrum error, from radially averaged power spectra:

    P(r) = mean over images, channels and frequencies with round(min(H,W)·|f|) = r of |FFT(u)(f)|²/(HW)
    error = √( meanᵣ log₁₀²( (P(r)+ε) / (Q(r)+ε) ) ),   r = 1 … ⌊min(H,W)/2⌋,   ε = 1/(12·255²)

f in cycles per pixel; the mean (r=0) and the corners beyond Nyquist are left out. ε is the power of rounding to
8 bits. The error counts decades: 0.3 is a factor of two in power. It is zero for equal spectra, symmetric, and obeys
the triangle inequality.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff.metrics.edges import SMALLEST, EdgeStatistics, edge_statistics, no_edges

QUANTIZATION_POWER = 1 / (12 * 255**2)


def directions(dimension: int, count: int, *, generator: torch.Generator) -> Tensor:
    """``count`` random unit vectors as columns ``[D,count]``, float64."""
    if count < 1:
        raise ValueError(f"at least one direction is needed, got {count}")
    theta = torch.randn(dimension, count, dtype=torch.float64, generator=generator)
    unit: Tensor = theta / torch.linalg.vector_norm(theta, dim=0)
    return unit


def project(images: Tensor, theta: Tensor) -> Tensor:
    """uint8 ``[B,C,H,W]`` → projections θᵀx ``[B,P]`` of pixels in [0,1]."""
    return images.flatten(1).double().div_(255) @ theta.to(images.device)


def sliced_wasserstein(x: Tensor, y: Tensor) -> float:
    """SW₂ from projections ``[n,P]`` and ``[m,P]`` on the same P directions."""
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(f"expected [n,P] and [m,P], got {tuple(x.shape)} and {tuple(y.shape)}")
    n, m = len(x), len(y)
    if not n or not m:
        raise ValueError(f"both sets need images, got {n} and {m}")
    # Quantile levels as whole numbers of 1/(nm), so that i/n = j/m is recognized without rounding.
    steps = torch.cat([torch.arange(1, n + 1) * m, torch.arange(1, m + 1) * n])
    steps = torch.unique(steps)
    widths = torch.diff(steps, prepend=steps.new_zeros(1))
    before = steps - widths  # on (before, step] both quantile functions are constant
    x, y = x.sort(dim=0).values.double(), y.sort(dim=0).values.double()
    total = torch.zeros(x.shape[1], dtype=torch.float64, device=x.device)
    weights = (widths.double() / (n * m)).to(x.device)
    for part in torch.split(torch.arange(len(steps)), 1 << 16):
        gap = x[(before[part] // m).to(x.device)] - y[(before[part] // n).to(y.device)]
        total += (gap.square() * weights[part.to(x.device), None]).sum(dim=0)
    return float(total.mean().sqrt())


@dataclass(frozen=True, kw_only=True, eq=False)
class SpectrumStatistics:
    """Number of images, and the sum of their radially averaged spectra ``[R]`` for r = 1 … R."""

    count: int
    total: Tensor

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
    ratio = ((p + QUANTIZATION_POWER) / (q.to(p.device) + QUANTIZATION_POWER)).log10()
    return float(ratio.square().mean().sqrt())


@dataclass(frozen=True, kw_only=True, eq=False)
class PixelStatistics:
    """Spectrum, edge histograms, and projections ``[N,P]`` for the sliced Wasserstein distance."""

    spectrum: SpectrumStatistics
    edges: EdgeStatistics
    projections: Tensor

    @staticmethod
    def of(t: Mapping[str, Tensor]) -> "PixelStatistics":
        """From sums of :func:`pixel_statistics` over batches, and the projections of all images."""
        return PixelStatistics(
            spectrum=SpectrumStatistics(count=len(t["projections"]), total=t["spectrum"]),
            edges=EdgeStatistics(orientation=t["orientation"], coherence=t["coherence"], magnitude=t["magnitude"]),
            projections=t["projections"],
        )


def pixel_statistics(images: Tensor, theta: Tensor) -> dict[str, Tensor]:
    """uint8 ``[B,3,H,W]`` and directions ``[3HW,P]`` → statistics of one batch, on the CPU; all but ``projections``
    are sums over the images. Images too small for edges have none.
    """
    edges = edge_statistics(images) if min(images.shape[-2:]) >= SMALLEST else no_edges()
    found = {
        "spectrum": spectrum_statistics(images).total, **vars(edges), "projections": project(images, theta)
    }  # fmt: skip
    return {name: tensor.cpu() for name, tensor in found.items()}
