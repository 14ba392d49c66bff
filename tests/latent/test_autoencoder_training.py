"""Training an autoencoder: it learns, it continues bit by bit, and diffusers reads what it leaves."""

import json

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKL
from PIL import Image

from anisodiff.data import open_dataset
from anisodiff.io.checkpoint import find
from anisodiff.io.tensor_files import sha256
from anisodiff.latent.autoencoder import describe, open_autoencoder
from anisodiff.noise import KeyedNoise
from anisodiff.training.autoencoder import AutoencoderConfig, train_autoencoder
from tests.latent.conftest import SIZE

CPU = torch.device("cpu")


def tiny(**changes):
    keys = {"width": 8, "factor": 2, "channels": 3, "batch": 8, "warm_up": 16, "images": 64, "lr": 2e-3}
    return AutoencoderConfig(**{**keys, "checkpoint_every": 24, **changes})


def test_it_learns_and_diffusers_reads_it(dataset, tmp_path):
    images = dataset.first(40)
    errors = []
    for count in (8, 1200):
        train_autoencoder(dataset, tmp_path / str(count), tiny(images=count, ema=0.9), device=CPU)
        coder = open_autoencoder(tmp_path / str(count))
        mean, std = coder.encode(images)
        assert std is not None
        errors.append(float((coder.decode(mean) - images).square().mean()))
    assert errors[1] < 0.6 * errors[0]
    assert errors[1] < 0.6 * float(images.var())  # it has seen what is in the images, not their mean alone
    theirs = AutoencoderKL.from_pretrained(tmp_path / "1200").eval()
    with torch.no_grad():
        torch.testing.assert_close(theirs.encode(2 * images - 1).latent_dist.mean, mean, rtol=0, atol=1e-5)
    assert describe(tmp_path / "1200", online=False).as_keys()["factor"] == 2


def test_continuing_is_bitwise_equal_to_never_having_stopped(dataset, tmp_path):
    train_autoencoder(dataset, tmp_path / "whole", tiny(), device=CPU)
    stops = iter([False, False, False, True])
    outcome = train_autoencoder(dataset, tmp_path / "parts", tiny(), device=CPU, stop=lambda: next(stops))
    assert (outcome.step, outcome.finished) == (4, False)
    said = []
    assert train_autoencoder(dataset, tmp_path / "parts", tiny(), device=CPU, say=said.append).finished
    assert said == ["continuing from step-00000004: 32 images seen"]
    for name in ("model", "state/weights", "state/optimizer"):
        a, b = (find(tmp_path / part / "checkpoints" / "step-00000008").tensors(name) for part in ("whole", "parts"))
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)
    weights = [(tmp_path / part / "diffusion_pytorch_model.safetensors").read_bytes() for part in ("whole", "parts")]
    assert weights[0] == weights[1]


def test_what_a_killed_run_left_does_not_stop_the_next(dataset, tmp_path):
    (tmp_path / "run").mkdir()
    for name in (".config.json", ".diffusion_pytorch_model.safetensors"):  # killed as it wrote them
        (tmp_path / "run" / name).write_bytes(b"{")
    assert train_autoencoder(dataset, tmp_path / "run", tiny(images=8), device=CPU).finished
    assert not list((tmp_path / "run").glob(".*on*"))


def test_another_autoencoder_in_the_folder_is_refused(dataset, tmp_path):
    train_autoencoder(dataset, tmp_path / "run", tiny(images=8), device=CPU)
    with pytest.raises(ValueError, match="holds an autoencoder of another beta; choose another folder"):
        train_autoencoder(dataset, tmp_path / "run", tiny(images=8, beta=1.0), device=CPU)


