"""Models that ship with the package."""

from pathlib import Path

import pytest
import torch

import anisodiff
from anisodiff.pretrained import IN_REPOSITORY, SHIPPED, shipped


def test_the_models_of_a_clone():
    assert ("cifar10-tiny", *IN_REPOSITORY) == SHIPPED


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_model_is_small_has_a_card_and_gives_images(name):
    folder, larger = shipped(name), name in IN_REPOSITORY
    assert folder is not None
    assert sum(path.stat().st_size for path in folder.iterdir()) <= (64_000_000 if larger else 8 * 2**20)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert all(word in card for word in ("FID", "Data", "Prior", "weaknesses"))
    generator = anisodiff.load(name, device="cpu")
    assert f"{sum(p.numel() for p in generator.model.network.parameters()):,} parameters" in card
    assert "/" not in generator.meta["data"]["source"]
    count = 2 if larger else 8
    images = generator.sample(count, steps=8)
    assert images.shape == (count, generator.channels, *generator.size)
    assert images.std() > 0.1  # no gray, no noise that fills the range
    rough = (images[..., 1:] - images[..., :-1]).square().mean() / images.var()
    assert rough < 0.5  # white noise has 2
    assert torch.allclose(images[1:2], generator.sample(1, seed=1, steps=8), atol=1e-4)


def test_a_folder_of_the_same_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shipped(SHIPPED[0]) is not None
    Path(SHIPPED[0]).mkdir()
    assert shipped(SHIPPED[0]) is None
    with pytest.raises(ValueError, match="holds no checkpoint"):
        anisodiff.load(SHIPPED[0])


def test_a_larger_model_is_not_in_the_package(monkeypatch):
    monkeypatch.setattr("anisodiff.io.checkpoint.shipped", lambda name: None)  # as where the wheel is installed
    with pytest.raises(ValueError, match=f"{IN_REPOSITORY[0]} is not part of the package; clone the repository"):
        anisodiff.load(IN_REPOSITORY[0])


def test_an_unknown_name_lists_them():
    with pytest.raises(ValueError, match=SHIPPED[0]):
        anisodiff.load("cifar10-tinny")
