from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from anisodiff.metrics import (
    METRICS,
    Context,
    FeatureNetwork,
    Generation,
    Reference,
    Report,
    Settings,
    comparison_table,
    evaluate,
    frechet_distance,
    function_network,
    gaussian_statistics,
    image_set,
    load_statistics,
)
from anisodiff.metrics.cache import is_statistics
from tests.metrics.conftest import random_images, save_folder

NAMES = {
    "fid", "fid_infinity", "fid_bias", "kid", "precision", "recall", "density", "coverage", "sliced_wasserstein",
    "spectrum_error", "edges", "edge_orientation", "edge_coherence", "edge_magnitude",
}  # fmt: skip


def test_a_whole_report(pooled: FeatureNetwork, tmp_path: Path) -> None:
    samples, reference = random_images(120, seed=1), random_images(150, seed=2)
    report = evaluate(
        save_folder(samples, tmp_path / "samples"),
        Reference(name="colors", split="train", content=image_set(reference)),
        network=pooled,
        generation=Generation(nfe=35, prior="gaussian", seed=3),
        context=Context(cache=tmp_path / "cache"),
    )
    assert {v.name for v in report.values} == NAMES
    expected = frechet_distance(*(gaussian_statistics(pooled(x)[0]) for x in (samples, reference)))
    assert report["fid"].value == pytest.approx(expected, rel=1e-6)
    assert "warning: 120 < 10,000 samples" in report["fid"].note
    assert all("warning: 120 < 10,000 samples" in report[n].note for n in NAMES)
    p = report.protocol
    assert (p.samples, p.samples_count, p.reference, p.reference_split) == ("samples", 120, "colors", "train")
    assert (p.nfe, p.prior, p.seed, p.size, p.network) == (35, "gaussian", 3, "16×16", "quadrants")
    assert Report.from_json(report.to_json()) == report


def test_the_container_and_the_cache_do_not_change_a_digit(pooled: FeatureNetwork, tmp_path: Path) -> None:
    samples, reference = random_images(60, seed=1), random_images(70, seed=2)
    np.savez(tmp_path / "samples.npz", samples.numpy())
    folder = save_folder(samples, tmp_path / "folder")

    def batches() -> Iterator[torch.Tensor]:
        yield from samples.split(256)

    sources = [folder, tmp_path / "samples.npz", samples, batches()]
    reports = [evaluate(s, reference, network=pooled, context=Context(cache=tmp_path / "cache")) for s in sources]
    for report in reports[1:]:
        assert report.values == reports[0].values
        assert report.protocol.samples_fingerprint == reports[0].protocol.samples_fingerprint
    table = comparison_table(reports, ["a", "b", "c", "d"])
    assert len(table.splitlines()) == 2 + len(NAMES)


def test_extrapolation_from_fewer_samples_than_features_says_so(pooled: FeatureNetwork, tmp_path: Path) -> None:
    samples, reference = random_images(50, seed=1), random_images(50, seed=2)
    for count, rough in ((50, False), (30, True)):  # the smallest of ten blocks' sums holds 15 or 9; 12 features
        report = evaluate(
            samples[:count], reference, network=pooled, metrics=("fid",), context=Context(cache=tmp_path)
        )
        assert ("does not hold below 12 samples" in report["fid_infinity"].note) is rough


def test_identical_sets_are_at_distance_zero(pooled: FeatureNetwork, tmp_path: Path) -> None:
    images = random_images(60)
    report = evaluate(images, images, network=pooled, context=Context(cache=tmp_path))
    assert report["fid"].value == pytest.approx(0, abs=1e-9)
    for name in ("sliced_wasserstein", "spectrum_error", "edges"):
        assert report[name].value == 0
    assert (report["precision"].value, report["recall"].value, report["coverage"].value) == (1, 1, 1)


def test_worse_samples_have_worse_numbers(pooled: FeatureNetwork, tmp_path: Path) -> None:
    reference = random_images(150, seed=2)
    good, fresh = random_images(100, seed=1), torch.Generator().manual_seed(0)
    noise = torch.randint(-60, 60, good.shape, generator=fresh)
    bad = (good.int() + noise + 40).clamp(0, 255).to(torch.uint8)
    better, worse = (evaluate(s, reference, network=pooled, context=Context(cache=tmp_path)) for s in (good, bad))
    for name in ("fid", "fid_infinity", "kid", "sliced_wasserstein", "spectrum_error", "edges", "edge_coherence"):
        assert better[name].value < worse[name].value


