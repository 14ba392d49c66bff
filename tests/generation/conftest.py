"""Checkpoints of networks small enough for one thread, made by the trainer."""

import numpy as np
import pytest

from anisodiff.data import Dataset, prepare
from anisodiff.train import Hooks, train
from anisodiff.train.preview import fit_prior

from ..train.conftest import pixels, tiny


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Dataset:
    """Forty ramps of 8×8."""
    folder = tmp_path_factory.mktemp("training")
    np.save(folder / "raw.npy", pixels())
    return prepare(folder / "raw.npy", folder / "data", size=8, channels=1).dataset


@pytest.fixture(scope="session")
def runs(data, tmp_path_factory):
    """Run folders by the name of their process; each is trained when first asked for."""
    made = {}

    def run(process: str):
        if process not in made:
            made[process] = tmp_path_factory.mktemp(process) / "run"
            train(tiny(process=process), data, made[process], hooks=Hooks(fit_prior=fit_prior), tensorboard=False)
        return made[process]

    return run