def test_a_checkpoint_without_its_settings_is_refused_in_one_line(dataset, tmp_path):
    train_autoencoder(dataset, tmp_path / "run", tiny(images=8), device=CPU)
    step = tmp_path / "run" / "checkpoints" / "step-00000001"
    for settings, said in ([1], "config.json is damaged: autoencoder: "), ({}, "holds an autoencoder of another "):
        meta = {**json.loads((step / "config.json").read_text()), "config": {"autoencoder": settings}}
        manifest = json.loads((step / "manifest.json").read_text())
        (step / "config.json").write_text(json.dumps(meta))
        manifest["files"]["config.json"] = sha256(step / "config.json")
        (step / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(ValueError, match=said):
            train_autoencoder(dataset, tmp_path / "run", tiny(images=8), device=CPU)


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_weights(dataset, tmp_path, monkeypatch):
    train_autoencoder(dataset, tmp_path / "run", tiny(images=8), device=CPU)
    before = (tmp_path / "run" / "diffusion_pytorch_model.safetensors").read_bytes()
    monkeypatch.setattr(KeyedNoise, "normal", lambda self, like: torch.full_like(like, torch.nan))
    with pytest.raises(ValueError, match="the loss is not finite at step 1"):
        train_autoencoder(dataset, tmp_path / "run", tiny(), device=CPU)
    assert (tmp_path / "run" / "diffusion_pytorch_model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"factor": 3}, "factor: got 3, expected 2, 4, 8 or 16"),
        ({"width": 12}, "width: got 12, expected a multiple of 8"),
        ({"lr": "fast"}, "lr: expected a number, got 'fast'"),
        ({"lr": 2}, "lr: got 2, expected a number from 0 to 1"),
        ({"batch": 2.5}, "batch: got 2.5, expected a whole number"),
        ({"batch": 0}, "batch: got 0, expected a whole number from 1 to 4096"),
    ],
)
def test_configs_that_cannot_be(changes, says):
    with pytest.raises(ValueError, match=says):
        tiny(**changes)


def test_sides_that_the_factor_does_not_divide(dataset, tmp_path):
    with pytest.raises(ValueError, match=f"factor: got 16 for images of {SIZE[0]}×{SIZE[1]}"):
        train_autoencoder(dataset, tmp_path / "run", tiny(factor=16), device=CPU)


def test_the_commands(command, refused, dataset, tmp_path):
    keys = [f"{key}={value}" for key, value in (("width", 8), ("factor", 2), ("batch", 8), ("warm_up", 8))]
    options = [word for key in (*keys, "lr=2e-4") for word in ("--set", key)]  # YAML takes 2e-4 for text
    code, out, err = command("autoencoder", "train", "--data", dataset.path, "--out", "ae", "--images", 16, *options)
    assert (code, "finished after 16 images" in out) == (0, True), err
    code, out, err = command("autoencoder", "train", "--data", dataset.path, "--out", "ae", "--images", 16, *options)
    assert (code, "finished after 16 images\n" in out) == (0, True), err  # nothing was left to do
    code, out, err = command("autoencoder", "reconstruct", "ae", "--data", dataset.path, "--out", "r", "--n", 5)
    assert (code, "5 images (5 made now): PSNR" in out) == (0, True), err
    says = "unknown key 'wide'; did you mean 'width'?"
    refused("autoencoder", "train", "--data", dataset.path, "--out", "ae", "--set", "wide=3", says=says)


def test_images_are_cut_to_what_the_factor_divides(command, refused, tmp_path):
    (tmp_path / "photos").mkdir()
    for number in range(3):
        Image.fromarray(np.full((30, 30, 3), 60 * number, np.uint8)).save(tmp_path / "photos" / f"{number}.png")
    words = ["autoencoder", "train", "--data", "photos", "--images", 2, "--set", "width=8", "--set", "batch=2"]
    refused(*words, "--size", 30, "--out", "ae", says="factor: got 8 for images of 30×30, expected a divisor")
    assert not (tmp_path / "ae").exists()
    code, _, err = command(*words, "--out", "ae")
    assert (code, open_dataset(tmp_path / "ae" / "data").size) == (0, (24, 24)), err