def test_inception_score_only_with_logits_and_labeled(
    classifier: FeatureNetwork, pooled: FeatureNetwork, tmp_path: Path
) -> None:
    samples, reference = random_images(40, seed=1), random_images(40, seed=2)
    report = evaluate(samples, reference, network=classifier, context=Context(cache=tmp_path))
    assert 1 <= report["is[tiny-classes]"].value <= 5
    assert "classifier tiny-classes" in report["is[tiny-classes]"].note
    said: list[str] = []
    assert not any(
        v.name.startswith("is[")
        for v in evaluate(samples, reference, network=pooled, context=Context(cache=tmp_path, say=said.append)).values
    )
    assert not any("Inception score" in line for line in said)  # nobody asked for it
    with pytest.raises(ValueError, match="is does not apply: quadrants has no logits"):
        evaluate(samples, reference, network=pooled, metrics=("is",), context=Context(cache=tmp_path))


def test_memorization_of_copies_and_of_new_samples(pooled: FeatureNetwork, tmp_path: Path) -> None:
    train, heldout = random_images(60, seed=1), random_images(60, seed=2)
    sheets: list[Image.Image] = []
    copied = evaluate(
        train[:30], train, network=pooled, heldout=heldout, metrics=("memorization",),
        context=Context(cache=tmp_path, sheet=sheets.append), settings=Settings(inspected=20),
    )  # fmt: skip
    names = ["nearest_features", "nearest_pixels", "closer_to_training_features", "closer_to_training_pixels"]
    assert [v.name for v in copied.values] == names
    assert copied["nearest_features"].value == pytest.approx(0, abs=1e-7)
    assert copied["nearest_pixels"].value == pytest.approx(0, abs=1e-7)
    assert "over 20 samples" in copied["nearest_pixels"].note
    assert copied["closer_to_training_features"].value == copied["closer_to_training_pixels"].value == 1
    assert len(sheets) == 1
    new = evaluate(random_images(50, seed=3), train, network=pooled, heldout=heldout, context=Context(cache=tmp_path))
    apart = {f"{name}_heldout" for name in NAMES}  # held-out images bring distances of their own, and the search
    assert {v.name for v in new.values} == {*NAMES, *names, *apart}
    share = new["closer_to_training_features"]
    assert abs(share.value - 0.5) < 4 * 0.5 / 50**0.5
    assert new["nearest_pixels"].value > 0.05
    with pytest.raises(ValueError, match="a sheet belongs to the metric memorization; name it too"):
        evaluate(train, train, network=pooled, metrics=("fid",), context=Context(cache=tmp_path, sheet=print))
    with pytest.raises(ValueError, match="reads the reference several times"):
        evaluate(train, iter([train]), network=pooled, metrics=("memorization",), context=Context(cache=tmp_path))


def test_sources_are_recovered_from_copies_and_not_from_others(pooled: FeatureNetwork, tmp_path: Path) -> None:
    train = random_images(60, seed=1)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(0))[:40]
    kept = Generation(prior="simulate", sources=tuple(order.tolist()))
    report = evaluate(train[order], train, network=pooled, generation=kept, context=Context(cache=tmp_path))
    for name in ("source_recovered_features", "source_recovered_pixels"):
        assert report[name].value == 1
        assert report[name].error == pytest.approx(1 / 82)  # all of 40: Wilson's interval is [40/41, 1]
        assert "chance 0.017" in report[name].note
    lost = evaluate(
        random_images(40, seed=9), train, network=pooled, generation=kept, context=Context(cache=tmp_path)
    )
    assert lost["source_recovered_features"].value < 0.15
    assert lost["source_recovered_pixels"].value < 0.15
    first = evaluate(
        train[order],
        train,
        network=pooled,
        generation=kept,
        settings=Settings(limit=10),
        context=Context(cache=tmp_path),
    )
    assert first["source_recovered_features"].value == 1
    with pytest.raises(ValueError, match="40 sources are known, but there are 60 samples"):
        evaluate(train, train, network=pooled, generation=kept, context=Context(cache=tmp_path))
    with pytest.raises(ValueError, match=r"a sample comes from image 5., but array has 30 images"):
        evaluate(train[order], train[:30], network=pooled, generation=kept, context=Context(cache=tmp_path))
    with pytest.raises(ValueError, match="sources must be indices"):
        Generation(sources=(3, -1))


