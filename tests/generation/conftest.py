"""Checkpoints of networks small enough for one thread, made by the trainer."""

import json
import shutil

import pytest

from anisodiff.training import Hooks, train
from anisodiff.training.preview import fit_prior
from tests.training.conftest import dataset as data  # noqa: F401
from tests.training.conftest import tiny


@pytest.fixture(scope="session")
def runs(data, tmp_path_factory):  # noqa: F811
    """Run folders by the name of their process; each is trained when first asked for."""
    made = {}

    def run(process: str):
        if process not in made:
            made[process] = tmp_path_factory.mktemp(process) / "run"
            train(tiny(process=process), data, made[process], hooks=Hooks(fit_prior=fit_prior), track=())
        return made[process]

    return run


def spoil(saved, place) -> None:
    """A checkpoint as ``good``, ``lacking`` its weights, and of a ``newer`` version; and a ``taken`` folder."""
    for name in ("good", "lacking", "newer"):
        shutil.copytree(saved, place / name)
    (place / "lacking" / "model.safetensors").unlink()
    manifest = json.loads((place / "newer" / "manifest.json").read_text())
    (place / "newer" / "manifest.json").write_text(json.dumps({**manifest, "version": 3}))
    (place / "taken").mkdir()
    (place / "taken" / "letter.txt").write_text("mine")
