from __future__ import annotations

import math

import pytest
import torch

from anisodiff.metrics import inception_score


def test_closed_forms() -> None:
    classes, each = 5, 8
    sure = torch.eye(classes).repeat(each, 1) * 200
    assert inception_score(sure, splits=1).value == pytest.approx(classes)
    assert inception_score(sure, splits=each).value == pytest.approx(classes)  # every split holds all classes
    assert inception_score(torch.zeros(20, classes)).value == pytest.approx(1)
    assert inception_score(sure[:1].repeat(20, 1)).value == pytest.approx(1)


def test_two_soft_classes_by_hand() -> None:
    p = 0.8
    logits = torch.tensor([[p, 1 - p], [1 - p, p]], dtype=torch.float64).log()
    expected = math.exp(p * math.log(p / 0.5) + (1 - p) * math.log((1 - p) / 0.5))
    assert inception_score(logits, splits=1).value == pytest.approx(expected, rel=1e-12)


def test_agrees_with_torchmetrics() -> None:
    from torchmetrics.image.inception import InceptionScore

    logits = torch.randn(60, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    metric = InceptionScore(feature=torch.nn.Flatten(), splits=1)
    metric.set_dtype(torch.float64)
    metric.update(logits)
    assert inception_score(logits, splits=1).value == pytest.approx(float(metric.compute()[0]), rel=1e-9)


def test_a_constant_added_to_all_logits_changes_nothing() -> None:
    logits = torch.randn(40, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert inception_score(logits + 700).value == pytest.approx(inception_score(logits).value)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="splits must be between 1 and the 3 images"):
        inception_score(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="at least 2 classes"):
        inception_score(torch.zeros(30, 1))
    with pytest.raises(ValueError, match="logits: 1 of 20 rows hold NaN"):
        inception_score(torch.zeros(20, 4).index_fill(0, torch.tensor([3]), torch.nan))
