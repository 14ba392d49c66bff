"""``anisodiff evaluate run``: the run's own images as reference, and those it kept aside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import anisodiff
from anisodiff.data import prepare
from anisodiff.metrics import Report
from anisodiff.metrics.references import own_images
from anisodiff.training.run_folder import RunDescription, write_run
from tests.metrics.conftest import TINY, Run, random_images, save_folder
from tests.training.conftest import pixels, tiny

FAST = ("--n", 12, "--steps", 2, *TINY)
PIXELS = ("--n", 12, "--steps", 2, "--metrics", "spectrum,edges,sliced", "--device", "cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, trained for a moment on 30 images of 8², with 10 kept aside."""
    from anisodiff.training import train
    from anisodiff.training.hooks import Hooks
    from anisodiff.training.preview import fit_prior

    folder = tmp_path_factory.mktemp("trained") / "run"
    parts = {"data": pixels(40)[:30], "heldout": pixels(40)[30:]}
    for name, images in parts.items():
        np.save(folder.with_name(f"{name}.npy"), images)
        prepare(folder.with_name(f"{name}.npy"), folder.with_name(name), size=8, channels=1)
    config = tiny(images=8)
    dataset = prepare(folder.with_name("data.npy"), folder.with_name("data"), size=8, channels=1).dataset
    train(config, dataset, folder, track=(), hooks=Hooks(fit_prior=fit_prior))
    for name in parts:
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.move(folder.with_name(name), folder / name)
    write_run(folder, RunDescription(config=config, data=folder / "data", heldout=folder / "heldout"))
    return folder


@pytest.fixture
def trained(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "run"))


def report_of(run: Run, *words: object) -> Report:
    code, out, err = run(*words, "--json", "-")
    assert code == 0, err
    return Report.from_json(out)


def test_images_that_no_prior_needs_are_refused_before_sampling(run: Run, trained: Path) -> None:
    code, _, err = run("run", *FAST, "--images", "run/data")
    assert code == 2
    assert err.splitlines()[-1].startswith("anisodiff: prior 'gaussian' is in the checkpoint and needs no images")
    assert "12 samples" not in err