def test_a_reference_by_its_statistics_gives_the_same_numbers(pooled: FeatureNetwork, tmp_path: Path) -> None:
    samples, reference = random_images(40, seed=1), random_images(50, seed=2)
    first = evaluate(samples, image_set(reference, name="colors"), network=pooled, context=Context(cache=tmp_path))
    (file,) = (tmp_path / "statistics").iterdir()
    assert is_statistics(file)
    held = load_statistics(file, pooled)
    assert held.name == "colors"
    assert evaluate(samples, held, network=pooled, context=Context(cache=tmp_path)) == first
    with pytest.raises(ValueError, match="a sheet needs the images"):
        evaluate(samples, held, network=pooled, context=Context(cache=tmp_path, sheet=print))
    features_only = evaluate(
        samples, held, network=pooled, metrics=("memorization",), context=Context(cache=tmp_path)
    )
    assert [v.name for v in features_only.values] == ["nearest_features"]
    with pytest.raises(ValueError, match=r"of another protocol .quadrants ≠ other"):
        load_statistics(file, replace(pooled, name="other"))
    with pytest.raises(ValueError, match=r"of another protocol .*seed 0 ≠ .*seed 1"):
        load_statistics(file, pooled, Settings(seed=1))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(ValueError, match="damaged statistics; delete the file"):
        load_statistics(file, pooled)


def test_limit_and_metric_choice_and_settings(pooled: FeatureNetwork, tmp_path: Path) -> None:
    samples, reference = random_images(50, seed=1), random_images(50, seed=2)
    report = evaluate(
        samples,
        reference,
        network=pooled,
        metrics=("kid",),
        settings=Settings(limit=30),
        context=Context(cache=tmp_path),
    )
    assert report.protocol.samples_count == 30
    assert [v.name for v in report.values] == ["kid"]
    whole = evaluate(samples[:30], reference, network=pooled, context=Context(cache=tmp_path))
    assert whole["kid"] == report["kid"]  # leaving other metrics out changes nothing
    other = evaluate(
        samples[:30], reference, network=pooled, settings=Settings(neighbors=3), context=Context(cache=tmp_path)
    )
    with pytest.raises(ValueError, match=r"settings: k=5, .* ≠ k=3"):
        comparison_table([whole, other], ["a", "b"])
    with pytest.raises(ValueError, match=f"no metric fids; choose from {', '.join(METRICS)}"):
        evaluate(samples, reference, network=pooled, metrics=("fids",), context=Context(cache=tmp_path))
    with pytest.raises(ValueError, match="neighbors: got 0, expected a whole number, 1 or more"):
        Settings(neighbors=0)


def test_another_resolution_is_refused_before_any_work(pooled: FeatureNetwork, tmp_path: Path) -> None:
    def never(images: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the network must not run")

    small, large = random_images(10, size=16), random_images(10, size=24)
    with pytest.raises(ValueError, match="samples are 16×16, the reference big is 24×24: another resolution"):
        evaluate(
            small,
            image_set(large, name="big"),
            network=function_network("never", never),
            context=Context(cache=tmp_path),
        )
    with pytest.raises(ValueError, match="another resolution is refused"):
        evaluate(iter([small]), large, network=pooled, context=Context(cache=tmp_path))
    made: list[int] = []

    def endless() -> Iterator[torch.Tensor]:
        while True:
            made.append(1)
            yield small

    with pytest.raises(ValueError, match="another resolution is refused"):
        evaluate(endless(), large, network=function_network("never", never), context=Context(cache=tmp_path))
    assert len(made) == 1  # a model that makes samples is stopped after the first batch
    with pytest.raises(ValueError, match="held-out set array is 24×24"):
        evaluate(small, small, network=pooled, heldout=large, context=Context(cache=tmp_path))


def test_bad_input_is_one_line(pooled: FeatureNetwork, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    images = random_images(8)
    nan = function_network("nan", lambda x: x.float().mean((2, 3)) * torch.nan)
    cases = [
        (tmp_path / "empty", images, pooled, "holds no images"),
        (images, tmp_path / "absent", pooled, "No such file or directory"),
        (images, images, nan, "rows hold NaN"),
        (images[:1], images, pooled, "at least 2 images"),
    ]
    for samples, reference, network, message in cases:
        with pytest.raises(ValueError, match=message) as caught:
            evaluate(samples, reference, network=network, context=Context(cache=tmp_path / "cache"))
        assert "\n" not in str(caught.value)
