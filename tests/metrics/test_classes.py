"""FID by class: the FID of the images of each class against the reference's, and where it does not apply."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from anisodiff.data import in_memory, prepare
from anisodiff.metrics import Context, evaluate
from anisodiff.metrics.images import Labeled, image_set
from anisodiff.metrics.samples import read_origin, read_samples
from tests.metrics.conftest import TINY, random_images
from tests.support.classes import labeled_pixels
from tests.training.conftest import tiny


@pytest.fixture
def context(tmp_path):
    return Context(cache=tmp_path / "cache")


@pytest.fixture
def reference(tmp_path):
    """Thirty images of three classes, as a prepared dataset."""
    source = in_memory(random_images(30, seed=1), np.arange(30) % 3)
    object.__setattr__(source, "classes", ("cat", "dog", "owl"))
    return prepare(source, tmp_path / "reference").dataset


def labeled(images: torch.Tensor, names: tuple[str, ...], labels: torch.Tensor):
    return replace(image_set(images), classes=Labeled(names, labels))


def test_it_is_the_fid_of_each_part(pooled, reference, context):
    """Classes are matched by their names, whatever their labels."""
    samples, labels = torch.as_tensor(random_images(24, seed=2)), torch.arange(24) % 2
    ours = labeled(samples, ("dog", "cat"), labels)
    found = evaluate(ours, reference.path, network=pooled, metrics=("class-fid",), context=context)
    whole = torch.from_numpy(np.array(reference.images))
    for name, mine, theirs in (("dog", 0, 1), ("cat", 1, 0)):
        part = whole[torch.from_numpy(reference.labels) == theirs]
        alone = evaluate(samples[labels == mine], part, network=pooled, metrics=("fid",), context=context)
        assert found[f"fid[{name}]"].value == pytest.approx(alone["fid"].value, rel=1e-9)
        assert "12 against 10; warning: 12 < 10,000 samples" in found[f"fid[{name}]"].note
    mean = (found["fid[dog]"].value + found["fid[cat]"].value) / 2
    assert found["class_fid"].value == pytest.approx(mean)
    assert "mean over 2 classes; warning: 10 < 10,000 samples in a class: noisy and biased" in found["class_fid"].note


def test_it_is_measured_only_where_it_is_named_and_applies(pooled, reference, context):
    samples = torch.as_tensor(random_images(24, seed=2))
    ours = labeled(samples, ("dog", "cat"), torch.arange(24) % 2)
    every = evaluate(ours, reference.path, network=pooled, context=context)
    assert not any(value.name.startswith(("class", "fid[")) for value in every.values)
    for mine, theirs, words in (
        (samples, reference.path, "class-fid does not apply: the classes of the samples are not known"),
        (ours, samples, "class-fid does not apply: the classes of the reference are not known"),
        (
            replace(ours, classes=Labeled(("emu",), torch.zeros(24))),
            reference.path,
            "no class has two images on both",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            evaluate(mine, theirs, network=pooled, metrics=("class-fid",), context=context)


def test_of_a_run_and_of_its_samples(run, tmp_path, monkeypatch):
    """`evaluate` knows the classes of a model's samples, and of those that were written, by their seeds."""
    from anisodiff.generation import SamplingConfig, load, write_samples
    from anisodiff.training import Hooks, train
    from anisodiff.training.preview import fit_prior

    data = prepare(in_memory(*labeled_pixels(40)), tmp_path / "data").dataset
    train(tiny(images=8, classes="auto"), data, tmp_path / "run", hooks=Hooks(fit_prior=fit_prior), track=())
    words = ("--steps", 2, "--metrics", "fid,class-fid", *TINY)
    code, out, err = run("run", "--n", 12, "--class", "all", "--guidance", 2, *words)
    assert code == 0, err
    assert "classes all 2 in turn, guidance 2" in err
    assert "classes all, guidance 2)" in out
    assert "fid[0]" in out
    config = SamplingConfig(steps=2, classes="data")
    write_samples(load(tmp_path / "run", "cpu"), range(12), tmp_path / "made.zip", config)
    assert read_origin(tmp_path / "made.zip").generation.classes == "data, guidance 1"
    known = read_samples(tmp_path / "made.zip").images.classes
    assert known.names == ("0", "1")
    code, out, err = run("made.zip", "--reference", "data", *words[2:])
    assert code == 0, err
    assert "fid[1]" in out
    code, _, err = run("made.zip", "--reference", "data", "--class", "cat", *words[2:])
    assert code == 2
    assert "--class belongs to a model" in err