def test_what_is_wrong_is_refused_before_sampling(
    run: Run, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sample(*_: object) -> None:
        raise AssertionError("sampled")

    monkeypatch.setattr(anisodiff.Generator, "sample_with", sample)
    save_folder(random_images(3), tmp_path / "damaged")
    for path in (tmp_path / "damaged").iterdir():
        path.write_bytes(path.read_bytes()[:60])
    save_folder(random_images(15), tmp_path / "rotten")  # the first few are good
    for path in sorted((tmp_path / "rotten").iterdir())[3:]:
        path.write_bytes(path.read_bytes()[:60])
    (tmp_path / "empty").mkdir()
    for words, message in [
        (("-r", "damaged"), "no image can be used"),
        (("-r", "empty"), "empty holds no images"),
        (("--heldout", "damaged"), "no image can be used"),
        (("--heldout", "rotten"), "and 8 more); repair or remove them"),
        (("--metrics", "class-fid"), "class-fid does not apply: the classes of the samples are not known"),
        (("--sampler", "heun"), "the sampler 'heun' needs"),
        (("--n", 10**12), "n: got 1000000000000 samples, expected at most 10,000,000"),
    ]:
        code, _, err = run("run", *FAST, *words)
        assert (code, err.splitlines()[-1].startswith("anisodiff: ")) == (2, True), err
        assert message in err
    code, _, err = run("run", *PIXELS, "--metrics", "fid")
    assert code == 2
    assert "inception-2015-12-05 not found: not in the cache" in err


def test_a_run_alone_is_measured_against_its_own_images(run: Run, trained: Path) -> None:
    found = report_of(run, "run", *FAST)
    protocol = found.protocol
    assert (protocol.samples, protocol.samples_count, protocol.reference) == ("run", 12, "run/data")
    assert (protocol.reference_count, protocol.reference_resize) == (30, "none")
    names = [value.name for value in found.values]
    assert {"fid", "fid_heldout", "kid", "kid_heldout", "edges", "edges_heldout"} <= set(names)
    assert "10 images a side" in found["closer_to_training_pixels"].note
    assert "30 < 10,000 reference images" in found["kid"].note
    assert "10 < 10,000 reference images" in found["kid_heldout"].note
    explicit = report_of(run, "run", "-r", "run/data", "--heldout", "run/heldout", *FAST)
    assert explicit.values == found.values
    assert explicit.protocol.differences(protocol) == ()
    swapped = report_of(run, "run", "-r", "run/heldout", *FAST)  # --reference overrides both
    assert {v.name.removesuffix("_heldout"): v.value for v in found.values if v.name.endswith("_heldout")} == {
        v.name: v.value for v in swapped.values
    }
    (step,) = (trained / "checkpoints").glob("step*")
    assert report_of(run, step, *FAST).values == found.values  # a checkpoint knows its run


def test_a_run_without_heldout_or_without_its_images(run: Run, trained: Path) -> None:
    config = tiny(images=8)
    write_run(trained, RunDescription(config=config, data=trained / "data"))
    found = report_of(run, "run", *FAST)
    assert not [v.name for v in found.values if "heldout" in v.name or "closer" in v.name]
    shutil.rmtree(trained / "data")
    code, _, err = run("run", *FAST)
    assert (code, err.count("\n")) == (2, 1)
    assert "run/data, named in " in err
    assert "is not there: give a reference (--reference" in err
    write_run(trained, RunDescription(config=config))
    with pytest.raises(ValueError, match="run does not say which images it was trained on: give a reference"):
        own_images(trained)


def test_the_default_number_is_said_and_can_be_changed(
    run: Run, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anisodiff.metrics.samples.COUNTS", {"cpu": 9})
    code, out, err = run("run", "--steps", 2, "--metrics", "spectrum", "--device", "cpu")
    assert code == 0, err
    assert "9 samples are the default on this device (cpu): change it with --n" in err
    assert out.splitlines()[-1].startswith("9 samples of run (")
    assert [line.split("|")[1].strip() for line in out.splitlines()[2:4]] == [
        "spectrum_error",
        "spectrum_error_heldout",
    ]


def test_a_reference_of_mixed_sizes_is_what_prepare_makes_of_it(run: Run, trained: Path, tmp_path: Path) -> None:
    from PIL import Image

    photos = save_folder(random_images(6, size=20), tmp_path / "photos")
    for number, image in enumerate(random_images(4, size=24)):
        Image.fromarray(image[:, 2:].permute(1, 2, 0).numpy()).save(photos / f"wide{number}.jpg")
    save_folder(random_images(3, size=8, seed=5), photos / "exact")
    prepare(photos, tmp_path / "prepared", size=8, channels=1)
    folder = report_of(run, "run", "-r", "photos", *FAST)
    assert folder.protocol.reference_resize == "luma, center crop, Lanczos"
    assert "resized: luma, center crop, Lanczos" in folder.protocol.line()
    ready = report_of(run, "run", "-r", "prepared", *FAST)
    assert ready.protocol.reference_resize == "none"
    assert ready.values == folder.values
    assert ready.protocol.differences(folder.protocol) == ()  # the same pixels
    code, _, err = run("run", "-r", "photos", *PIXELS)
    assert code == 0
    assert "photos: 13 of 13 images brought to 8×8 in gray, as data prepare does (luma, center crop, Lanczos)" in err
    (statistics,) = (tmp_path / "home" / "anisodiff" / "statistics").iterdir()
    assert (
        report_of(run, "run", "-r", statistics, *PIXELS).protocol.reference_resize == folder.protocol.reference_resize
    )
    other = report_of(run, "run", "-r", "photos/exact", *FAST)
    assert [d.split(":")[0] for d in folder.protocol.differences(other.protocol)] == [
        "reference", "reference_fingerprint", "reference_count", "reference_resize",
    ]  # fmt: skip
    python = anisodiff.evaluate("run", "photos", n=12, steps=2, metrics="spectrum,sliced")
    assert python.protocol.reference_fingerprint == folder.protocol.reference_fingerprint
    assert [value.value for value in python.values] == pytest.approx(
        [folder[name].value for name in ("spectrum_error", "sliced_wasserstein")]
    )


def test_arrays_and_prepared_sets_are_brought_to_size_too(run: Run, trained: Path, tmp_path: Path) -> None:
    large = random_images(9, size=24)
    np.savez("large.npz", images=large.permute(0, 2, 3, 1).numpy())
    prepare("large.npz", "large", size=24, channels=3)
    save_folder(large, tmp_path / "folder")
    reports = [report_of(run, "run", "-r", name, *PIXELS) for name in ("large.npz", "large", "folder")]
    assert reports[0].values == reports[1].values == reports[2].values
    assert {r.protocol.reference_resize for r in reports} == {"luma, center crop, Lanczos"}
    code, out, err = run("run", "--heldout", "large.npz", *PIXELS)  # beside the run's own training images
    assert code == 0, err
    assert "large: 9 of 9 images brought to 8×8" in err
    assert "against 30 of run/data" in out


def test_color_is_taken_out_of_a_reference_for_gray_samples(run: Run, trained: Path, tmp_path: Path) -> None:
    """The same luma, in color or in gray, as pictures, prepared or as an array, of a run or of its samples."""
    colors = random_images(9, size=8)
    save_folder(colors, tmp_path / "photos")
    np.savez("photos.npz", images=colors.permute(0, 2, 3, 1).numpy())
    prepare("photos", "colored", size=8, channels=3)
    prepare("photos", "gray", size=8, channels=1)
    reports = {
        name: report_of(run, "run", "-r", name, *PIXELS) for name in ("gray", "photos", "photos.npz", "colored")
    }
    assert {name: report.protocol.reference_resize for name, report in reports.items()} == {
        "gray": "none", "photos": "luma", "photos.npz": "luma", "colored": "luma",
    }  # fmt: skip
    assert all(report.values == reports["gray"].values for report in reports.values())
    Path("samples.zip.json").write_text('{"channels": 1}')
    save_folder(random_images(5, size=8, seed=3)[:, :1].expand(-1, 3, -1, -1), tmp_path / "samples")
    shutil.make_archive("samples", "zip", "samples")
    words = ("--metrics", "spectrum", "--device", "cpu")
    found = [report_of(run, "samples.zip", "-r", name, *words) for name in ("photos", "gray")]
    assert found[0].values == found[1].values


def test_a_reference_is_cropped_as_the_images_of_the_run_were(run: Run, trained: Path, tmp_path: Path) -> None:
    save_folder(random_images(6, size=20), tmp_path / "photos")
    save_folder(random_images(6, size=20)[..., 4:16, 4:16], tmp_path / "cropped")
    for name in ("photos", "cropped"):
        save_folder(random_images(3, size=8, seed=5), tmp_path / name / "exact")  # has its size: prepared before
    plain = report_of(run, "run", "-r", "photos", *PIXELS)
    meta = trained / "data" / "meta.json"
    said = json.loads(meta.read_text())
    said["identity"]["fit"]["crop"] = 12
    meta.write_text(json.dumps(said))
    photos, cropped = (report_of(run, "run", "-r", name, *PIXELS) for name in ("photos", "cropped"))
    assert photos.values == cropped.values != plain.values
    assert photos.protocol.reference_resize == "luma, center crop 12, Lanczos"
    np.savez("cropped.npz", images=random_images(6, size=10).permute(0, 2, 3, 1).numpy())
    array = report_of(run, "run", "-r", "cropped.npz", *PIXELS)  # an array has no margin to cut
    assert array.protocol.reference_resize == "luma, center crop, Lanczos"


def test_bits_of_a_run_need_neither_samples_nor_a_network(
    run: Run, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anisodiff.cli.evaluate.BITS", {"cpu": 6})
    monkeypatch.setattr("anisodiff.generation.Generator.sample_seeds", None)
    code, out, err = run("run", "--metrics", "bits", "--device", "cpu", "--json", "a.json")
    assert code == 0, err
    assert "bits of 6 images are the default on this device (cpu): change it with --n" in err
    names = [line.split("|")[1].strip() for line in out.splitlines()[2:10]]
    assert names[::4] == ["bits", "bits_heldout"]
    assert "on 30 of run/data" in out
    again = report_of(run, "run", "--metrics", "bits", "--n", 6, "--batch", 4, "--device", "cpu")
    first = Report.from_json(Path("a.json").read_text())
    assert again.protocol == first.protocol
    assert again["bits_heldout"].each == pytest.approx(first["bits_heldout"].each, rel=1e-4)
    code, out, err = run("--compare", "a.json", "--compare", "a.json")
    assert "+0.0000 ± 0.0000" in out


def test_bits_beside_other_metrics(run: Run, trained: Path) -> None:
    words = ("--n", 6, "--steps", 2, "--device", "cpu")
    both = report_of(run, "run", "--metrics", "spectrum,bits", *words)
    bits, spectrum = (report_of(run, "run", "--metrics", name, *words) for name in ("bits", "spectrum"))
    assert both.values == (*spectrum.values, *bits.values)
    assert both.protocol.bits == bits.protocol.bits
    assert both.protocol.differences(spectrum.protocol) == ()


def test_mistakes_with_bits(refused, run: Run, trained: Path, tmp_path: Path) -> None:
    save_folder(random_images(3, size=8), tmp_path / "samples")
    words = ("--metrics", "bits", "--device", "cpu")
    refused(
        "evaluate", "samples", "-r", "samples", *words, says="bits does not apply: it is the likelihood of a model"
    )
    refused("evaluate", "run", *words, "--prior", "simulate", says="--prior simulate has no density")
    refused("evaluate", "run", *words, "--sheet", "a.png", says="a sheet belongs to the metric memorization")


def test_python_measures_a_run_and_its_images_as_the_command_does(run: Run, trained: Path) -> None:
    """Also with the preview grids that a run keeps in samples/, which are no samples."""
    save_folder(random_images(1, size=9), trained / "samples")
    told = report_of(run, "run", *PIXELS)
    model = anisodiff.load(trained, "cpu")
    for source in (trained, str(trained), model):
        found = anisodiff.evaluate(source, n=12, steps=2, metrics="spectrum, Edges,sliced")
        assert [(v.name, v.value) for v in found.values] == [(v.name, v.value) for v in told.values]
        assert (found.protocol.nfe, found.protocol.samples_count) == (told.protocol.nfe, 12)
    images = model.sample(12, steps=2, batch=8)  # floats
    found = anisodiff.evaluate(images, trained / "data", heldout=trained / "heldout", metrics=("spectrum",))
    assert found.values[0].value == told.values[0].value
    with pytest.raises(ValueError, match=r"got values from .*, expected floats in \[0, 1\]"):
        anisodiff.evaluate(255 * images, trained / "data")
    with pytest.raises(ValueError, match="steps: it is of a model"):
        anisodiff.evaluate(images, trained / "data", steps=2)
    with pytest.raises(ValueError, match="reference: got none"):
        anisodiff.evaluate(images)
