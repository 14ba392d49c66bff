"""`anisodiff.train`: from images of any kind to a generator, in one call."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import anisodiff
from anisodiff.data import in_memory, open_dataset
from anisodiff.generation import Generator, Images
from anisodiff.training import TrainConfig, read_log
from anisodiff.training.run_folder import RunDescription, read_run, write_run
from tests.training.conftest import NETWORK, assert_equal, pixels, tiny

FEW = {
    "network": NETWORK, "batch": 4, "images": 16, "warm_up": 4, "calibration": 16, "log_every": 4, "sample_every": 0,
    "ema": ["constant(0.9)"],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Twenty pictures of 8×8, in gray."""
    place = tmp_path / "photos"
    place.mkdir()
    for number, picture in enumerate(pixels(20)):
        Image.fromarray(picture[0]).save(place / f"{number:02d}.png")
    return place


def test_a_folder_becomes_a_generator(folder, tmp_path, capsys):
    generator = anisodiff.train(
        folder, tmp_path / "run", process="ve", size=8, device="cpu", **{**FEW, "sample_every": 16}
    )
    assert isinstance(generator, Generator)
    assert generator.outcome.finished
    assert generator.outcome.images == 16
    assert (generator.channels, generator.size) == (1, (8, 8))
    assert generator.plan.config.process["preset"] == "ve"
    assert isinstance(generator.sample(2, steps=4), Images)
    said, notes = capsys.readouterr()
    assert said == ""
    assert "picked for 20 images on cpu: 8×8" in notes
    assert "20 images: the model will memorize them" in notes
    assert "images/s" not in notes  # on a terminal alone
    assert len(read_log(tmp_path / "run")) == 4
    assert [path.name for path in (tmp_path / "run" / "samples").iterdir()] == ["step-00000004.png"]
    described = read_run(tmp_path / "run")
    assert described.config == generator.plan.config
    assert len(open_dataset(described.data)) == 20
    assert anisodiff.load(tmp_path / "run", "cpu").outcome is None


def test_tensors_arrays_files_and_datasets_are_one(folder, data, tmp_path):
    """The same pixels give the same weights, whatever they come as."""
    settings = {"process": "ve", "device": "cpu", **FEW}
    raw = data.path.parent / "raw.npy"
    floats = torch.from_numpy(pixels()).float() / 255
    kinds = {
        "prepared": data, "its path": str(data.path), "a file": raw, "bytes": pixels(),
        "torch bytes": torch.from_numpy(pixels()), "channels last": np.moveaxis(pixels(), 1, -1),
        "floats": floats, "float64": floats.double().numpy(),
    }  # fmt: skip
    for name, images in kinds.items():
        anisodiff.train(images, tmp_path / name, **settings)
        assert_equal(tmp_path / name, tmp_path / "prepared")
    assert in_memory(floats.bfloat16()).shape == (1, 8, 8)


def test_a_stopped_run_continues_to_the_same_weights(data, tmp_path):
    seen, settings = [], {"process": "ve", "device": "cpu", **FEW}

    def watch(record) -> None:
        seen.append(record["step"])

    whole = anisodiff.train(data, tmp_path / "whole", on_log=watch, **settings)
    assert seen == [1, 2, 3, 4]
    steps = iter([False, True])
    part = anisodiff.train(data, tmp_path / "part", stop=lambda: next(steps), **settings)
    assert (part.outcome.finished, part.outcome.step) == (False, 2)
    rest = anisodiff.train(output=tmp_path / "part", device="cpu")  # the folder knows its data and settings
    assert rest.outcome.finished
    assert_equal(tmp_path / "part", tmp_path / "whole")
    torch.testing.assert_close(rest.sample(2, steps=4), whole.sample(2, steps=4), rtol=0, atol=0)
    longer = anisodiff.train(data, tmp_path / "part", images=24, device="cpu")
    assert longer.outcome.images == 24
    with pytest.raises(ValueError, match="begun with other settings: lr"):
        anisodiff.train(data, tmp_path / "part", lr=0.5, device="cpu")


def test_a_run_that_ended_while_it_prepared_its_images_continues(folder, tmp_path):
    """Its description names the images as they were given."""
    write_run(tmp_path / "run", RunDescription(config=tiny(images=4), data=folder))
    assert anisodiff.train(output=tmp_path / "run", device="cpu").outcome.finished
    assert read_run(tmp_path / "run").data == tmp_path / "run" / "data"


