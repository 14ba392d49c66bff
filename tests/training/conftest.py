"""A data set and a run small enough for one thread."""

from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

from anisodiff.cli import data
from anisodiff.cli import train as train_verb
from anisodiff.data import Dataset, prepare
from anisodiff.io.checkpoint import folder_of
from anisodiff.training import TrainConfig, preview, read, train

SMALL = [
    "calibration=32",
    "network.nf=8",
    "network.multipliers=[1, 1]",
    "network.blocks=1",
    "batch=4",
    "warm_up=20",
    "log_every=8",
]
"""Settings of `anisodiff train` for a network of a few thousand weights."""
NETWORK = {"name": "small", "nf": 8, "multipliers": [1, 1], "blocks": 1, "dropout": 0.2}
WINDOWS = {"preset": "anisotropic", "step": "exponential(windows=2)"}
"""A process whose drift is learned, with tables that are soon estimated."""


def tiny(**changes: Any) -> TrainConfig:
    """Ten steps of four images of 8×8."""
    values: dict[str, Any] = {
        "process": "heat", "network": NETWORK, "size": 8, "channels": 1, "batch": 4, "images": 40, "warm_up": 20,
        "calibration": 16, "log_every": 8, "checkpoint_every": 12, "ema": ["constant(0.9)", "power(0.1)"],
        "lr": 1e-3,
    }  # fmt: skip
    return TrainConfig(**{**values, **changes})


def pixels(count: int = 40, seed: int = 0) -> np.ndarray:
    """Smooth random pictures: every one a ramp in a random direction, with some noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:8, 0:8] / 7 - 0.5
    a, b = rng.uniform(-0.5, 0.5, (2, count, 1, 1, 1))
    field = 0.5 + a * x + b * y + rng.normal(0, 0.03, (count, 1, 8, 8))
    return (255 * field.clip(0, 1)).astype(np.uint8)


def folder(path, count=12, side=16):
    path.mkdir()
    for number, picture in enumerate(pixels(count)[:, 0]):
        Image.fromarray(np.kron(picture, np.ones((side // 8, side // 8), np.uint8))).save(path / f"{number}.png")
    return path


@pytest.fixture
def train_command(monkeypatch, tmp_path):
    """Run `anisodiff train` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(train_verb.train)
    app.add_typer(data.app, name="data")

    def run(*words, settings=()):
        changes = [word for item in settings for word in ("--set", item)]
        return CliRunner().invoke(app, [*map(str, words), *changes])

    return run


@pytest.fixture(scope="session")
def dataset(tmp_path_factory) -> Dataset:
    folder = tmp_path_factory.mktemp("images")
    np.save(folder / "raw.npy", pixels())
    return prepare(folder / "raw.npy", folder / "data", size=8, channels=1).dataset


@pytest.fixture(scope="module")
def calm(dataset, tmp_path_factory):
    """A run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("calm")
    train(tiny(), dataset, folder, track=())
    return folder


def everything(run) -> dict[str, torch.Tensor]:
    """All tensors of a run's last checkpoint."""
    last = read(sorted(folder_of(run).glob("step-*"))[-1])
    names = sorted(path.relative_to(last.path).with_suffix("") for path in last.path.rglob("*.safetensors"))
    return {f"{name}:{key}": value for name in names for key, value in last.tensors(str(name)).items()}


def assert_equal(one, other) -> None:
    """Bit by bit."""
    first, second = everything(one), everything(other)
    assert first.keys() == second.keys()
    assert len(first) > 100
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.fixture(autouse=True)
def full_grids(monkeypatch):
    """Grids of samples of full size, however busy the machine is."""
    monkeypatch.setattr(preview, "SHARE", 1e9)
