"""Models that ship with the package."""

from pathlib import Path

import pytest
import torch

import anisodiff
from anisodiff.pretrained import SHIPPED, shipped


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_model_is_small_has_a_card_and_gives_images(name):
    folder = shipped(name)
    assert folder is not None
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 8 * 2**20
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert all(word in card for word in ("FID", "Data", "Prior", "weaknesses"))
    generator = anisodiff.load(name, device="cpu")
    assert f"{sum(p.numel() for p in generator.model.network.parameters()):,} parameters" in card
    assert "/" not in generator.meta["data"]["source"]
    images = generator.sample(8, steps=8)
    assert images.shape == (8, generator.channels, *generator.size)
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


def test_an_unknown_name_lists_them():
    with pytest.raises(ValueError, match=SHIPPED[0]):
        anisodiff.load("cifar10-tinny")