def test_a_run_that_has_not_begun_takes_keys(folder, tmp_path):
    """A network given by its name keeps its arguments, and a process is one key of many."""
    write_run(tmp_path / "run", RunDescription(config=tiny(images=4), data=folder))
    made = anisodiff.train(output=tmp_path / "run", network="small", process="ve", device="cpu").plan.config
    assert made == tiny(images=4, process="ve")
    write_run(tmp_path / "none", RunDescription(config=tiny()))
    with pytest.raises(ValueError, match="none names no data: give the images"):
        anisodiff.train(output=tmp_path / "none", device="cpu")
    write_run(tmp_path / "gone", RunDescription(config=tiny(), data=tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"the images of .*gone are not at .*nowhere: give the images"):
        anisodiff.train(output=tmp_path / "gone", device="cpu")


def test_a_recipe_takes_images_of_ones_own(folder, tmp_path):
    """A command line wants the set the recipe is made for; an argument may be anything of the right size."""
    config = tiny(images=4, dataset="cifar10")
    assert anisodiff.train(folder, tmp_path / "run", config=config, device="cpu").plan.config == config
    with pytest.raises(ValueError, match="cannot read nowhere"):
        anisodiff.train("nowhere", tmp_path / "other", config=config, device="cpu")


def test_grids_are_seen(data, tmp_path):
    seen, settings = [], {**FEW, "sample_every": 8, "process": "ve"}
    anisodiff.train(data, tmp_path / "run", on_grid=lambda *grid: seen.append(grid), device="cpu", **settings)
    assert [step for _, step in seen] == [2, 4]
    assert all(type(images) is Images and images.shape[1:] == (1, 8, 8) for images, _ in seen)
    seen[0][0].save_grid(tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "run/samples/step-00000002.png").read_bytes()


def test_a_config_is_taken_as_it_is_and_keys_change_it(data, tmp_path):
    generator = anisodiff.train(data, tmp_path / "one", config=tiny(), device="cpu")
    assert generator.plan.config == tiny()
    changed = anisodiff.train(data, tmp_path / "two", config=tiny(), images=4, lr=1e-4, seed=3, device="cpu")
    assert changed.plan.config == tiny(images=4, lr=1e-4, seed=3)
    with pytest.raises(ValueError, match="the data are 1×8×8"):
        anisodiff.train(data, tmp_path / "three", config=TrainConfig(), device="cpu")
    assert not (tmp_path / "three").exists()


def test_a_process_with_its_keys(data, tmp_path):
    process = {"preset": "ve", "sigma_max": 30}
    generator = anisodiff.train(data, tmp_path / "run", process=process, device="cpu", **{**FEW, "images": 4})
    assert generator.process.identity() == anisodiff.process("ve", 8, sigma_max=30).identity()


@pytest.mark.parametrize(
    ("images", "settings", "says"),
    [
        (torch.rand(4, 3, 8, 8) * 255, {}, r"float values in .* expected \[0, 1\]"),
        (torch.full((4, 3, 8, 8), float("nan")), {}, "nan"),
        (torch.zeros(4, 3, 8, 8, dtype=torch.int64), {}, "int64: expected uint8, or float"),
        (torch.rand(8, 8), {}, r"expected \[N,H,W,C\], \[N,C,H,W\]"),
        (torch.rand(0, 3, 8, 8), {}, "one at least"),
        (torch.rand(4, 3, 8, 8), {"learning_rate": 1}, "unknown key 'learning_rate'"),
        (torch.rand(4, 3, 8, 8), {"process": "anisotopic"}, "did you mean 'anisotropic"),
        (torch.rand(4, 3, 8, 8), {"process": 3}, "process: got 3, expected a name"),
        (torch.rand(4, 3, 8, 8), {"config": {"lr": 1}}, "config: got dict, expected a TrainConfig"),
        (3, {}, "data: got int, expected"),
        (torch.rand(4, 3, 8, 8), {"holdout": "x"}, "^holdout: got 'x', expected a share such as 10%"),
        ("nowhere", {}, "nowhere"),
        (None, {}, "run holds no run to continue: give images as data, or the folder of a run as output$"),
    ],
)
def test_mistakes_are_one_line(images, settings, says, tmp_path):
    with pytest.raises(ValueError, match=says) as caught:
        anisodiff.train(images, tmp_path / "run", device="cpu", **settings)
    assert "\n" not in str(caught.value)


def test_progress_is_shown_on_a_terminal(data, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    anisodiff.train(data, tmp_path / "run", device="cpu", process="ve", **FEW)
    shown = capsys.readouterr().err
    assert "training" in shown
    assert "picked for 40 images" in shown
    anisodiff.train(data, tmp_path / "silent", device="cpu", progress=False, process="ve", **FEW)
    assert capsys.readouterr() == ("", "")
    assert json.loads((tmp_path / "silent/log.jsonl").read_text().splitlines()[0])["step"] == 1


def test_without_images_it_says_which_run_goes_on(data, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    anisodiff.train(data, device="cpu", progress=False, process="ve", **FEW)
    anisodiff.train(device="cpu")
    said, notes = capsys.readouterr()
    assert said == ""
    assert notes.splitlines()[0] == "continuing the run in run"
    anisodiff.train(device="cpu", progress=False)
    assert capsys.readouterr() == ("", "")


def test_images_are_held_out_as_by_the_command(tmp_path):
    images = pixels(40)
    anisodiff.train(images, tmp_path / "run", holdout="10%", device="cpu", **FEW)
    run = read_run(tmp_path / "run")
    assert run.heldout == tmp_path / "run" / "heldout"
    assert (len(open_dataset(run.data)), len(open_dataset(run.heldout))) == (36, 4)
    longer = anisodiff.train(images, tmp_path / "run", images=24, device="cpu")  # keeps what it kept
    assert longer.outcome.images == 24
    assert len(open_dataset(read_run(tmp_path / "run").data)) == 36
