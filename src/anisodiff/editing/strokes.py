"""A stroke painting from a photograph: k-means in pixel space (paper, stroke-to-image; Meng et al. 2022).

    min over c_1 … c_K of Σ_i min_j ‖f_i − c_j‖²,      f_i = (color of pixel i,  ω·row/side,  ω·column/side)

Every pixel gets the color of its center. With ω = 0, the paper's choice, only colors count and one stroke may lie
in many places; with ω > 0 near pixels go together. The centers start by k-means++ (Arthur & Vassilvitskii 2007) from
the seed and move by Lloyd's iteration, a few times over; the best outcome is taken. All is computed on the distinct
points with their multiplicities, in sorted order, so that the painting does not depend on the order of the pixels.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import one_hot

RESTARTS, ROUNDS = 4, 100


def strokes(image: Tensor, colors: int = 8, *, seed: int = 0, position: float = 0.0, smooth: int = 0) -> Tensor:
    """The painting [C, H, W] of an ``image`` [C, H, W] in ``colors`` colors, in the image's precision and place.

    ``position`` is ω. ``smooth`` is the radius of a mode filter, in pixels: every pixel takes the stroke that most of
    its square neighborhood has, which wipes out specks, and may wipe out a color. An image that has no more than
    ``colors`` colors comes back as it is.
    """
    _check(image, colors, position, smooth)
    points = image.detach().double().cpu().flatten(1).mT
    if position > 0:
        points = torch.cat([points, position * _places(*image.shape[-2:])], dim=1)
    distinct, index, counts = torch.unique(points, dim=0, return_inverse=True, return_counts=True)
    centers = kmeans(distinct, counts.double(), colors, seed=seed)
    label = _nearest(distinct, centers)[1][index].reshape(image.shape[-2:])
    if smooth > 0:
        label = mode_filter(label, len(centers), smooth)
    painted = centers[:, : len(image)][label]
    return painted.permute(2, 0, 1).to(image.device, image.dtype).contiguous()


def kmeans(points: Tensor, weight: Tensor, count: int, *, seed: int = 0) -> Tensor:
    """Centers [count, F] of distinct ``points`` [N, F] with multiplicities [N]; the points if there are no more."""
    if len(points) <= count:
        return points
    generator = torch.Generator().manual_seed(seed)
    best, least = points[:count], math.inf
    for _ in range(RESTARTS):
        centers = _lloyd(points, weight, _spread(points, weight, count, generator))
        error = float((weight * _nearest(points, centers)[0]).sum())
        if error < least:
            best, least = centers, error
    return best


def mode_filter(label: Tensor, count: int, radius: int) -> Tensor:
    """The most frequent of the labels [H, W] in a (2·radius + 1)² window cut at the border; ties stay as they are."""
    votes = one_hot(label, count).permute(2, 0, 1).double()
    window = torch.ones(2 * radius + 1, dtype=torch.float64)
    rows = torch.nn.functional.conv2d(votes[:, None], window[None, None, :, None], padding=(radius, 0))
    total = torch.nn.functional.conv2d(rows, window[None, None, None, :], padding=(0, radius))[:, 0]
    return (total + 0.5 * votes).argmax(0)


def _places(height: int, width: int) -> Tensor:
    """Row and column of every pixel in units of the longer side, [H·W, 2]."""
    rows, columns = (torch.arange(n, dtype=torch.float64) / max(height, width) for n in (height, width))
    return torch.cartesian_prod(rows, columns)


def _nearest(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distance to the nearest center, and which one it is, [N] each."""
    square = torch.stack([(points - center).square().sum(1) for center in centers])
    nearest = square.min(0)
    return nearest.values, nearest.indices


def _spread(points: Tensor, weight: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """k-means++: each further center is drawn with a probability ∝ squared distance to those already there."""
    chance, centers = weight, points[:0]
    for _ in range(count):
        place = torch.rand(1, dtype=torch.float64, generator=generator) * chance.sum()
        drawn = torch.searchsorted(chance.cumsum(0), place, right=True).clamp(max=len(points) - 1)
        centers = torch.cat([centers, points[drawn]])
        chance = weight * _nearest(points, centers)[0]
    return centers


def _lloyd(points: Tensor, weight: Tensor, centers: Tensor) -> Tensor:
    """Each center to the mean of its points until none moves; one that has lost all its points to the farthest."""
    for _ in range(ROUNDS):
        far, label = _nearest(points, centers)
        total = torch.zeros(len(centers), dtype=points.dtype).index_add(0, label, weight)
        moved = torch.zeros_like(centers).index_add(0, label, points * weight[:, None]) / total.clamp(min=1)[:, None]
        lost = total == 0
        moved[lost] = points[(far * weight).topk(int(lost.sum())).indices]
        if torch.equal(moved, centers):
            break
        centers = moved
    return centers


def _check(image: Tensor, colors: int, position: float, smooth: int) -> None:
    if not isinstance(image, Tensor) or image.dim() != 3 or not image.is_floating_point():
        got = list(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise ValueError(f"strokes: got {got}, expected one image [C, H, W] of floats in [0, 1]")
    if not bool(image.isfinite().all()):
        raise ValueError("strokes: the image holds NaN or infinite values; expected numbers in [0, 1]")
    if colors < 1:
        raise ValueError(f"strokes: got {colors} colors, expected 1 or more")
    if not 0 <= position < math.inf:
        raise ValueError(f"position: got {position:g}, expected 0 (color alone) or more, such as 0.5")
    if smooth < 0:
        raise ValueError(f"smooth: got {smooth}, expected a radius of 0 pixels (none) or more")
