"""Fréchet distance between two Gaussians fitted to features (FID, Heusel et al. 2017), all in float64.

    d² = ‖μ₁−μ₂‖² + tr Σ₁ + tr Σ₂ − 2·tr (Σ₁Σ₂)^½,      tr (Σ₁Σ₂)^½ = Σᵢ √λᵢ(LᵀΣ₂L),   Σ₁ = LLᵀ

The last form needs symmetric eigenvalues only, so no complex rounding has to be thrown away. Its bias falls
like 1/N (Chong & Forsyth 2020): d²_N ≈ d²_∞ + c/N, which :func:`extrapolate` fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor


def require_features(features: Tensor, name: str = "features") -> Tensor:
    """Return ``features`` if it is a finite float ``[N,D]`` with N ≥ 1, else name the first bad row."""
    if features.ndim != 2 or not features.is_floating_point() or not len(features):
        raise ValueError(f"{name}: expected float [N,D], got {features.dtype} {tuple(features.shape)}")
    finite = torch.isfinite(features).all(dim=1)
    if not bool(finite.all()):
        bad = int((~finite).nonzero()[0])
        raise ValueError(
            f"{name}: {int((~finite).sum())} of {len(features)} rows hold NaN or infinity, the first is {bad}"
        )
    return features


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianStatistics:
    """Count N, mean μ ``[D]`` and scatter Σ(x−μ)(x−μ)ᵀ ``[D,D]`` of features, float64; parts merge."""

    count: int
    mean: Tensor
    scatter: Tensor

    def merge(self, other: "GaussianStatistics") -> "GaussianStatistics":
        """Statistics of both sets together (Chan et al. 1979)."""
        if self.mean.shape != other.mean.shape:
            raise ValueError(f"feature sizes differ: {len(self.mean)} and {len(other.mean)}")
        count = self.count + other.count
        shift = other.mean - self.mean
        scatter = torch.outer(shift, shift).mul_(self.count * other.count / count)
        return GaussianStatistics(
            count=count,
            mean=self.mean + shift * (other.count / count),
            scatter=scatter.add_(self.scatter).add_(other.scatter),
        )

    @property
    def covariance(self) -> Tensor:
        """Unbiased covariance ``[D,D]``."""
        if self.count < 2:
            raise ValueError(f"a covariance needs at least 2 images, got {self.count}")
        return self.scatter / (self.count - 1)


def gaussian_statistics(features: Tensor, *, chunk: int = 8192) -> GaussianStatistics:
    """Features ``[N,D]`` → statistics, in chunks so that no float64 copy of all features is made."""

    def part(x: Tensor) -> GaussianStatistics:
        x = x.double()
        mean = x.mean(dim=0)
        x = x - mean
        return GaussianStatistics(count=len(x), mean=mean, scatter=x.T @ x)

    return reduce(GaussianStatistics.merge, map(part, torch.split(require_features(features), chunk)))


def covariance_root(statistics: GaussianStatistics) -> Tensor:
    """L ``[D,r]`` with LLᵀ = Σ and r = min(D, N−1): directions that N points cannot span are left out, not
    rounded.
    """
    values, vectors = torch.linalg.eigh(statistics.covariance)
    rank = min(len(values), statistics.count - 1)
    root: Tensor = vectors[:, -rank:] * values[-rank:].clamp_min(0).sqrt()
    return root


def trace_root_product(root: Tensor, covariance: Tensor) -> float:
    """tr (Σ₁Σ₂)^½ from L ``[D,r]`` of Σ₁ and Σ₂ ``[D,D]``."""
    product = root.T @ covariance @ root
    return float(torch.linalg.eigvalsh((product + product.T) / 2).clamp_min(0).sqrt().sum())


def frechet_distance(first: GaussianStatistics, second: GaussianStatistics, *, root: Tensor | None = None) -> float:
    """d² between two fitted Gaussians; ``root`` is :func:`covariance_root` of ``second`` where already at hand."""
    if first.mean.shape != second.mean.shape:
        raise ValueError(f"feature sizes differ: {len(first.mean)} and {len(second.mean)}")
    if root is None:  # the set of fewer images has the smaller rank: exact and cheaper
        few, many = (first, second) if first.count < second.count else (second, first)
        cross = trace_root_product(covariance_root(few), many.covariance)
    else:
        cross = trace_root_product(root, first.covariance)
    shift = first.mean - second.mean
    traces = torch.trace(first.covariance) + torch.trace(second.covariance)
    return float(shift @ shift + traces) - 2 * cross


@dataclass(frozen=True, kw_only=True)
class Extrapolation:
    """d²_N ≈ limit + slope/N fitted over ``sizes``; ``bias`` = slope/N at the full size."""

    limit: float
    slope: float
    standard_error: float
    bias: float
    sizes: tuple[int, ...]
    values: tuple[float, ...]


def _fit(sizes: Sequence[int], values: Sequence[float]) -> tuple[float, float, float]:
    """Least squares of value on (1, 1/N): intercept, slope, standard error of the intercept."""
    y = torch.tensor(values, dtype=torch.float64)
    design = torch.stack([torch.ones_like(y), 1 / torch.tensor(sizes, dtype=torch.float64)], dim=1)
    inverse = torch.linalg.inv(design.T @ design)
    beta = inverse @ design.T @ y
    variance = (y - design @ beta).square().sum() / max(len(y) - 2, 1)
    return float(beta[0]), float(beta[1]), float((variance * inverse[0, 0]).sqrt())


def extrapolate(
    features: Tensor,
    reference: GaussianStatistics,
    *,
    generator: torch.Generator,
    blocks: int = 10,
) -> Extrapolation:
    """FID_∞ by regression over 1/N (Chong & Forsyth 2020); the reference's own finite size is not corrected.

    The features are shuffled and cut into ``blocks`` of equal size; a point is the FID of m random blocks
    merged, m = 3 … ``blocks``, so all points together cost one pass over the features.
    """
    size = len(require_features(features)) // blocks
    if size < 2:
        raise ValueError(f"{len(features)} features are too few for {blocks} blocks of at least 2")
    order = torch.randperm(len(features), generator=generator).to(features.device)
    parts = [gaussian_statistics(features[i]) for i in torch.split(order[: size * blocks], size)]
    root = covariance_root(reference)
    sizes, values = [], []
    for m in range(3, blocks + 1):
        chosen = torch.randperm(blocks, generator=generator)[:m].tolist()
        merged = reduce(GaussianStatistics.merge, [parts[i] for i in chosen])
        sizes.append(merged.count)
        values.append(frechet_distance(merged, reference, root=root))
    limit, slope, error = _fit(sizes, values)
    return Extrapolation(
        limit=limit, slope=slope, standard_error=error, bias=slope / len(features), sizes=tuple(sizes),
        values=tuple(values),
    )  # fmt: skip
