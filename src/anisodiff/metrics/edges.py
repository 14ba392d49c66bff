"""Edge-orientation and edge-magnitude distance between two sets of images, in float64.

For gray images u in [0,1] with Sobel gradient ∇u and binomial 5×5 window G (Bigün & Granlund 1987, Weickert 1998):

    J = G ∗ (∇u ∇uᵀ),   φ = ½·atan2(2J₁₂, J₁₁−J₂₂),   λ₁−λ₂ = √((J₁₁−J₂₂)² + 4J₁₂²),   c = (λ₁−λ₂)/(λ₁+λ₂)

Three histograms over all pixels where the windows fit: orientation φ mod π weighted by λ₁−λ₂, coherence c weighted by
λ₁+λ₂, gradient magnitude |∇u| unweighted. The distance between two sets (``edges`` in reports) is

    d = W₁°(orientation)/90° + W₁(coherence) + W₁(magnitude)/√½

with W₁ the 1-Wasserstein distance of the normalized histograms, on the circle of period 180° for orientation
(Werman et al. 1986). Each term lies in [0,1], is zero for equal histograms, symmetric, and obeys the triangle
inequality.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import conv2d

ORIENTATIONS, COHERENCES, MAGNITUDES = 36, 64, 256
SMALLEST = 7  # where both windows fit
LARGEST = 0.5**0.5  # |∇u| of a corner between 0 and 1 under the Sobel filter divided by 8


@dataclass(frozen=True, kw_only=True, eq=False)
class EdgeStatistics:
    """Unnormalized histograms: orientation ``[36]``, coherence ``[64]``, magnitude ``[256]``."""

    orientation: Tensor
    coherence: Tensor
    magnitude: Tensor


@dataclass(frozen=True, kw_only=True)
class EdgeDistance:
    """The sum d and its parts: orientation in degrees (0 … 90), coherence (0 … 1), magnitude (0 … √½)."""

    value: float
    orientation: float
    coherence: float
    magnitude: float


def no_edges() -> EdgeStatistics:
    """Statistics of images in which no window fits."""
    orientation, coherence, magnitude = (
        torch.zeros(bins, dtype=torch.float64) for bins in (ORIENTATIONS, COHERENCES, MAGNITUDES)
    )
    return EdgeStatistics(orientation=orientation, coherence=coherence, magnitude=magnitude)


def _histogram(position: Tensor, bins: int, weights: Tensor | None) -> Tensor:
    index = position.long().clamp_(0, bins - 1).flatten()
    counts = torch.bincount(index, weights=None if weights is None else weights.flatten(), minlength=bins)
    return counts.double()


def to_gray(images: Tensor) -> Tensor:
    """Luma ``[B,1,H,W]`` of ``[B,C,H,W]``, C = 1 or 3."""
    luma = images.new_tensor([0.299, 0.587, 0.114])
    return (
        (images * luma.view(3, 1, 1)).sum(1, keepdim=True) if images.shape[1] == 3 else images.mean(1, keepdim=True)
    )


def sobel(gray: Tensor) -> tuple[Tensor, Tensor]:
    """∂x and ∂y ``[B,1,H−2,W−2]``: central differences, halved, smoothed across."""
    smooth, slope = gray.new_tensor([1.0, 2, 1]) / 4, gray.new_tensor([-1.0, 0, 1]) / 2
    return conv2d(gray, torch.outer(smooth, slope)[None, None]), conv2d(gray, torch.outer(slope, smooth)[None, None])


def edge_statistics(images: Tensor) -> EdgeStatistics:
    """uint8 ``[B,C,H,W]``, C = 1 or 3, H, W ≥ 7 → statistics."""
    if min(images.shape[-2:]) < SMALLEST:
        least = f"{SMALLEST}×{SMALLEST}"
        raise ValueError(f"edge statistics need images of at least {least} pixels, got {tuple(images.shape[-2:])}")
    gx, gy = sobel(to_gray(images.double() / 255))
    binomial = gx.new_tensor([1.0, 4, 6, 4, 1]) / 16
    window = torch.outer(binomial, binomial)[None, None]
    j11, j22, j12 = (conv2d(product, window) for product in (gx * gx, gy * gy, gx * gy))
    trace, gap = j11 + j22, torch.hypot(j11 - j22, 2 * j12)
    # Bins are centered on the axes, where many edges lie exactly: rounding must not decide between two bins.
    step = torch.pi / ORIENTATIONS
    angle = (torch.atan2(2 * j12, j11 - j22) / 2 / step).round().remainder(ORIENTATIONS)
    coherence = gap / trace.clamp_min(torch.finfo(torch.float64).tiny)
    return EdgeStatistics(
        orientation=_histogram(angle, ORIENTATIONS, gap),
        coherence=_histogram(coherence * COHERENCES, COHERENCES, trace),
        magnitude=_histogram(torch.hypot(gx, gy) / LARGEST * MAGNITUDES, MAGNITUDES, None),
    )


def _cumulative_gap(first: Tensor, second: Tensor) -> Tensor:
    """Difference of the two distribution functions; a histogram without any weight (flat images) counts as
    uniform.
    """
    p, q = (
        h / h.sum() if float(h.sum()) > 0 else torch.full_like(h, 1 / len(h))
        for h in (first, second.to(first.device))
    )
    return (p - q).cumsum(dim=0)


def edge_distance(first: EdgeStatistics, second: EdgeStatistics) -> EdgeDistance:
    """Distance between the edge statistics of two sets."""
    gap = _cumulative_gap(first.orientation, second.orientation)
    # On a circle the starting point is free; the median of the gap minimizes the sum.
    orientation = float((gap - gap.median()).abs().sum() * (180 / ORIENTATIONS))
    coherence = float(_cumulative_gap(first.coherence, second.coherence).abs().sum() / COHERENCES)
    magnitude = float(_cumulative_gap(first.magnitude, second.magnitude).abs().sum() * (LARGEST / MAGNITUDES))
    return EdgeDistance(
        value=orientation / 90 + coherence + magnitude / LARGEST, orientation=orientation, coherence=coherence,
        magnitude=magnitude,
    )  # fmt: skip
