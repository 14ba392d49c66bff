from __future__ import annotations

import contextlib
import io

import pytest
import torch
from prdc import compute_prdc

from anisodiff.metrics.feature_metrics import PRDC, prdc
from tests.metrics.test_frechet import features


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("shift", [0.0, 0.6])
def test_agrees_exactly_with_the_package(k: int, shift: float) -> None:
    real, fake = features(300, 12, 1), features(250, 12, 2, spread=1.2, shift=shift)
    with contextlib.redirect_stdout(io.StringIO()):
        expected = compute_prdc(real.numpy(), fake.numpy(), nearest_k=k)
    found = prdc(real, fake, k=k, chunk=37)
    assert (found.precision, found.recall, found.coverage) == tuple(
        expected[name] for name in ("precision", "recall", "coverage")
    )
    assert found.density == pytest.approx(expected["density"], rel=1e-14)


def line(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def test_by_hand() -> None:
    """Real 0, 1, 3 (radii 1, 1, 2 for k=1); generated 0.5, 2, 9 (radii 1.5, 1.5, 7)."""
    found = prdc(line(0, 1, 3), line(0.5, 2, 9), k=1)
    # 0.5 lies in the balls of 0 and 1; 2 in that of 3 only (|2-1| = 1 is not inside an open ball); 9 in none.
    assert found == PRDC(precision=2 / 3, recall=1.0, density=1.0, coverage=1.0, k=1)


def test_disjoint_and_equal_sets() -> None:
    real = features(40, 12, 3)
    far = prdc(real, real + 1000)
    assert (far.precision, far.recall, far.density, far.coverage) == (0, 0, 0, 0)
    same = prdc(real, real.clone())
    assert (same.precision, same.recall, same.coverage) == (1, 1, 1)
    assert same.density == pytest.approx(1)  # k-1 others and itself, over k


def test_dropped_modes_lower_recall_and_inventions_lower_precision() -> None:
    one, two = features(100, 4, 4), features(100, 4, 5) + 50
    both = torch.cat([one, two])
    dropped = prdc(both, features(100, 4, 6))
    invented = prdc(one, torch.cat([features(100, 4, 7), two]))
    assert dropped.precision > 0.8
    assert dropped.recall <= 0.5
    assert dropped.coverage <= 0.5
    assert invented.precision <= 0.5
    assert invented.recall > 0.8


def test_bad_input() -> None:
    x = features(5, 3, 8)
    with pytest.raises(ValueError, match="k must be between 1 and N-1 = 4, got 5"):
        prdc(x, x)
    with pytest.raises(ValueError, match="feature sizes differ: 3 and 2"):
        prdc(x, x[:, :2], k=1)
    with pytest.raises(ValueError, match="generated: 5 of 5 rows hold NaN"):
        prdc(x, x * torch.nan, k=1)
