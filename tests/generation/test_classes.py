"""Samples by class: which class a seed has, what is written, restarts, guidance, editing, and refusals."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import anisodiff
from anisodiff.data import in_memory, open_source, prepare
from anisodiff.generation import Guidance, SamplingConfig, write_samples
from anisodiff.generation.classes import ClassChoice, choose_classes
from anisodiff.generation.protocol import read_protocol
from anisodiff.io.grids import enlarged, to_pixels
from anisodiff.training import Hooks, train
from anisodiff.training.preview import fit_prior
from tests.support.classes import labeled_pixels
from tests.training.conftest import tiny

CPU = ["--device", "cpu"]
NAMES = ("t-shirt/top", "cat", "all")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of three classes with odd names, of 10, 20 and 10 images, weights moved so that classes differ."""
    folder = tmp_path_factory.mktemp("told")
    source = in_memory(labeled_pixels()[0], np.arange(40) % 4 % 3)
    object.__setattr__(source, "classes", NAMES)
    data = prepare(source, folder / "data", size=8, channels=1).dataset
    for name, keys in (("run", {}), ("never", {"label_dropout": 0.0}), ("plain", {"classes": ()})):
        config = tiny(**{"classes": "auto", "lr": 0.05, "process": "ve", **keys})
        train(config, data, folder / name, hooks=Hooks(fit_prior=fit_prior), track=())
    return folder


@pytest.fixture(scope="module")
def generator(run):
    return anisodiff.load(run / "run", "cpu")


def test_the_class_of_a_seed():
    """In turn, or as often as in the data; a function of the seed alone."""
    seeds = range(40)
    assert choose_classes("cat", NAMES, (), "data").labels(seeds).unique().tolist() == [1]
    turn = choose_classes(["cat", 0], NAMES, (), "data")
    assert turn.labels([3, 4]).tolist() == [0, 1]
    assert turn.text == "cat,t-shirt/top"
    assert choose_classes("all", NAMES, (), "data").labels(seeds).unique().tolist() == [
        2
    ]  # there is a class of that name
    assert choose_classes("all", ("a", "b"), (), "data").labels(seeds).tolist() == [0, 1] * 20
    assert choose_classes("none", NAMES, (), "data") is None
    drawn = choose_classes(None, NAMES, (10, 20, 10), "data")
    many = Counter(drawn.labels(range(8000)).tolist())
    for label, share in enumerate((0.25, 0.5, 0.25)):
        assert abs(many[label] / 8000 - share) < 4 * (share * (1 - share) / 8000) ** 0.5
    assert drawn.labels([7, 3]).tolist() == [drawn.labels([7])[0], drawn.labels([3])[0]]
    with pytest.raises(ValueError, match="counts images of 2 classes, expected 3; name a class, or all"):
        choose_classes("data", NAMES, (10, 20), "data")
    for choice in (turn, drawn):
        assert ClassChoice.read(json.loads(json.dumps(choice.as_dict()))) == choice
    for damaged in (
        {}, {**turn.as_dict(), "class_turn": [9]}, {**drawn.as_dict(), "class_counts": [1]},
        {**turn.as_dict(), "classes": "cat\x1b[2J"}, {**turn.as_dict(), "class_names": 3},
    ):  # fmt: skip
        assert ClassChoice.read(damaged) is None


def test_samples_depend_on_class_and_guidance_alone(generator):
    """The same seed again; a sample is that of its class whatever its neighbors are; w = 1 is no guidance."""
    how = {"steps": 8, "progress": False}
    cats, mixed = generator.sample(6, classes="cat", **how), generator.sample(6, classes=[1, 0], **how)
    torch.testing.assert_close(cats[0::2], mixed[0::2], rtol=0, atol=1e-5)
    assert not torch.allclose(cats[1], mixed[1], atol=1e-3)
    assert torch.equal(cats, generator.sample(6, classes="cat", guidance=1.0, **how))
    strong = generator.sample(6, classes="cat", guidance=2.0, **how)
    assert not torch.allclose(cats, strong, atol=1e-3)
    assert torch.equal(
        generator.sample(6, classes="cat", guidance=0.0, **how), generator.sample(6, classes="none", **how)
    )
    part = generator.sample(6, classes="cat", guidance=Guidance(weight=2.0, interval=(0.5, 2.0)), **how)
    assert not torch.allclose(part, strong, atol=1e-4)
    default = generator.sample(6, **how)
    assert torch.equal(default, generator.sample(6, classes="data", **how))


def test_the_reverse_process_counts_what_is_spent(generator):
    for guidance in (1.0, 2.0, Guidance(weight=2.0, interval=(0.5, 2.0))):
        reverse = generator.reverse_process(steps=17, sampler="ode", classes="cat", guidance=guidance)
        spent = generator.sample_with(reverse, range(3), generator.prior()).nfe
        assert reverse.nfe == spent
    assert generator.reverse_process(steps=17, sampler="ode", classes="cat", guidance=2.0).nfe == 34


