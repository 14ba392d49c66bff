"""A run that learns classes: its labels, their dropout, resuming, what it refuses, and that it learns them."""

import json

import numpy as np
import pytest
import torch

import anisodiff
from anisodiff.data import Loader, open_source, prepare
from anisodiff.noise import KeyedNoise, combine
from anisodiff.priors import GaussianPrior
from anisodiff.runtime.distributed import Distributed
from anisodiff.training import Hooks, TrainConfig, read, train
from anisodiff.training.model import Plan, assemble, calibration_images
from anisodiff.training.preview import fit_prior, sample_grid
from anisodiff.training.setup import with_classes
from anisodiff.training.step import Stepper
from tests.support.classes import class_folders, labeled_pixels
from tests.training.conftest import SMALL, assert_equal, everything, tiny

NAMES = ("bright", "dark")


@pytest.fixture(scope="module")
def labeled(tmp_path_factory):
    """Pictures of two folders, prepared with labels."""
    folder = tmp_path_factory.mktemp("labeled")
    source = open_source(class_folders(folder / "photos", 40), labels=True)
    return prepare(source, folder / "data", size=8, channels=1).dataset


def stepper(config, dataset) -> Stepper:
    config = with_classes(config, dataset)
    plan, distributed = Plan.of(config), Distributed(torch.device("cpu"))
    statistics = plan.statistics(calibration_images(config, dataset, torch.device("cpu")))
    network, execution, model = assemble(plan, statistics, distributed)
    return Stepper(plan, model, network, execution, distributed)


def test_batches_carry_the_labels_of_their_images(labeled):
    """Bright pictures are above one half."""
    loader = Loader(labeled, batch=16, seed=3)
    for k in (0, 7):
        images, index = loader.batch(k)
        labels = loader.labels(index)
        assert torch.equal(labels == NAMES.index("bright"), images.mean((1, 2, 3)) > 0.5)
        assert torch.equal(labels, loader.labels(loader.batch(k)[1]))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_labels_are_dropped_at_their_rate_by_key(labeled, share):
    """A function of seed, step and place: the same again, another for another step, independent of noise and cut."""
    made = stepper(tiny(classes="auto", label_dropout=share, batch=400), labeled)
    images, labels = torch.rand(400, 1, 8, 8), torch.arange(400) % 2
    told = [made.prepare(k, images, labels).parts[0][-1] for k in (0, 1, 0)]
    assert torch.equal(told[0], told[2])
    dropped = torch.stack(told[:2]) == 2
    assert abs(float(dropped.double().mean()) - share) <= 4 * (share * (1 - share) / 800) ** 0.5
    assert torch.equal(told[0][~dropped[0]], labels[~dropped[0]])
    assert share == 0 or not torch.equal(dropped[0], dropped[1])
    cut = stepper(tiny(classes="auto", label_dropout=share, batch=400, accumulation=4), labeled)
    assert torch.equal(torch.cat([part[-1] for part in cut.prepare(0, images, labels).parts]), told[0])


def test_a_run_without_classes_draws_what_it_drew_before(labeled):
    """Labels have a stream of keys of their own."""
    plain, told = stepper(tiny(), labeled).draw(3), stepper(tiny(classes="auto"), labeled).draw(3)
    assert plain.label_dropped is None
    for name in ("t", "noise", "dropout", "bins"):
        assert torch.equal(getattr(plain, name), getattr(told, name))
    assert torch.equal(plain.noise, combine(combine(0, 3, torch.arange(4)), 1))


@pytest.mark.parametrize("process", [{"preset": "anisotropic", "step": "exponential(windows=2)"}, "flow-matching"])
def test_resuming_with_labels_is_bitwise_equal(labeled, tmp_path, process):
    config = tiny(process=process, classes="auto", images=16)
    train(config, labeled, tmp_path / "calm", track=())
    train(tiny(process=process, classes="auto", images=8), labeled, tmp_path / "cut", track=())
    train(config, labeled, tmp_path / "cut", track=())
    assert_equal(tmp_path / "calm", tmp_path / "cut")
    assert any("classes.weight" in name and value.any() for name, value in everything(tmp_path / "cut").items())
    saved = json.loads(next((tmp_path / "cut" / "checkpoints").glob("*/config.json")).read_text())
    assert saved["config"]["classes"] == list(NAMES)
    assert saved["network"]["classes"] == 2
    assert saved["data"]["labels"] == labeled.labels_fingerprint
    assert saved["data"]["class_counts"] == [20, 20]


def test_other_labels_are_another_run(labeled, tmp_path):
    train(tiny(classes="auto", images=8), labeled, tmp_path / "run", track=())
    swapped = labeled.__class__(
        path=labeled.path, images=labeled.images, labels=1 - labeled.labels, fingerprint=labeled.fingerprint,
        meta={**labeled.meta, "labels_fingerprint": None},
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"holds another run: data\.labels was"):
        train(tiny(classes="auto"), swapped, tmp_path / "run", track=())
    with pytest.raises(ValueError, match=r"holds another run: .*classes"):
        train(tiny(), labeled, tmp_path / "run", track=())


