"""`anisodiff sample`: what it prints and writes, and what it says to a mistake."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from anisodiff.cli import main
from anisodiff.io.checkpoint import alone
from anisodiff.runtime.distributed import Distributed
from anisodiff.training import Hooks, find, train
from anisodiff.training.preview import fit_prior
from tests.generation.conftest import spoil
from tests.support.children import together
from tests.training.conftest import pixels, tiny

ROOT = Path(__file__).parents[2]
CPU = ["--device", "cpu"]


def test_images_from_a_checkpoint_alone(command, runs, tmp_path):
    code, out, err = command("sample", runs("heat"), "--n", 5, "--steps", 6, *CPU)
    assert code == 0, err
    assert "prior gaussian: a Gaussian whose mean and covariance are stored in the checkpoint" in out
    assert "sampler exponential: 6 NFE per image" in out
    assert "5 of 5 images made: 30 network evaluations" in out
    assert out.splitlines()[-2:] == ["wrote samples", "wrote samples.png"]
    assert sorted(p.name for p in (tmp_path / "samples").glob("*.png")) == [f"{k:08d}.png" for k in range(5)]
    assert np.asarray(Image.open("samples/00000000.png")).shape == (8, 8)
    assert Image.open("samples.png").size == (3 * 66 + 2, 2 * 66 + 2)  # three by two tiles of 64 pixels
    code, out, _ = command("sample", runs("heat"), "--n", 5, "--steps", 6, *CPU)
    assert code == 0
    assert "nothing to do" in out


def test_everything_at_once_as_json(command, runs, data, tmp_path):
    code, out, err = command(
        "sample", runs("anisotropic"), "--out", "set.npz", "--seeds", "2-4,9", "--steps", 12, "--grid", "g.png",
        "--strip", "s.png", "--animation", "a.gif", "--prior", "simulate", "--images", data.path, "--batch", 3,
        "--compile", "--json", *CPU,
    )  # fmt: skip
    assert code == 0, err
    facts = json.loads(out)
    assert facts["written"] == ["set.npz", "g.png", "s.png", "a.gif"]
    assert (facts["count"], facts["made"], facts["nfe"], facts["prior"]) == (4, 4, 12, "simulate")
    assert facts["spent"] == 48
    assert facts["leakage"]["images"] == len(data)
    assert "the training set" in facts["prior_description"]
    assert facts["note"].startswith("leakage: ")
    assert "residual dependence on 40 images: correlation" in err
    assert "--compile has no effect on cpu" in err
    assert np.load("set.npz")["seeds"].tolist() == [2, 3, 4, 9]
    assert Image.open("a.gif").n_frames > 8
    width, height = Image.open("s.png").size
    assert (width, height) == (8 * 98 + 2, 4 * 98 + 2 + 14)  # eight times, four samples, a line of words
    strip = np.asarray(Image.open("s.png").convert("L")).astype(float)[16:112]
    assert strip[:, :100].std() > 1.5 * strip[:, -100:].std()  # noise on the left, an image on the right


def test_heldout_images_are_used_and_named(command, runs, tmp_path):
    (tmp_path / "others").mkdir()
    for number, picture in enumerate(pixels(6, seed=9)[:, 0]):
        Image.fromarray(picture).save(tmp_path / "others" / f"{number}.png")
    words = ["--prior", "heldout", "--images", "others", "--n", 3, "--steps", 4, "--out", "grid.png"]
    code, out, err = command("sample", runs("heat"), *words, *CPU)
    assert code == 0, err
    assert "prior heldout: the forward process run from 6 images of others, not compared" in out
    assert "note: samples depend on these held-out images" in out
    assert json.loads((tmp_path / "grid.png.json").read_text())["prior"] == "heldout"


def test_a_sampler_that_diverges_is_one_line_on_standard_error(command, runs):
    """Tamed steps cannot take away the noise of σ = 50."""
    words = ["sample", runs("ve"), "--sampler", "euler(norm=image)", "--steps", 6, "--n", 2, "--out", "out", *CPU]
    code, out, err = command(*words)
    assert code == 0
    assert "2 of 2 images made" in out
    assert err.startswith("anisodiff: warning: most pixels of seeds 0 to 1 lie outside [0, 1]: euler(")
    assert err.count("\n") == 1


MISTAKES = [
    (["sample", "nowhere"], "no such folder: nowhere"),
    (["sample", "cifar10-tinny"], "no such folder: cifar10-tinny; did you mean 'cifar10-tiny'?"),
    (["sample", "empty"], "empty holds no checkpoint"),
    (["sample", "begun"], "begun has no checkpoint yet: the first comes after checkpoint_every images"),
    (["sample", "headless"], "manifest.json is missing: the checkpoint is incomplete"),
    (["sample", "lacking"], "model.safetensors is missing"),
    (["sample", "flipped"], "model.safetensors is not what was written (checksum)"),
    (["sample", "newer"], "has checkpoint version 3, expected 2; this anisodiff reads version 2"),
    (["sample", "later"], "has checkpoint version 3, expected 2"),
    (["sample", "good", "--steps", "0"], "steps: got 0"),
    (["sample", "good", "--n", "0"], "--n: got 0"),
    (["sample", "good", "--n", "2", "--seeds", "0-1"], "--seeds excludes --n and --seed"),
    (["sample", "good", "--seeds", "5-2"], "runs backwards"),
    (["sample", "good", "--seeds", "all"], "--seeds: got 'all', expected whole numbers"),
    (["sample", "good", "--seed", "-1"], "a seed ≥ 0"),
    (["sample", "good", "--batch", "0"], "batch: got 0"),
    (["sample", "good", "--sampler", "eulre"], "did you mean 'euler'"),
    (["sample", "good", "--prior", "heldot", "--images", "data"], "did you mean 'heldout'"),
    (["sample", "good", "--prior", "heldout"], "give them with --images, or to anisodiff.load as images"),
    (["sample", "good", "--prior", "heldout", "--images", "data"], "outside the training set"),
    (["sample", "good", "--prior", "simulate", "--images", "color"], "the model makes 1×8×8"),
    (["sample", "good", "--prior", "simulate", "--images", "none"], "none"),
    (["sample", "good", "--out", "samples.tar"], "ending in .zip, .npz, .png"),
    (["sample", "good", "--out", "a.png", "--grid", "b.png"], "is a grid already"),
    (["sample", "good", "--grid", "g.jpg"], "--grid must end in .png"),
    (["sample", "good", "--out", "new", "--grid", "new/g.png"], "--grid new/g.png would lie among the samples"),
    (["sample", "good", "--out", "new", "--strip", "./new/../new/s.png"], "read as one: write it outside new"),
    (["sample", "good", "--images", "data"], "prior 'gaussian' is in the checkpoint and needs no image"),
    (["sample", "good", "--images", "nowhere"], "drop --images, or choose --prior simulate"),
    (["sample", "good", "--n", "2", "--seed", str(2**62 - 1)], f"seeds must lie below 2^62, got {2**62}"),
    (["sample", "good", "--strip", "a.png", "--animation", "a.png"], "same file"),
    (["sample", "good", "--animation", "a.mp4"], "--animation must end in .gif"),
    (["sample", "good", "--precision", "fp8"], "precision: got 'fp8'"),
    (["sample", "good", "--device", "tpu"], "unknown device"),
    (["sample", "good", "--out", "taken"], "files that are not samples"),
    (["sample", "reverse_drift", "--out", "new", "--sampler", "ode"], "needs the score by itself"),
    (["sample", "good", "--out", "data/meta.json/out"], "cannot write"),
]


@pytest.fixture(scope="module")
def shelf(runs, data, tmp_path_factory):
    """A folder with everything that can be wrong with a checkpoint."""
    place = tmp_path_factory.mktemp("shelf")
    saved = find(runs("heat")).path
    spoil(saved, place)
    (place / "empty").mkdir()
    (place / "begun").mkdir()
    shutil.copy(runs("heat") / "config.yaml", place / "begun")
    for name in ("headless", "flipped"):
        shutil.copytree(saved, place / name)
    (place / "headless" / "manifest.json").unlink()
    model = place / "flipped" / "model.safetensors"
    kept = model.read_bytes()
    model.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    shutil.copytree(place / "newer", place / "later" / "checkpoints" / "step-00000010")
    shutil.copytree(data.path, place / "data")
    together = tiny(process="anisotropic", learns="reverse_drift", images=4, sample_every=0, checkpoint_every=4)
    train(together, data, place / "reverse_drift", hooks=Hooks(fit_prior=fit_prior), track=())
    (place / "color").mkdir()
    np.save(place / "color" / "images.npy", np.zeros((2, 3, 8, 8), np.uint8))
    meta = json.loads((place / "data" / "meta.json").read_text())
    (place / "color" / "meta.json").write_text(json.dumps({**meta, "shape": [2, 3, 8, 8]}))
    return place


@pytest.mark.parametrize(("words", "says"), MISTAKES, ids=[" ".join(w) for w, _ in MISTAKES])
def test_mistakes_are_one_clear_line_and_leave_nothing(refused, shelf, monkeypatch, words, says):
    monkeypatch.chdir(shelf)
    before = sorted(str(p) for p in shelf.rglob("*"))
    refused(*words, *([] if "--device" in words else CPU), says=says)
    assert sorted(str(p) for p in shelf.rglob("*")) == before


def test_no_space_left_is_one_line_and_the_same_command_goes_on(command, refused, runs, tmp_path, monkeypatch):
    words = ["sample", runs("heat"), "--out", "out", "--n", 6, "--steps", 3, "--batch", 2, *CPU]
    replace, images = os.replace, []

    def full(source, target):
        if str(target).endswith(".png"):
            images.append(target)
        if len(images) == 4:
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        line = "cannot write into out: No space left on device; 3 finished images are kept there: make room"
        refused(*words, says=f"anisodiff: {line}")
    kept = {path.name: path.read_bytes() for path in (tmp_path / "out").glob("*.png")}
    assert len(kept) == 3
    code, out, _ = command(*words)
    assert code == 0
    assert "3 of 6 images made" in out
    assert {name: (tmp_path / "out" / name).read_bytes() for name in kept} == kept


def test_two_processes_write_the_same_files_as_one(runs, tmp_path, monkeypatch, capfd):
    words = ["sample", str(runs("heat")), "--seeds", "0-10", "--steps", "4", "--batch", "3", *CPU, "--json", "--out"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [])

    def work(name: str) -> None:
        sys.argv = ["anisodiff", *words, name]
        main.app(standalone_mode=False)

    together(lambda rank: work("two.zip"))
    facts = json.loads(capfd.readouterr().out)  # one process speaks
    assert (facts["processes"], facts["made"]) == (2, 11)
    work("one.zip")
    assert (tmp_path / "two.zip").read_bytes() == (tmp_path / "one.zip").read_bytes()
    assert not (tmp_path / "two.zip.parts").exists()


def test_a_folder_in_use_ends_both_of_two_processes(runs, tmp_path, monkeypatch, capfd):
    """Only rank 0 asks for the lock; the other must not wait for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # accelerate warns where it is unset
    words = ["anisodiff", "sample", str(runs("heat")), "--n", "4", "--steps", "4", *CPU, "--out", "out"]

    def work(rank: int) -> None:
        sys.argv = words
        with pytest.raises(SystemExit) as end:
            main.run()
        assert end.value.code == 2
        Distributed(torch.device("cpu")).gather(None)  # rank 0 holds the store that the other reads

    with alone(Path("out")):
        together(work)
    err = capfd.readouterr().err
    line = "out is in use by another run: wait for it, or choose another folder"
    assert sorted(err.splitlines()) == [f"anisodiff: {line}", f"anisodiff: rank 0: {line}"]
