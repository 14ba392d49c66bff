from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from anisodiff.metrics import (
    METRICS,
    FeatureNetwork,
    Generation,
    Report,
    Settings,
    compare,
    evaluate,
    frechet_distance,
    function_network,
    gaussian_statistics,
)

from .conftest import random_images, save_folder

NAMES = {
    "fid", "fid_infinity", "fid_bias", "kid", "precision", "recall", "density", "coverage", "sliced_wasserstein",
    "spectrum_error", "edges", "edge_orientation", "edge_coherence", "edge_magnitude",
}  # fmt: skip


def test_a_whole_report(pooled: FeatureNetwork, tmp_path: Path) -> None:
    samples, reference = random_images(120, seed=1), random_images(150, seed=2)
    report = evaluate(
        save_folder(samples, tmp_path / "samples"),
        reference,
        network=pooled,
        split="train",
        generation=Generation(evaluations=35, prior="gaussian", seed=3),
        cache=tmp_path / "cache",
        reference_name="colours",
    )
    assert {v.name for v in report.values} == NAMES
    expected = frechet_distance(*(gaussian_statistics(pooled(x)[0]) for x in (samples, reference)))
    assert report["fid"].value == pytest.approx(expected, rel=1e-6)
    assert "warning: 120 < 10,000 samples" in report["fid"].note
    assert all("warning: 120 < 10,000 samples" in report[n].note for n in NAMES)
    p = report.protocol
    assert (p.samples, p.samples_count, p.reference, p.reference_split) == ("samples", 120, "colours", "train")
    assert (p.evaluations, p.prior, p.seed, p.size, p.network) == (35, "gaussian", 3, "16×16", "quadrants")
    assert report.curve[-1] == (120, pytest.approx(expected, rel=1e-6))
    assert Report.from_json(report.to_json()) == report


def test_the_container_and_the_cache_do_not_change_a_digit(pooled: FeatureNetwork, tmp_path: Path) -> None:
    samples, reference = random_images(60, seed=1), random_images(70, seed=2)
    np.savez(tmp_path / "samples.npz", samples.numpy())
    folder = save_folder(samples, tmp_path / "folder")

    def batches() -> Iterator[torch.Tensor]:
        yield from samples.split(256)

    sources = [folder, tmp_path / "samples.npz", samples, batches()]
    reports = [evaluate(s, reference, network=pooled, cache=tmp_path / "cache") for s in sources]
    for report in reports[1:]:
        assert report.values == reports[0].values
        assert report.protocol.samples_fingerprint == reports[0].protocol.samples_fingerprint
    assert len(compare(reports)) == len(NAMES)


def test_identical_sets_are_at_distance_zero(pooled: FeatureNetwork, tmp_path: Path) -> None:
    images = random_images(60)
    report = evaluate(images, images, network=pooled, cache=tmp_path)
    assert report["fid"].value == pytest.approx(0, abs=1e-9)
    for name in ("sliced_wasserstein", "spectrum_error", "edges"):
        assert report[name].value == 0
    assert (report["precision"].value, report["recall"].value, report["coverage"].value) == (1, 1, 1)


def test_worse_samples_have_worse_numbers(pooled: FeatureNetwork, tmp_path: Path) -> None:
    reference = random_images(150, seed=2)
    good, fresh = random_images(100, seed=1), torch.Generator().manual_seed(0)
    noise = torch.randint(-60, 60, good.shape, generator=fresh)
    bad = (good.int() + noise + 40).clamp(0, 255).to(torch.uint8)
    better, worse = (evaluate(s, reference, network=pooled, cache=tmp_path) for s in (good, bad))
    for name in ("fid", "fid_infinity", "kid", "sliced_wasserstein", "spectrum_error", "edges", "edge_coherence"):
        assert better[name].value < worse[name].value


def test_inception_score_only_with_logits_and_labelled(
    classifier: FeatureNetwork, pooled: FeatureNetwork, tmp_path: Path
) -> None:
    samples, reference = random_images(40, seed=1), random_images(40, seed=2)
    report = evaluate(samples, reference, network=classifier, cache=tmp_path)
    assert 1 <= report["is[tiny-classes]"].value <= 5
    assert "classifier tiny-classes" in report["is[tiny-classes]"].note
    with pytest.raises(ValueError, match="is does not apply: it needs a network with logits"):
        evaluate(samples, reference, network=pooled, metrics=("is",), cache=tmp_path)


def test_leakage_needs_and_uses_heldout_images(pooled: FeatureNetwork, tmp_path: Path) -> None:
    train, heldout = random_images(60, seed=1), random_images(60, seed=2)
    report = evaluate(train[:30], train, network=pooled, heldout=heldout, metrics=("leakage",), cache=tmp_path)
    assert [v.name for v in report.values] == ["closer_to_training"]
    assert report["closer_to_training"].value > 0.9
    with pytest.raises(ValueError, match="leakage does not apply: it needs held-out images"):
        evaluate(train[:30], train, network=pooled, metrics=("leakage",), cache=tmp_path)


def test_limit_and_metric_choice_and_settings(pooled: FeatureNetwork, tmp_path: Path) -> None:
    samples, reference = random_images(50, seed=1), random_images(50, seed=2)
    report = evaluate(samples, reference, network=pooled, metrics=("kid",), limit=30, cache=tmp_path)
    assert report.protocol.samples_count == 30
    assert [v.name for v in report.values] == ["kid"]
    whole = evaluate(samples[:30], reference, network=pooled, cache=tmp_path)
    assert whole["kid"] == report["kid"]  # leaving other metrics out changes nothing
    other = evaluate(samples[:30], reference, network=pooled, settings=Settings(neighbours=3), cache=tmp_path)
    with pytest.raises(ValueError, match=r"settings: k=5, .* ≠ k=3"):
        compare([whole, other])
    with pytest.raises(ValueError, match=f"no metric fids; choose from {', '.join(METRICS)}"):
        evaluate(samples, reference, network=pooled, metrics=("fids",), cache=tmp_path)
    with pytest.raises(ValueError, match="neighbours must be at least 1, got 0"):
        Settings(neighbours=0)


def test_another_resolution_is_refused_before_any_work(pooled: FeatureNetwork, tmp_path: Path) -> None:
    def never(images: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the network must not run")

    small, large = random_images(10, size=16), random_images(10, size=24)
    with pytest.raises(ValueError, match="samples are 16×16, the reference big is 24×24: another resolution"):
        evaluate(small, large, network=function_network("never", never), reference_name="big", cache=tmp_path)
    with pytest.raises(ValueError, match="another resolution is refused"):
        evaluate(iter([small]), large, network=pooled, cache=tmp_path)
    with pytest.raises(ValueError, match="held-out set array is 24×24"):
        evaluate(small, small, network=pooled, heldout=large, cache=tmp_path)


def test_bad_input_is_one_line(pooled: FeatureNetwork, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    images = random_images(8)
    nan = function_network("nan", lambda x: x.float().mean((2, 3)) * torch.nan)
    cases = [
        (tmp_path / "empty", images, pooled, "no images in folder"),
        (images, tmp_path / "absent", pooled, "no such file or folder"),
        (images, images, nan, "rows hold NaN"),
        (images[:1], images, pooled, "at least 2 images"),
    ]
    for samples, reference, network, message in cases:
        with pytest.raises(ValueError, match=message) as caught:
            evaluate(samples, reference, network=network, cache=tmp_path / "cache")
        assert "\n" not in str(caught.value)
