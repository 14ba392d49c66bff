from __future__ import annotations

import pytest
import torch
from scipy import linalg
from torch import Tensor

from anisodiff.metrics import extrapolate, frechet_distance, gaussian_statistics
from anisodiff.metrics.frechet import GaussianStatistics, covariance_root, trace_root_product


def features(count: int, dimension: int, seed: int, *, spread: float = 1.0, shift: float = 0.0) -> Tensor:
    """Correlated, skewed features, like those of a network."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(dimension, dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(99))
    x = torch.randn(count, dimension, dtype=torch.float64, generator=generator) @ mix / dimension**0.5
    return torch.relu(x * spread + shift)


class Passing(torch.nn.Module):
    """A feature module for torchmetrics that hands features through."""

    num_features = 24

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)


def torchmetrics_fid(x: Tensor, y: Tensor) -> float:
    from torchmetrics.image.fid import FrechetInceptionDistance

    metric = FrechetInceptionDistance(feature=Passing(), input_img_size=(1, 1, 24), normalize=True)
    metric.set_dtype(torch.float64)
    metric.inception.to(torch.float64)
    metric.update(x.view(-1, 1, 1, 24), real=True)
    metric.update(y.view(-1, 1, 1, 24), real=False)
    return float(metric.compute())


@pytest.mark.parametrize(("n", "m"), [(400, 300), (300, 300), (100, 900)])
def test_agrees_with_torchmetrics(n: int, m: int) -> None:
    x, y = features(n, 24, 1), features(m, 24, 2, spread=1.3, shift=0.2)
    ours = frechet_distance(gaussian_statistics(x), gaussian_statistics(y))
    assert ours == pytest.approx(torchmetrics_fid(x, y), rel=1e-6)


def test_matrix_square_root_agrees_with_scipy() -> None:
    a, b = gaussian_statistics(features(500, 40, 3)), gaussian_statistics(features(600, 40, 4, spread=2))
    product = (a.covariance @ b.covariance).numpy()
    expected = float(linalg.sqrtm(product).real.trace())
    assert trace_root_product(covariance_root(a), b.covariance) == pytest.approx(expected, rel=1e-10)


def gaussian(mean: Tensor, covariance: Tensor) -> GaussianStatistics:
    count = 1_000_001
    return GaussianStatistics(count=count, mean=mean, scatter=covariance * (count - 1))


def test_closed_forms_of_gaussians() -> None:
    d = 6
    eye, zero = torch.eye(d, dtype=torch.float64), torch.zeros(d, dtype=torch.float64)
    shift = torch.arange(d, dtype=torch.float64)
    assert frechet_distance(gaussian(zero, eye), gaussian(shift, eye)) == pytest.approx(float(shift @ shift))
    scaled = frechet_distance(gaussian(zero, 4 * eye), gaussian(zero, 9 * eye))
    assert scaled == pytest.approx(d * (2 - 3) ** 2)
    variances = torch.linspace(0.1, 3, d, dtype=torch.float64), torch.linspace(2, 5, d, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    first, second = (gaussian(zero, turn.Q @ v.diag() @ turn.Q.T) for v in variances)
    expected = float((variances[0].sqrt() - variances[1].sqrt()).square().sum())
    assert frechet_distance(first, second) == pytest.approx(expected)


def test_identity_and_symmetry_also_with_fewer_images_than_dimensions() -> None:
    for count in (20, 500):
        a = gaussian_statistics(features(count, 64, 5))
        b = gaussian_statistics(features(count + 7, 64, 6, shift=0.3))
        assert frechet_distance(a, a) == pytest.approx(0, abs=1e-9)
        assert frechet_distance(a, b) == pytest.approx(frechet_distance(b, a), rel=1e-9)
        assert frechet_distance(a, b) > 0


def test_few_images_agree_with_the_nuclear_norm() -> None:
    """tr (Σ₁Σ₂)^½ = ‖XYᵀ‖_*/√((n−1)(m−1)) for centered X, Y: no square root of a singular matrix needed."""
    x, y = features(15, 64, 7), features(12, 64, 8)
    cross = torch.linalg.svdvals((x - x.mean(0)) @ (y - y.mean(0)).T).sum() / (14 * 11) ** 0.5
    a, b = gaussian_statistics(x), gaussian_statistics(y)
    shift = a.mean - b.mean
    expected = float(shift @ shift + a.covariance.trace() + b.covariance.trace() - 2 * cross)
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-9)


def test_statistics_merge_and_chunks_do_not_matter() -> None:
    x = features(101, 8, 9) + 1000  # a large mean would ruin a sum of squares
    whole = gaussian_statistics(x)
    torch.testing.assert_close(whole.covariance, torch.cov(x.T), rtol=1e-9, atol=1e-12)
    parts = [gaussian_statistics(p, chunk=7) for p in x.split([1, 40, 60])]
    merged = parts[2].merge(parts[0]).merge(parts[1])
    assert merged.count == 101
    torch.testing.assert_close(merged.mean, whole.mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(merged.scatter, whole.scatter, rtol=1e-9, atol=1e-9)


def test_extrapolation_removes_most_of_the_small_sample_bias() -> None:
    """Both sides N(0, I): the true distance is 0, a finite sample shows about d²/N·const above it."""
    d, n = 16, 600
    reference = gaussian(torch.zeros(d, dtype=torch.float64), torch.eye(d, dtype=torch.float64))
    plain, limits = [], []
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(n, d, dtype=torch.float64, generator=generator)
        plain.append(frechet_distance(gaussian_statistics(x), reference))
        line = extrapolate(x, reference, generator=generator)
        limits.append(line.limit)
        assert line.slope > 0
        assert line.sizes[-1] == n
        assert line.values[-1] == pytest.approx(plain[-1])
    biased, corrected = sum(plain) / 12, sum(limits) / 12
    assert biased > 0.08
    assert abs(corrected) < 0.15 * biased


def test_extrapolation_fits_an_exact_line_exactly() -> None:
    from anisodiff.metrics.frechet import _fit

    limit, slope, error = _fit([100, 200, 400, 1000], [3 + 50 / n for n in (100, 200, 400, 1000)])
    assert (limit, slope) == (pytest.approx(3), pytest.approx(50))
    assert error == pytest.approx(0, abs=1e-10)


def test_bad_features_are_refused() -> None:
    x = features(30, 8, 10)
    x[17, 3] = torch.nan
    with pytest.raises(ValueError, match="1 of 30 rows hold NaN or infinity, the first is 17"):
        gaussian_statistics(x)
    with pytest.raises(ValueError, match=r"expected float \[N,D\]"):
        gaussian_statistics(torch.zeros(3))
    with pytest.raises(ValueError, match="at least 2 images"):
        frechet_distance(gaussian_statistics(x[:1]), gaussian_statistics(x[:5]))
    with pytest.raises(ValueError, match="feature sizes differ: 8 and 4"):
        frechet_distance(gaussian_statistics(x[:5]), gaussian_statistics(x[:5, :4]))
    with pytest.raises(ValueError, match="too few for 10 blocks"):
        stats = gaussian_statistics(x[:5])
        extrapolate(x[:15], stats, generator=torch.Generator())
