"""Precision, recall (Kynkäänniemi et al. 2019), density and coverage (Naeem et al. 2020), in float64.

With B(x) the open ball around x that reaches its k-th nearest neighbor in its own set, real xᵢ and generated
yⱼ:

    precision = meanⱼ 1[ yⱼ ∈ ∪ᵢ B(xᵢ) ]        recall   = meanᵢ 1[ xᵢ ∈ ∪ⱼ B(yⱼ) ]
    density   = meanⱼ #{ i : yⱼ ∈ B(xᵢ) } / k    coverage = meanᵢ 1[ ∃j : yⱼ ∈ B(xᵢ) ]

Distances are taken in row chunks, so 10,000 × 10,000 never stands in memory, on the device of the features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff.metrics.frechet import require_features

CHUNK_ENTRIES = 1 << 25  # 256 MiB of float64 distances at a time


def distance_rows(x: Tensor, y: Tensor, *, chunk: int | None = None) -> Iterator[tuple[int, Tensor]]:
    """Yield (first row, squared distances ``[rows,m]``) of ``x`` ``[n,D]`` to ``y`` ``[m,D]``, chunk by
    chunk.
    """
    y = y.double()
    y2 = y.square().sum(dim=1)
    chunk = chunk or max(1, CHUNK_ENTRIES // max(len(y), 1))
    for start in range(0, len(x), chunk):
        part = x[start : start + chunk].double()
        d2 = torch.addmm(y2.expand(len(part), -1), part, y.T, alpha=-2)
        yield start, d2.add_(part.square().sum(dim=1, keepdim=True)).clamp_min_(0)


def squared_radii(x: Tensor, k: int, *, chunk: int | None = None) -> Tensor:
    """Squared distance ``[N]`` of each row of ``x`` to its k-th nearest other row."""
    if not 1 <= k < len(x):
        raise ValueError(f"k must be between 1 and N-1 = {len(x) - 1}, got {k}")
    out = []
    for start, d2 in distance_rows(x, x, chunk=chunk):
        rows = torch.arange(len(d2), device=d2.device)
        d2[rows, rows + start] = torch.inf  # a point is not its own neighbor
        out.append(d2.topk(k, dim=1, largest=False).values[:, -1])
    return torch.cat(out)


@dataclass(frozen=True, kw_only=True)
class PRDC:
    """The four shares (density may exceed 1) and the k they were taken with."""

    precision: float
    recall: float
    density: float
    coverage: float
    k: int


def prdc(real: Tensor, generated: Tensor, *, k: int = 5, chunk: int | None = None) -> PRDC:
    """Features of real ``[n,D]`` and generated ``[m,D]`` images → precision, recall, density, coverage."""
    real, generated = require_features(real, "real"), require_features(generated, "generated")
    if real.shape[1] != generated.shape[1]:
        raise ValueError(f"feature sizes differ: {real.shape[1]} and {generated.shape[1]}")
    real_radii = squared_radii(real, k, chunk=chunk)
    generated_radii = squared_radii(generated, k, chunk=chunk)
    balls = torch.zeros(len(generated), dtype=torch.int64, device=real.device)
    recalled, covered = [], []
    for start, d2 in distance_rows(real, generated, chunk=chunk):
        inside = d2 < real_radii[start : start + len(d2), None]
        balls += inside.sum(dim=0)
        covered.append(inside.any(dim=1))
        recalled.append((d2 < generated_radii).any(dim=1))
    return PRDC(
        precision=float((balls > 0).double().mean()),
        recall=float(torch.cat(recalled).double().mean()),
        density=float(balls.double().mean() / k),
        coverage=float(torch.cat(covered).double().mean()),
        k=k,
    )
