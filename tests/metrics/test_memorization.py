from __future__ import annotations

import pytest
import torch

from anisodiff.metrics import FeatureNetwork, image_set, look_for_copies
from anisodiff.metrics.memorization import (
    Gallery,
    closer_to_training,
    nearest,
    nearest_pixels,
    neighbor_sheet,
    source_recovery,
)
from tests.metrics.conftest import random_images


def normal(count: int, seed: int, dimension: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dimension, dtype=torch.float64, generator=generator)


def test_nearest_agrees_with_cdist() -> None:
    x, y = normal(30, 1), normal(50, 2)
    expected = torch.cdist(x, y).min(dim=1)
    found = nearest(x, y)
    assert torch.equal(found.index, expected.indices)
    torch.testing.assert_close(found.distance, expected.values)


def test_share_is_half_for_new_samples_and_one_for_copies() -> None:
    generator = torch.Generator().manual_seed(0)
    train, heldout = normal(3000, 1), normal(400, 2)
    new = closer_to_training(normal(2000, 3), train, heldout, generator=generator)
    assert new.matched == 400  # with all 3000 the larger set would win by its size
    assert abs(new.value - 0.5) < 0.1
    copies = closer_to_training(train[:200] + 1e-6, train[:400], heldout, generator=generator)
    assert copies.value == 1
    assert 0 < copies.standard_error < 0.003  # 200 of 200
    tie = closer_to_training(normal(10, 4), train[:50], train[:50], generator=generator)
    assert tie.value == 0.5


def test_source_recovery() -> None:
    gallery = normal(100, 5) * 10
    source = torch.arange(0, 100, 2)
    found = source_recovery(gallery[source] + 0.01 * normal(50, 6), gallery, source)
    assert (found.rate, found.median_rank, found.chance) == (1, 0, 0.01)
    lost = source_recovery(normal(50, 7), gallery, source)
    assert lost.rate < 0.1
    assert lost.median_rank > 20
    with pytest.raises(ValueError, match=r"source indices must lie in 0 … 99"):
        source_recovery(gallery[:1], gallery, torch.tensor([100]))
    with pytest.raises(ValueError, match="source must hold 2 indices"):
        source_recovery(gallery[:2], gallery, torch.tensor([1]))


def test_nearest_pixels_walks_in_batches_and_counts_rms() -> None:
    train = random_images(2100, size=7)
    samples = train[[2050, 3]].clone()
    samples[0] = (train[2050].int() + 3).clamp_max(255).to(torch.uint8)
    found = nearest_pixels(samples, image_set(train))
    assert found.index.tolist() == [2050, 3]
    assert float(found.distance[0]) == pytest.approx(3 / 255, rel=0.1)
    assert float(found.distance[1]) == pytest.approx(0, abs=1e-7)
    keep = torch.ones(2100, dtype=torch.bool)
    keep[3] = False
    assert nearest_pixels(samples, image_set(train), keep=keep).index[1] != 3
    with pytest.raises(ValueError, match="different sizes"):
        nearest_pixels(samples, image_set(random_images(3)))


def test_copies_are_found_among_new_samples(pooled: FeatureNetwork) -> None:
    train, heldout = random_images(120, seed=1), random_images(80, seed=2)
    copies, new = train[[100, 7]], random_images(38, seed=3)
    samples = torch.cat([new, copies])
    known, others = (Gallery(features=pooled(x)[0], images=image_set(x)) for x in (train, heldout))
    generator = torch.Generator().manual_seed(0)
    found = look_for_copies(samples, pooled(samples)[0], known, generator=generator, heldout=others)
    assert found.by_feature.index[-2:].tolist() == [100, 7]
    assert found.by_pixel.index[-2:].tolist() == [100, 7]
    assert float(found.by_pixel.distance[-2:].max()) < 1e-6 < float(found.by_pixel.distance[:-2].min())
    assert found.feature_share is not None
    assert found.pixel_share is not None
    assert found.feature_share.matched == found.pixel_share.matched == 80
    assert 0.2 < found.pixel_share.value < 0.9
    assert found.sheet.width > 3 * 64
    pixels = torch.tensor(list(found.sheet.tobytes()), dtype=torch.uint8).view(*found.sheet.size[::-1], 3)
    block = pixels[24 : 24 + 64, 8 : 8 + 192].view(64, 3, 64, 3)
    assert torch.equal(block[:, 0], block[:, 1])  # the first row of the sheet shows a copy beside its original
    assert torch.equal(block[:, 0], block[:, 2])


def test_sheet_and_sets_are_checked() -> None:
    images = random_images(3)
    assert neighbor_sheet(*[torch.cat([images, images])] * 3).size == (8 + 4 * 200, 8 + 16 + 2 * 72)
    with pytest.raises(ValueError, match="equal sets of images"):
        neighbor_sheet(images, images[:2], images)
