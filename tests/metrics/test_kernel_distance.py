from __future__ import annotations

import pytest
import torch
from torch import Tensor

from anisodiff.metrics.feature_metrics import kernel_distance, kernel_mmd2
from tests.metrics.test_frechet import Passing, features


def torchmetrics_kid(x: Tensor, y: Tensor) -> float:
    from torchmetrics.image.kid import KernelInceptionDistance

    metric = KernelInceptionDistance(feature=Passing(), subsets=1, subset_size=len(x), normalize=True)
    metric.set_dtype(torch.float64)
    metric.update(x.view(-1, 1, 1, 24), real=True)
    metric.update(y.view(-1, 1, 1, 24), real=False)
    return float(metric.compute()[0])


def test_agrees_with_torchmetrics_on_the_whole_set() -> None:
    x, y = features(150, 24, 1), features(150, 24, 2, spread=1.4, shift=0.3)
    assert kernel_mmd2(x, y, chunk=64) == pytest.approx(torchmetrics_kid(x, y), rel=1e-6)


def test_agrees_with_the_definition_in_plain_loops() -> None:
    x, y = features(7, 3, 3), features(5, 3, 4)

    def mean(a: Tensor, b: Tensor, distinct: bool) -> float:
        values = [
            (float(p @ q) / 3 + 1) ** 3 for i, p in enumerate(a) for j, q in enumerate(b) if not (distinct and i == j)
        ]
        return sum(values) / len(values)

    expected = mean(x, x, True) + mean(y, y, True) - 2 * mean(x, y, False)
    assert kernel_mmd2(x, y) == pytest.approx(expected, rel=1e-12)


def test_symmetric_and_chunks_do_not_matter() -> None:
    x, y = features(60, 8, 5), features(90, 8, 6, shift=0.1)
    assert kernel_mmd2(x, y) == pytest.approx(kernel_mmd2(y, x), rel=1e-12)
    assert kernel_mmd2(x, y, chunk=7) == pytest.approx(kernel_mmd2(x, y), rel=1e-10)


def test_unbiased_over_many_draws_and_the_standard_error_is_honest() -> None:
    """Equal laws: the mean over draws vanishes within its error, at any sample size, as FID's does not."""
    values, errors = [], []
    for seed in range(200):
        generator = torch.Generator().manual_seed(seed)
        x, y = torch.randn(2, 60, 4, dtype=torch.float64, generator=generator)
        found = kernel_distance(x, y, generator=generator, block=10)
        assert (found.blocks, found.block) == (6, 10)
        values.append(found.value)
        errors.append(found.standard_error)
    drawn = torch.tensor(values)
    assert abs(float(drawn.mean())) < 3 * float(drawn.std()) / 200**0.5
    assert float(drawn.square().mean().sqrt()) == pytest.approx(
        float(torch.tensor(errors).square().mean().sqrt()), rel=0.25
    )


def test_block_estimate_is_unbiased_for_different_laws() -> None:
    """k of degree 1 gives E MMD² = ‖μx−μy‖²/D exactly."""
    shift = torch.tensor([0.5, -1.0, 0.25, 0.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(20_000, 4, dtype=torch.float64, generator=generator)
    y = torch.randn(20_000, 4, dtype=torch.float64, generator=generator) + shift
    found = kernel_distance(x, y, generator=generator, block=200, degree=1)
    assert found.standard_error is not None
    assert abs(found.value - float(shift @ shift) / 4) < 4 * found.standard_error


def test_small_sets() -> None:
    x, y = features(12, 4, 7), features(15, 4, 8)
    found = kernel_distance(x, y, generator=torch.Generator().manual_seed(0))
    assert (found.blocks, found.block, found.standard_error) == (1, 10, None)
    with pytest.raises(ValueError, match="at least 2 features a side"):
        kernel_mmd2(x[:1], y)
    with pytest.raises(ValueError, match="rows hold NaN"):
        kernel_distance(x * torch.nan, y, generator=torch.Generator())
    with pytest.raises(ValueError, match=r"expected \[n,D\] and \[m,D\]"):
        kernel_mmd2(x, y[:, :2])
    with pytest.raises(ValueError, match="block must be at least 2"):
        kernel_distance(x, y, generator=torch.Generator(), block=1)
