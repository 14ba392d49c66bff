"""Kernel distance between two sets of features (KID, Bińkowski et al. 2018), in float64.

    k(x,y) = (xᵀy/D + 1)³
    MMD² = Σ_{i≠j} k(xᵢ,xⱼ)/(n(n−1)) + Σ_{i≠j} k(yᵢ,yⱼ)/(m(m−1)) − 2·Σ_{ij} k(xᵢ,yⱼ)/(nm)

MMD² is unbiased at any n, m (it may be slightly negative), so unlike FID it needs no extrapolation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff.metrics.frechet import require_features


def _kernel(x: Tensor, y: Tensor, degree: int) -> Tensor:
    return (x @ y.T / x.shape[1] + 1).pow(degree)


def _mean_off_diagonal(x: Tensor, degree: int, chunk: int) -> float:
    total = math.fsum(float(_kernel(part, x, degree).sum()) for part in torch.split(x, chunk))
    diagonal = float((x.square().sum(dim=1) / x.shape[1] + 1).pow(degree).sum())
    return (total - diagonal) / (len(x) * (len(x) - 1))


def kernel_mmd2(x: Tensor, y: Tensor, *, degree: int = 3, chunk: int = 2048) -> float:
    """Unbiased MMD² of all of ``x`` ``[n,D]`` against all of ``y`` ``[m,D]``."""
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(f"expected [n,D] and [m,D], got {tuple(x.shape)} and {tuple(y.shape)}")
    if min(len(x), len(y)) < 2:
        raise ValueError(f"MMD needs at least 2 features a side, got {len(x)} and {len(y)}")
    x, y = require_features(x).double(), require_features(y).double()
    total = math.fsum(float(_kernel(part, y, degree).sum()) for part in torch.split(x, chunk))
    cross = total / (len(x) * len(y))
    return _mean_off_diagonal(x, degree, chunk) + _mean_off_diagonal(y, degree, chunk) - 2 * cross


@dataclass(frozen=True, kw_only=True)
class KernelDistance:
    """Mean MMD² over independent blocks and its standard error (``None`` with a single block)."""

    value: float
    standard_error: float | None
    blocks: int
    block: int


def kernel_distance(
    x: Tensor, y: Tensor, *, generator: torch.Generator, block: int = 1000, degree: int = 3
) -> KernelDistance:
    """KID: both sides are shuffled and cut into disjoint blocks; the blocks are independent, so the error is
    honest.

    Sets with fewer than ten blocks use smaller blocks, down to ten images, so that a standard error exists.
    """
    if block < 2:
        raise ValueError(f"block must be at least 2, got {block}")
    x, y = require_features(x, "first features"), require_features(y, "second features")
    few = min(len(x), len(y))
    block = max(2, min(block, max(few // 10, 10), few))
    count = max(few // block, 1)
    parts = []
    for side in (x, y):
        order = torch.randperm(len(side), generator=generator).to(side.device)
        parts.append([side[i] for i in torch.split(order[: count * block], block)])
    values = torch.tensor([kernel_mmd2(a, b, degree=degree) for a, b in zip(*parts)], dtype=torch.float64)
    error = float(values.std() / count**0.5) if count > 1 else None
    return KernelDistance(value=float(values.mean()), standard_error=error, blocks=count, block=block)