def test_a_run_begins_from_weights_without_classes(labeled, tmp_path):
    train(tiny(images=8), labeled, tmp_path / "plain", track=())
    train(tiny(images=0, classes="auto"), labeled, tmp_path / "told", start=tmp_path / "plain", track=())
    old, new = (everything(tmp_path / name) for name in ("plain", "told"))
    assert not new["model:network.classes.weight"].any()
    assert all(torch.equal(old[name], new[name]) for name in old if name.startswith("model:network."))


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Two classes, dark and bright, learned in 160 steps."""
    images, labels = labeled_pixels(64)
    folder = tmp_path_factory.mktemp("learned")
    return anisodiff.train(
        images, folder / "run", labels=labels, progress=False, device="cpu", process="flow-matching",
        classes="auto", size=8,
        network={"name": "small", "nf": 8, "multipliers": [1, 1], "blocks": 1, "dropout": 0.0}, batch=16,
        images=2560, lr=5e-3, warm_up=160, calibration=64, ema=["constant(0.9)"], sample_every=0,
    )  # fmt: skip


def test_samples_follow_their_class(learned):
    """Each class has its brightness, and guidance moves them further apart."""
    assert learned.classes == ("0", "1")

    def means(**how):
        images = learned.sample(24, steps=16, classes="all", progress=False, **how)
        return images[0::2].mean(), images[1::2].mean()

    dark, bright = means()
    assert dark < 0.4 < 0.6 < bright
    darker, brighter = means(guidance=3.0)
    assert darker < dark
    assert brighter > bright
    null = learned.sample(24, steps=16, classes="none", progress=False)
    assert float(null.mean((1, 2, 3)).std()) > 0.1  # of both classes


def test_a_grid_shows_a_class_a_row(learned):
    stored = read(next((learned._own[0].parent / "checkpoints").glob("step-*")))
    start = GaussianPrior(**stored.tensors("prior")).draw(16, KeyedNoise(torch.arange(16)))
    t_min = learned.plan.config.t_min
    grid = sample_grid(learned.model, start, t_min=t_min, process=learned.process, nfe=8, classes=2)
    rows = grid.reshape(4, 4, -1).mean((1, 2))
    assert rows[[0, 2]].max() < rows[[1, 3]].min()


def test_the_config_in_words():
    assert TrainConfig(classes="none").classes == ()
    assert TrainConfig(classes=["cat", "dog"]).to_dict()["classes"] == ["cat", "dog"]
    for wrong, words in (
        ({"classes": "cat"}, "classes: got 'cat' alone, expected auto, or the names"),
        ({"classes": ["cat", "cat"]}, "classes: 'cat' is there twice"),
        ({"classes": ["cat", "\x1b[2J"]}, "expected 1 to 255 printable characters; rename it"),
        ({"label_dropout": 1.0}, "label_dropout: got 1, expected a number from 0 to 0.9"),
    ):
        with pytest.raises(ValueError, match=words):
            TrainConfig(**wrong)
    with pytest.raises(ValueError, match=r"network\.classes: it follows from the data"):
        Plan.of(tiny(network={"name": "small", "classes": 3}))
    with pytest.raises(ValueError, match="unknown key 'num_classes'; did you mean 'classes'"):
        tiny().changed({"num_classes": 10})


def test_the_command_says_what_it_does_with_subfolders(train_command, tmp_path):
    class_folders(tmp_path / "photos")
    told = train_command("train", "--data", "photos", "-o", "plain", "--images", 4, settings=SMALL)
    assert told.exit_code == 0, told.output
    assert "unconditional (--classes learns the 2 classes)" in told.output
    told = train_command("train", "--data", "photos", "--classes", "-o", "run", "--images", 8, settings=SMALL)
    assert told.exit_code == 0, told.output
    assert "8 images seen, 2 classes;" in told.output
    assert anisodiff.load("run", "cpu").classes == NAMES
    again = train_command("train", "-o", "run", "--images", 12)
    assert again.exit_code == 0, again.output


def test_what_the_command_refuses(train_command, tmp_path):
    class_folders(tmp_path / "photos")
    (tmp_path / "photos" / "stray.png").write_bytes((tmp_path / "photos" / "dark" / "00.png").read_bytes())
    told = train_command("train", "--data", "photos", "--classes", "-o", "run", settings=SMALL)
    assert isinstance(told.exception, ValueError)
    assert "stray.png lies in no class folder; expected CLASS/NAME: move it" in str(told.exception)
    (tmp_path / "photos" / "stray.png").unlink()
    (tmp_path / "photos" / "dark").rename(tmp_path / "photos" / "\x1b[31mred")
    told = train_command("train", "--data", "photos", "--classes", "-o", "red", settings=SMALL)
    assert "printable characters; rename it" in str(told.exception)
    assert not (tmp_path / "red").exists()  # before the images are prepared
    np.save(tmp_path / "raw.npy", labeled_pixels()[0])
    told = train_command("train", "--data", "raw.npy", "--classes", "-o", "run", settings=SMALL)
    assert isinstance(told.exception, ValueError)
    assert "has no labels; expected two subfolders" in str(told.exception)
    with pytest.raises(ValueError, match="labels: they belong to images in memory, got str"):
        anisodiff.train("photos", tmp_path / "r", labels=np.zeros(3, int), progress=False)


def test_hooks_fit(labeled, tmp_path):
    train(tiny(classes=NAMES, images=4), labeled, tmp_path / "run", hooks=Hooks(fit_prior=fit_prior), track=())
    with pytest.raises(ValueError, match=r"classes: the run has 2 .cat, ….*the data 2 .bright, dark"):
        train(tiny(classes=["cat", "dog"]), labeled, tmp_path / "other", track=())


def test_runs_of_a_comparison_learn_the_classes_of_its_data(labeled):
    from anisodiff.experiments import configs, parse_run
    from anisodiff.training.picking import Machine

    made = configs([parse_run("ve"), parse_run("flow-matching")], labeled, {"classes": "auto"}, Machine(kind="cpu"))
    assert [config.classes for config in made] == [NAMES, NAMES]