def test_jobs_name_their_classes_and_restart(generator, tmp_path):
    config = SamplingConfig(steps=4, classes="cat,t-shirt/top", guidance=Guidance(weight=1.5), batch=2)
    write_samples(generator, range(5), tmp_path / "set", config)
    names = sorted(path.name for path in (tmp_path / "set").glob("*.png"))
    assert names[:2] == ["00000000-cat.png", "00000001-t-shirt-top.png"]
    first = (tmp_path / "set" / names[1]).read_bytes()
    (tmp_path / "set" / names[1]).unlink()
    assert write_samples(generator, range(6), tmp_path / "set", config).made == 2
    assert (tmp_path / "set" / names[1]).read_bytes() == first
    protocol = read_protocol(tmp_path / "set")
    assert (protocol["classes"], protocol["guidance"], protocol["nfe"]) == ("cat,t-shirt/top", 1.5, 8)
    for other, words in (
        (
            SamplingConfig(steps=4, classes="cat", guidance=Guidance(weight=1.5), batch=2),
            "classes was [^;]*, now 'cat'",
        ),
        (SamplingConfig(steps=4, classes="cat,t-shirt/top", batch=2), "guidance was 1.5, now 1.0"),
        (replace(config, steps=5), "steps was 4, now 5"),
        (replace(config, steps=8, guidance=1.0), "steps was 4, now 8; guidance was 1.5, now 1.0"),
    ):
        with pytest.raises(ValueError, match=f"holds other samples: {words}; choose"):
            write_samples(generator, range(6), tmp_path / "set", other)
    write_samples(generator, range(5), tmp_path / "set.npz", config)
    held = np.load(tmp_path / "set.npz")
    assert held["labels"].tolist() == [1, 0, 1, 0, 1]
    assert open_source(tmp_path / "set.npz").labels.tolist() == [1, 0, 1, 0, 1]


def test_a_grid_has_the_classes_one_below_the_other(generator, tmp_path):
    """Seed s has class s % 3: the first has 3 of 7 samples, the others 2."""
    config, seeds, gap = SamplingConfig(steps=4, classes=[0, 1, 2]), range(7), 2
    write_samples(generator, seeds, tmp_path / "sheet.png", config)
    sheet = np.array(Image.open(tmp_path / "sheet.png"))
    tiles = [enlarged(pixels) for pixels in to_pixels(generator.sample_seeds(seeds, config))]
    side = len(tiles[0])
    left = sheet.shape[1] - (3 * (side + gap) + gap)
    assert sheet.shape[0] == 3 * (side + 2 * gap)
    for row, members in enumerate(([0, 3, 6], [1, 4], [2, 5])):
        top = row * (side + 2 * gap)
        assert (sheet[top : top + side, :left] < 128).any()  # its name
        for column, seed in enumerate(members):
            x = left + gap + column * (side + gap)
            assert np.abs(sheet[top + gap : top + gap + side, x : x + side, :1].astype(int) - tiles[seed]).max() <= 1
    one = SamplingConfig(steps=4, classes="cat")
    write_samples(generator, range(4), tmp_path / "one.png", one)
    assert Image.open(tmp_path / "one.png").size == (2 * (side + gap) + gap,) * 2  # one class is not named


def test_edits_take_a_class(generator):
    images = torch.full((2, 1, 8, 8), 0.5)
    how = {"seeds": [1, 2], "strength": 0.6, "steps": 8}
    plain, cat = anisodiff.edit(generator, images, **how), anisodiff.edit(generator, images, classes="cat", **how)
    assert torch.equal(plain, anisodiff.edit(generator, images, classes="none", **how))
    assert not torch.allclose(plain, cat, atol=1e-5)
    mask = torch.zeros(8, 8)
    mask[:, :4] = 1
    held = anisodiff.edit(generator, images, classes="cat", guidance=2.0, mask=mask, **how)
    assert torch.equal(held[..., 4:], images[..., 4:])


def test_the_commands(command, run, tmp_path):
    words = ["--n", 4, "--steps", 4, "--out", "cats", "--class", "cat", "--guidance", 2, *CPU]
    code, out, err = command("sample", run / "run", *words, "--guidance-interval", "0,1e6")
    assert code == 0, err
    assert "8 NFE per image" in out
    assert "classes: cat, guidance 2 for σ/σ_data in (0, 1e+06]" in out
    assert len(list((tmp_path / "cats").glob("*-cat.png"))) == 4
    code, out, err = command("sample", run / "run", "--n", 2, "--steps", 4, "--out", "any", *CPU)
    assert "classes: as often as in the training images, guidance 1; choose with --class" in out
    code, out, err = command(
        "edit", run / "run", "cats/00000000-cat.png", "--class", "cat", "--guidance", 2, "--steps", 4, *CPU
    )
    assert code == 0, err
    assert json.loads((tmp_path / "edits" / "edit.json").read_text())["classes"] == "cat"


@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        (
            "plain",
            ["--class", "cat"],
            "classes: got 'cat', but the model has learned no classes; leave it out, or train with classes",
        ),
        ("plain", ["--guidance", 2], "guidance: got 2, but this model has no classes"),
        (
            "run",
            ["--class", "cta"],
            "unknown class 'cta'; did you mean 'cat'? valid: t-shirt/top, cat, all, or all, data or none",
        ),
        ("run", ["--class", "7"], "unknown class '7'; valid: t-shirt/top, cat, all, or all, data or none"),
        ("run", ["--class", "none", "--guidance", 2], "it needs a class, and 'none' is unconditional"),
        ("run", ["--class", "cat", "--guidance", -1], "guidance: got -1, expected a number from 0 to 100"),
        ("run", ["--guidance-interval", "5"], "--guidance-interval: got '5', expected two numbers like 0.2,5"),
        ("run", ["--guidance-interval", "5,1"], "expected two noise levels σ/σ_data, low < high"),
        ("never", ["--class", "none"], "no class: the model was trained with label_dropout=0"),
        ("never", ["--class", "cat", "--guidance", 2], "guidance: the model was trained with label_dropout=0"),
    ],
)
def test_refusals_in_one_line(refused, run, tmp_path, model, words, said):
    refused("sample", run / model, "--n", 2, "--steps", 4, *words, *CPU, says=said)
    assert not (tmp_path / "samples").exists()
