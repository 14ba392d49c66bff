"""Without any optional package: everything else works, and each missing one is named with its install command."""

import sys

import numpy as np
import pytest
from PIL import Image

OPTIONAL = (
    "accelerate", "datasets", "diffusers", "fastapi", "huggingface_hub", "lmdb", "sklearn", "tensorboard",
    "torchmetrics", "uvicorn", "wandb",
)  # fmt: skip


@pytest.fixture
def bare(monkeypatch):
    """None of the optional packages can be imported."""
    loaded = [name for name in sys.modules if name.partition(".")[0] in OPTIONAL]
    for name in (*loaded, *OPTIONAL):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "anisodiff.pipelines.pipeline", raising=False)


@pytest.fixture
def photos(tmp_path):
    folder, rng = tmp_path / "photos", np.random.default_rng(0)
    for number in range(8):
        (folder / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "ab"[number % 2] / f"{number}.png")
    return folder


def test_all_else_works(bare, command, photos, tmp_path):
    """Train with classes, sample with guidance, edit, solve, measure, share."""
    one = photos / "a" / "0.png"
    small = ["--set", "network.nf=8", "--set", "batch=4", "--set", "calibration=16", "--set", "size=8"]
    lines = [
        ["train", "ve", "--data", photos, "--classes", "--network", "tiny", *small, "--images", 8, "-o", "run"],
        ["sample", "run", "--n", 2, "--steps", 4, "--class", "a", "--guidance", 2, "--out", "made"],
        ["edit", "run", one, "--steps", 4, "--out", "edits"],
        ["solve", "run", one, "--degrade", "--operator", "super-resolution(factor=4)", "--steps", 4],
        ["evaluate", "run", "--n", 4, "--steps", 4, "--metrics", "sliced,spectrum,edges"],
        ["share", "run", "--out", "shared", "--samples", 2],
    ]
    for words in lines:
        code, out, err = command(*words, "--device", "cpu")
        assert code == 0, (words, err)
        if words[0] == "train":
            said = "no tensorboard/ beside log.jsonl: accelerate is not installed; pip install 'anisodiff[train]'"
            assert said in out + err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["sample", "hub:me/faces"], "hub:me/faces needs the package huggingface_hub: pip install 'anisodiff[hub]'"),
        (["studio"], "the studio needs fastapi and uvicorn: pip install 'anisodiff[studio]'"),
        (["data", "prepare", "hf:me/set", "-o", "set"], "the package datasets: pip install 'anisodiff[datasets]'"),
        (["data", "prepare", "lmdb", "-o", "set"], "needs the package lmdb: pip install 'anisodiff[lsun]'"),
        (["train", "--track", "wandb"], "the tracker wandb needs accelerate: pip install 'anisodiff[track]'"),
        (["train", "--track", "tensorboard"], "tensorboard needs accelerate: pip install 'anisodiff[train]'"),
        (
            ["train", "--network", "diffusers:UNet2DModel"],
            "network diffusers:UNet2DModel needs the package diffusers: pip install 'anisodiff[diffusers]'",
        ),
        (["sample", "cifar10-tiny"], "several processes need accelerate: pip install 'anisodiff[train]'"),
    ],
)
def test_what_is_missing_is_named(bare, refused, photos, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lmdb").mkdir()
    (tmp_path / "lmdb" / "data.mdb").write_bytes(b"")
    if "cifar10-tiny" in words:
        monkeypatch.setenv("WORLD_SIZE", "2")
    if words[0] == "train":
        words = [*words, "--data", photos, "--set", "size=8", "--images", 8, "-o", "run"]
    refused(*words, says=says)
