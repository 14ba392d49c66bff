"""What a report says beside its numbers: small sets, numbers that cannot be taken, rates that are no certainty."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from anisodiff.io.images import Fit
from anisodiff.metrics import (
    Context,
    FeatureNetwork,
    Generation,
    Reference,
    Report,
    Settings,
    cached_statistics,
    comparison_table,
    evaluate,
    extrapolate,
    gaussian_statistics,
    image_set,
    image_statistics,
    load_statistics,
    look_for_copies,
)
from anisodiff.metrics.images import image_digests
from anisodiff.metrics.memorization import Gallery, binomial_error
from anisodiff.metrics.references import open_reference
from anisodiff.metrics.values import MEASURE, Pair
from anisodiff.metrics.weights import ENVIRONMENT, find_weights
from tests.metrics.conftest import TINY, Run, random_images, save_folder


def test_the_heldout_set_is_part_of_the_protocol(pooled: FeatureNetwork, tmp_path: Path) -> None:
    samples, reference = random_images(20, seed=1), random_images(20, seed=2)

    def against(heldout: torch.Tensor | None) -> Report:
        return evaluate(
            samples,
            reference,
            network=pooled,
            heldout=heldout,
            metrics=("memorization",),
            context=Context(cache=tmp_path),
        )

    first, other, none = against(random_images(20, seed=3)), against(random_images(20, seed=4)), against(None)
    mark = first.protocol.heldout_fingerprint
    assert mark is not None
    assert f"held-out {mark[:8]}" in first.protocol.line()
    assert "held-out" not in none.protocol.line()
    with pytest.raises(ValueError, match=f"heldout_fingerprint: {mark[:12]} ≠ "):
        comparison_table([first, other], ["a", "b"])
    assert comparison_table([first, none], ["a", "b"])
    assert comparison_table([none, first], ["a", "b"])


def test_a_small_reference_is_warned_of(pooled: FeatureNetwork) -> None:
    many, few = (
        image_statistics(
            image_set(random_images(n, size=8, seed=n)), pooled, settings=Settings(batch_size=2000, projections=2)
        )
        for n in (10_000, 30)
    )
    settings = Settings(prdc_limit=100, projections=2)
    for name in ("fid", "kid", "prdc", "sliced", "spectrum", "edges"):
        values = MEASURE[name](Pair(samples=many, reference=few, network=pooled, settings=settings, metrics=(name,)))
        for value in values:
            assert "warning: 30 < 10,000 reference images" in value.note, name
            assert "samples" not in value.note.split("warning")[-1], name


def test_each_reference_is_warned_of_once(classifier: FeatureNetwork, tmp_path: Path) -> None:
    """All numbers against one reference share one warning, so that a table shows it once."""
    sets = [random_images(n, seed=n) for n in (20, 30, 40)]
    found = evaluate(*sets[:2], heldout=sets[2], network=classifier, context=Context(cache=tmp_path))
    assert {"kid", "kid_heldout", "is[tiny-classes]"} <= {value.name for value in found.values}
    warned = {part for value in found.values for part in value.note.split("; ") if part.startswith("warning")}
    assert sorted(warned) == [
        f"warning: 20 < 10,000 samples and {n} < 10,000 reference images: noisy and, except KID, biased"
        for n in (30, 40)
    ]


@pytest.mark.parametrize(("metrics", "kid"), [(("fid", "kid"), True), (("fid", "edges"), False)])
def test_the_warning_names_kid_only_where_it_is_measured(
    pooled: FeatureNetwork, tmp_path: Path, metrics: tuple[str, ...], kid: bool
) -> None:
    sets = [random_images(n, seed=n) for n in (20, 30)]
    found = evaluate(*sets, network=pooled, metrics=metrics, context=Context(cache=tmp_path))
    assert {"KID" in value.note for value in found.values} == {kid}
    assert all(value.note.endswith(f"noisy and{', except KID,' * kid} biased") for value in found.values)


def test_precision_and_recall_of_too_few_images(pooled: FeatureNetwork, run: Run, tmp_path: Path) -> None:
    samples, said = save_folder(random_images(4), tmp_path / "four"), []
    save_folder(random_images(40), tmp_path / "reference")
    report = evaluate(samples, random_images(40), network=pooled, context=Context(cache=tmp_path, say=said.append))
    assert "precision" not in {v.name for v in report.values}
    assert "no precision and recall: 4 images have no 5 neighbors" in said
    code, _, err = run("four", "-r", "reference", *TINY, "--metrics", "prdc")
    assert code == 2
    assert "prdc does not apply: 4 images have no 5 neighbors" in err.strip().splitlines()[-1]


def test_one_image_loses_only_what_needs_two(run: Run, tmp_path: Path) -> None:
    for name, count in (("samples", 20), ("reference", 30), ("one", 1)):
        save_folder(random_images(count, seed=count), tmp_path / name)
    code, out, err = run("samples", "-r", "reference", "--heldout", "one", *TINY)
    assert code == 0, err
    for name in ("FID", "KID"):
        assert f"no {name} for the held-out set: got 1 image, expected at least 2" in err
    assert all(f"| {name} " in out for name in ("fid", "kid", "spectrum_error_heldout"))
    assert "fid_heldout" not in out
    code, out, err = run("samples", "-r", "one", *TINY)
    assert code == 0, err
    assert "no FID: got 1 image" in err
    assert "spectrum_error" in out
    code, _, err = run("samples", "-r", "one", *TINY, "--metrics", "kid")
    assert code == 2
    assert err.strip().splitlines()[-1].endswith("kid does not apply: got 1 image, expected at least 2")


def test_statistics_keep_the_split(pooled: FeatureNetwork, tmp_path: Path) -> None:
    samples, reference = random_images(20, seed=1), random_images(20, seed=2)
    given = Reference(name="colors", split="train", content=image_set(reference))
    named = evaluate(samples, given, network=pooled, context=Context(cache=tmp_path), metrics=("kid",))
    (file,) = (tmp_path / "statistics").iterdir()
    held = open_reference(str(file), fit=Fit(size=(16, 16), channels=3), network=pooled)
    assert (held.name, held.split) == ("colors", "train")
    again = evaluate(
        samples, load_statistics(file, pooled), network=pooled, context=Context(cache=tmp_path), metrics=("kid",)
    )
    assert again == named


def test_fewer_samples_than_asked_for_are_said(run: Run, tmp_path: Path) -> None:
    save_folder(random_images(20), tmp_path / "samples")
    words = ("samples", "-r", "samples", *TINY, "--metrics", "kid", "--n")
    assert "samples: 20 images, fewer than the 500 asked for" in run(*words, 500)[2]
    assert "asked for" not in run(*words, 20)[2]


def test_an_empty_environment_variable_names_no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ENVIRONMENT, "")
    with pytest.raises(ValueError, match="not in the cache"):
        find_weights(cache=tmp_path, online=False, say=lambda _: None)


def test_a_rate_of_nothing_is_not_certain(pooled: FeatureNetwork, tmp_path: Path) -> None:
    reference, strangers = random_images(30, seed=1), random_images(12, seed=2)
    report = evaluate(
        strangers, reference, network=pooled, generation=Generation(sources=(29,) * 12),
        context=Context(cache=tmp_path), metrics=("memorization",),
    )  # fmt: skip
    for name in ("source_recovered_features", "source_recovered_pixels"):
        assert report[name].value == 0
        assert report[name].error == pytest.approx(1 / 26)  # half of Wilson's interval [0, 1/13] for 0 of 12, z = 1
    assert binomial_error(0.5, 10_000) == pytest.approx(0.005, rel=1e-3)
    assert binomial_error(1, 12) == binomial_error(0, 12)


def test_the_bias_is_the_slope_of_the_law_at_all_samples(pooled: FeatureNetwork, tmp_path: Path) -> None:
    samples, reference = random_images(400, seed=1), random_images(300, seed=2)
    report = evaluate(samples, reference, network=pooled, metrics=("fid",), context=Context(cache=tmp_path))
    known = gaussian_statistics(pooled(reference)[0])
    digests = image_digests(samples)
    in_order = samples[sorted(range(400), key=digests.__getitem__)]
    line = extrapolate(pooled(in_order)[0], known, generator=Settings().generator())
    slope, limit = np.polyfit(1 / np.array(line.sizes), line.values, 1)
    assert report["fid_bias"].value == pytest.approx(slope / 400, rel=1e-6)
    assert report["fid_infinity"].value == pytest.approx(limit, rel=1e-6)
    assert report["fid_bias"].value > 0


def test_each_column_of_the_sheet_shows_its_own_neighbor(pooled: FeatureNetwork) -> None:
    """A bright and a dark stripe in each quadrant: the mean color of one image, nearly the pixels of another."""
    gray, striped = torch.full((3, 64, 64), 100, dtype=torch.uint8), torch.zeros(3, 64, 64, dtype=torch.uint8)
    striped[:, :, ::2] = 200
    train = torch.stack([gray, (striped.int() + 20).to(torch.uint8)])
    gallery = Gallery(features=pooled(train)[0], images=image_set(train))
    found = look_for_copies(striped[None], pooled(striped[None])[0], gallery, generator=torch.Generator())
    assert isinstance(found.sheet, Image.Image)
    pixels = torch.from_numpy(np.array(found.sheet)).permute(2, 0, 1)[:, 24 : 24 + 64, 8 : 8 + 192]
    for shown, expected in zip(pixels.split(64, dim=2), (striped, train[0], train[1])):
        assert torch.equal(shown, expected)


def test_tiny_images_lose_only_the_edges(pooled: FeatureNetwork, tmp_path: Path) -> None:
    samples, reference, said = random_images(20, size=6, seed=1), random_images(20, size=6, seed=2), []
    report = evaluate(samples, reference, network=pooled, context=Context(cache=tmp_path, say=said.append))
    assert {"fid", "kid", "spectrum_error"} <= {v.name for v in report.values}
    assert "edges" not in {v.name for v in report.values}
    assert any(line.startswith("no edge statistics: ") for line in said)
    with pytest.raises(ValueError, match="edges does not apply: images of 6×6"):
        evaluate(samples, reference, network=pooled, context=Context(cache=tmp_path), metrics=("edges",))


def test_hashing_a_reference_is_told(pooled: FeatureNetwork, tmp_path: Path) -> None:
    images, told = image_set(random_images(20)), []
    for _ in range(2):
        context = Context(cache=tmp_path, progress=lambda *step: told.append(step))
        cached_statistics(images, pooled, settings=Settings(batch_size=8), context=context)
    reading = [("reading array", 8, 20), ("reading array", 16, 20), ("reading array", 20, 20)]
    assert [step for step in told if step[0].startswith("reading")] == reading * 2
    counted = [step[1:] for step in told if step[0] == "reference array"]
    assert counted == [(0, 20), (8, 20), (16, 20), (20, 20)]  # once: the second time they come from the cache
