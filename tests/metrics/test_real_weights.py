"""With the published weights: set ANISODIFF_INCEPTION to the file (single or half precision) to run these."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anisodiff.metrics import Context, FeatureNetwork, evaluate, inception
from anisodiff.metrics.weights import INCEPTION
from tests.metrics.conftest import random_images

FILE = os.environ.get("ANISODIFF_INCEPTION")
pytestmark = pytest.mark.skipif(not FILE, reason="ANISODIFF_INCEPTION is not set")


@pytest.fixture(scope="module")
def published() -> FeatureNetwork:
    return inception(FILE, say=lambda _: None)


def test_the_weights_are_the_published_ones(published: FeatureNetwork) -> None:
    assert published.weights == INCEPTION.weights
    features, logits = published(random_images(2, size=32))
    assert features.shape == (2, 2048)
    assert logits is None
    assert float(features.min()) >= 0  # pooled after a rectifier


def test_a_small_evaluation(published: FeatureNetwork, tmp_path: Path) -> None:
    first, second = random_images(12, size=32, seed=1), random_images(12, size=32, seed=2)
    context, metrics = Context(cache=tmp_path), ("fid", "sliced", "spectrum", "edges")
    report = evaluate(first, second, network=published, metrics=metrics, context=context)
    same = evaluate(second, second, network=published, metrics=("fid",), context=context)
    assert same["fid"].value == pytest.approx(0, abs=1e-6)
    assert report["fid"].value > 1
    assert "inception-2015-12-05" in report.protocol.line()
