"""Distances between two sets of features, and the Inception score, in float64.

Kernel distance (KID, Bińkowski et al. 2018):

    k(x,y) = (xᵀy/D + 1)³
    MMD² = Σ_{i≠j} k(xᵢ,xⱼ)/(n(n−1)) + Σ_{i≠j} k(yᵢ,yⱼ)/(m(m−1)) − 2·Σ_{ij} k(xᵢ,yⱼ)/(nm)

MMD² is unbiased at any n, m (it may be slightly negative), so unlike FID it needs no extrapolation.

Precision, recall (Kynkäänniemi et al. 2019), density and coverage (Naeem et al. 2020): with B(x) the open ball around
x that reaches its k-th nearest neighbor in its own set, real xᵢ and generated yⱼ:

    precision = meanⱼ 1[ yⱼ ∈ ∪ᵢ B(xᵢ) ]        recall   = meanᵢ 1[ xᵢ ∈ ∪ⱼ B(yⱼ) ]
    density   = meanⱼ #{ i : yⱼ ∈ B(xᵢ) } / k    coverage = meanᵢ 1[ ∃j : yⱼ ∈ B(xᵢ) ]

Inception score (Salimans et al. 2016), in [1, number of classes]:

    IS = exp( E_x KL( p(y|x) ‖ p(y) ) ),   p(y) = E_x p(y|x)

The published scores use the 1008-way head of the 2015-12-05 network. Another classifier gives another number, so
reports label it by the classifier's name.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff.metrics.frechet import require_features

CHUNK_ENTRIES = 1 << 25  # 256 MiB of float64 distances at a time


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
    """KID: both sides are shuffled and cut into disjoint blocks, which are independent.

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


def distance_rows(x: Tensor, y: Tensor, *, chunk: int | None = None) -> Iterator[tuple[int, Tensor]]:
    """Yield (first row, squared distances ``[rows,m]``) of ``x`` ``[n,D]`` to ``y`` ``[m,D]``, chunk by chunk."""
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
        precision=float((balls > 0).double().mean()), recall=float(torch.cat(recalled).double().mean()),
        density=float(balls.double().mean() / k), coverage=float(torch.cat(covered).double().mean()), k=k,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class InceptionScore:
    """Mean over splits, and the standard deviation between splits (as published, not a standard error)."""

    value: float
    deviation: float
    splits: int


def inception_score(logits: Tensor, *, generator: torch.Generator | None = None, splits: int = 10) -> InceptionScore:
    """Logits ``[N,K]`` → IS over ``splits`` parts of equal size; shuffled where a generator is given."""
    logits = require_features(logits, "logits")
    if not 1 <= splits <= len(logits):
        raise ValueError(f"splits must be between 1 and the {len(logits)} images, got {splits}")
    if logits.shape[1] < 2:
        raise ValueError(f"the Inception score needs at least 2 classes, got {logits.shape[1]}")
    if generator is not None:
        logits = logits[torch.randperm(len(logits), generator=generator).to(logits.device)]
    size = len(logits) // splits
    scores = []
    for part in torch.split(logits[: size * splits], size):
        log_p = part.double().log_softmax(dim=1)
        p = log_p.exp()
        log_marginal = p.mean(dim=0).clamp_min(torch.finfo(torch.float64).tiny).log()
        scores.append((p * (log_p - log_marginal)).sum(dim=1).mean().exp())
    values = torch.stack(scores)
    deviation = float(values.std()) if splits > 1 else 0.0
    return InceptionScore(value=float(values.mean()), deviation=deviation, splits=splits)
