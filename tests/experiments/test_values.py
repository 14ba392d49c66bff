"""The numbers on the page are those of the right images: made again by hand from the study's own weights."""

import json
import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import anisodiff
from anisodiff.editing import edit, strokes
from anisodiff.io.images import to_bytes
from anisodiff.metrics import Preprocess, frechet_distance, image_set, image_statistics, torchscript
from tests.experiments.conftest import COMMON

STEPS, STRENGTH = 4, 0.5


@pytest.fixture
def study(command, folder):
    """Made once; in batches of three, so that samples and edits come in several files."""
    out = folder / "study"
    if not out.exists():
        words = ("--steps", f"3,{STEPS}", "--edit", ".", "--edit-n", 4, "--strengths", STRENGTH, "--batch", 3)
        code, _, err = command("compare", "ve", *COMMON, "--images", 24, *words, out=out)
        assert code == 0, err
    return out


@pytest.fixture
def generator(study):
    return anisodiff.load(study / "work" / "ve" / "run", "cpu")


def made(folder):
    return torch.cat([torch.from_numpy(np.load(path)["images"]) for path in sorted(folder.glob("0*.npz"))])


def nearly(one, other):
    """To a gray level: another batch sums in another order."""
    return one.shape == other.shape and int((one.int() - other.int()).abs().max()) <= 1


def distance(prepared, images, others):
    unit = Preprocess(size=None, mean=(0.0, 0.0, 0.0), std=(255.0, 255.0, 255.0))
    network = torchscript(prepared.path.parent / "tiny.pt", name="tiny", preprocess=unit)
    ours, theirs = (image_statistics(image_set(x, name="x"), network) for x in (images, others))
    return frechet_distance(ours.gaussian, theirs.gaussian)


def test_samples_and_their_distance(study, generator, prepared):
    images = made(study / "work" / "ve" / f"gaussian-{STEPS}")
    assert nearly(images, to_bytes(generator.sample(12, seed=0, steps=STEPS)))
    held = json.loads((study / "results" / "ve" / f"gaussian-{STEPS}.json").read_text())
    found = {value["name"]: value["value"] for value in held["report"]["values"]}
    known = torch.from_numpy(prepared.images[:].copy())
    assert found["fid"] == pytest.approx(distance(prepared, images, known), rel=1e-6)
    shown = np.load(study / "results" / "ve" / f"gaussian-{STEPS}.npz")["images"]
    assert np.array_equal(shown, images.numpy())


def test_edits_and_their_distances(study, generator, prepared):
    pictures = [np.asarray(Image.open(path)) for path in sorted(prepared.path.parent.glob("photo*.png"))]
    photos = torch.from_numpy(np.stack(pictures))[:, None].float() / 255
    paintings = torch.stack([to_bytes(strokes(photo, 6)) for photo in photos]).float() / 255
    images = made(study / "work" / "ve" / f"edit-{STRENGTH:g}")
    assert nearly(images, to_bytes(edit(generator, paintings, seeds=range(4), strength=STRENGTH, steps=STEPS)))
    held = json.loads((study / "results" / "ve" / f"edit-{STRENGTH:g}.json").read_text())
    for name, wanted in (("painting", paintings), ("photo", photos)):
        error = (images.double() / 255 - wanted.double()).square().mean().sqrt()
        assert held[f"rmse_{name}"] == pytest.approx(float(error), rel=1e-9)
    assert abs(held["rmse_painting"] - held["rmse_photo"]) > 1e-4
    assert held["fid"] == pytest.approx(distance(prepared, images, to_bytes(photos)), rel=1e-6)


def test_the_main_table(study):
    page = (study / "results" / "page.md").read_text()
    cells = [cell.strip() for cell in re.search(r"\| ve .*", page)[0].split("|")[1:-1]]
    trained = json.loads((study / "results" / "ve" / "train.json").read_text())
    held = json.loads((study / "results" / "ve" / f"gaussian-{STEPS}.json").read_text())
    fid = next(value["value"] for value in held["report"]["values"] if value["name"] == "fid")
    seconds = trained["seconds"]
    expected = ["ve", "24", "6", f"{seconds:.4g}", f"{1e3 * seconds / 24:.4g}", f"**{fid:.4g}**", str(STEPS)]
    assert [*expected, f"{1e3 * held['sampling']['seconds_per_image']:.4g}"] == cells
    assert "12 samples of ve (" in page


def test_a_run_that_saw_no_images_has_no_time_per_image(study, command, tmp_path):
    """As with --images 0: a network as it was given."""
    shutil.copytree(study / "results", tmp_path / "results")
    place = tmp_path / "results" / "ve" / "train.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "images": 0}))
    code, _, err = command("compare", "--stage", "page", out=tmp_path)
    assert code == 0, err
    row = re.search(r"\| ve .*", (tmp_path / "results" / "page.md").read_text())
    assert row is not None
    cells = [cell.strip() for cell in row[0].split("|")[1:-1]]
    assert (cells[1], cells[4]) == ("0", "–")
