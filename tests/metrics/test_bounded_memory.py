"""Sets of images are never all in memory: arrays that are alive at once are counted while a set is walked."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from anisodiff.metrics import (
    Context,
    FeatureNetwork,
    ImageSet,
    Settings,
    cached_statistics,
    image_set,
    image_statistics,
    read_batches,
)
from anisodiff.metrics.memorization import nearest_pixels
from tests.metrics.conftest import random_images, save_folder

COUNT, SIZE, BATCH = 240, 32, 8
SETTINGS = Settings(batch_size=BATCH)
WHOLE = COUNT * 3 * SIZE**2  # bytes


def highest(work: Callable[[], object]) -> int:
    """Most bytes of Python and numpy alive at once during ``work``."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    images = random_images(COUNT, size=SIZE)
    save_folder(images, folder / "folder")
    np.savez_compressed(folder / "packed.npz", images=images.numpy())
    return folder


@pytest.mark.parametrize("container", ["folder", "packed.npz"])
def test_a_container_is_read_batch_by_batch(container: str, stored: Path) -> None:
    def consume() -> int:
        return sum(len(batch) for batch in read_batches(image_set(stored / container), BATCH))

    assert consume() == COUNT  # and modules loaded on the way do not count below
    assert highest(consume) < WHOLE / 3


def streamed(seed: int = 0) -> ImageSet:
    """Images made as numpy arrays while they are walked over, so that `highest` sees whatever holds on to them."""

    def make(size: int) -> Iterator[torch.Tensor]:
        draw = np.random.default_rng(seed)
        for _ in range(COUNT // size):
            yield torch.from_numpy(draw.integers(0, 256, (size, 3, SIZE, SIZE), dtype=np.uint8))

    return ImageSet(name="streamed", open=make, count=COUNT)


def test_a_survey_holds_numbers_not_images(pooled: FeatureNetwork, tmp_path: Path) -> None:
    passing = replace(pooled, forward=lambda x: (x[:, :, 0, :2].flatten(1).float(), None))
    for network in (pooled, passing):
        work = partial(image_statistics, streamed(), network, settings=SETTINGS, keep=BATCH)
        work()
        assert highest(work) < WHOLE / 3
    assert (
        highest(lambda: cached_statistics(streamed(), pooled, settings=SETTINGS, context=Context(cache=tmp_path)))
        < 2 * WHOLE / 3
    )
    nearest_pixels(random_images(2, size=SIZE), streamed(), batch_size=BATCH)
    searched = highest(lambda: nearest_pixels(random_images(2, size=SIZE), streamed(), batch_size=BATCH))
    assert searched < WHOLE / 3


@pytest.mark.parametrize("known", [True, False])
def test_a_survey_keeps_no_small_piece_of_every_batch(known: bool, pooled: FeatureNetwork) -> None:
    """Pieces kept from every batch would pin the heap between the large arrays that come and go."""
    images, dimension = replace(streamed(), count=COUNT if known else None), 512

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return torch.from_numpy(x.numpy().reshape(len(x), -1)[:, :dimension].astype(np.float32)), None

    network = replace(pooled, forward=forward)
    made = image_statistics(images, network, settings=SETTINGS)
    expected = torch.cat([network(batch)[0] for batch in read_batches(images, BATCH)])
    assert torch.equal(made.features, expected)
    assert highest(lambda: image_statistics(images, network, settings=SETTINGS)) < expected.nbytes / 2
