"""Tiny networks on 8×8 images, a tiny feature network, and studies of them in a folder of their own."""

import numpy as np
import pytest
from PIL import Image

from anisodiff.data import Dataset, prepare
from tests.metrics.conftest import save_network
from tests.training.conftest import pixels

SET = (
    "network.nf=8", "network.multipliers=[1, 1]", "network.blocks=1", "network.dropout=0", "batch=4", "warm_up=8",
    "calibration=16", "log_every=8", "checkpoint_every=8", "ema=[constant(0.5)]", "lr=1e-3",
)  # fmt: skip
SETTINGS = [word for item in SET for word in ("--set", item)]
NETWORK = ("--network", "tiny.pt", "--trust-code", "--input", "unit")
COMMON = (*SETTINGS, "--data", "data", *NETWORK, "--device", "cpu", "--n", "12")


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Dataset:
    """Forty ramps of 8×8, and the feature network beside them."""
    folder = tmp_path_factory.mktemp("study")
    np.save(folder / "raw.npy", pixels())
    for number, image in enumerate(pixels(4, seed=7)):
        Image.fromarray(image[0]).save(folder / f"photo{number}.png")
    save_network(folder / "tiny.pt")
    return prepare(folder / "raw.npy", folder / "data", size=8, channels=1).dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """For a study that is made once for all tests of a file."""
    return tmp_path_factory.mktemp("studies")


@pytest.fixture
def command(command, monkeypatch, prepared, tmp_path):
    """Run the command beside the data; exit code, standard output and error. Studies go to ``out``."""
    monkeypatch.chdir(prepared.path.parent)
    monkeypatch.setenv("XDG_CACHE_HOME", str(prepared.path.parent / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *words, out=tmp_path / "out": command(*words, "--out", out)
