from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from anisodiff.metrics import (
    Context,
    FeatureNetwork,
    ImageStatistics,
    Settings,
    cached_statistics,
    image_set,
    image_statistics,
)
from anisodiff.metrics.cache import load_arrays, store_arrays
from anisodiff.metrics.statistics import cache_folder
from tests.metrics.conftest import fingerprint, random_images, save_folder


def same(a: ImageStatistics, b: ImageStatistics) -> bool:
    return (
        torch.equal(a.features, b.features)
        and torch.equal(a.gaussian.scatter, b.gaussian.scatter)
        and torch.equal(a.pixels.projections, b.pixels.projections)
        and torch.equal(a.pixels.edges.orientation, b.pixels.edges.orientation)
        and torch.equal(a.pixels.spectrum.power, b.pixels.spectrum.power)
        and (a.count, a.size, a.fingerprint) == (b.count, b.size, b.fingerprint)
    )


class Counting:
    """Counts the images a network sees."""

    def __init__(self, network: FeatureNetwork) -> None:
        self.seen = 0
        self.network = replace(network, forward=self.forward)
        self._forward = network.forward

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        self.seen += len(images)
        return self._forward(images)


def test_batches_do_not_matter_and_progress_is_told(pooled: FeatureNetwork) -> None:
    images = image_set(random_images(20))
    told: list[tuple[str, int, int | None]] = []
    context = Context(progress=lambda *step: told.append(step))
    a = image_statistics(images, pooled, settings=Settings(batch_size=6), context=context)
    b = image_statistics(images, pooled, settings=Settings(batch_size=20))
    torch.testing.assert_close(a.features, b.features)
    torch.testing.assert_close(a.gaussian.scatter, b.gaussian.scatter)
    torch.testing.assert_close(a.pixels.projections, b.pixels.projections)
    torch.testing.assert_close(a.pixels.spectrum.power, b.pixels.spectrum.power)
    for name in ("orientation", "coherence", "magnitude"):
        torch.testing.assert_close(getattr(a.pixels.edges, name), getattr(b.pixels.edges, name))
    assert told == [("samples of array", done, 20) for done in (0, 6, 12, 18, 20)]
    assert a.fingerprint == b.fingerprint == fingerprint(images)
    assert a.size == (16, 16)


def test_second_time_comes_from_the_cache_also_from_another_container(pooled: FeatureNetwork, tmp_path: Path) -> None:
    images, counted = random_images(12), Counting(pooled)
    folder = save_folder(images, tmp_path / "set")
    first = cached_statistics(image_set(folder), counted.network, context=Context(cache=tmp_path / "cache"))
    assert counted.seen == 12
    again = cached_statistics(image_set(images), counted.network, context=Context(cache=tmp_path / "cache"))
    assert counted.seen == 12
    assert same(first, again)


def test_rows_from_the_cache_stand_in_the_order_of_the_container(pooled: FeatureNetwork, tmp_path: Path) -> None:
    images, counted = random_images(12), Counting(pooled)
    images[5] = images[2]  # a set may hold an image twice
    cached_statistics(image_set(images), counted.network, context=Context(cache=tmp_path))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    other = cached_statistics(image_set(images[order]), counted.network, context=Context(cache=tmp_path))
    assert counted.seen == 12
    fresh = image_statistics(image_set(images[order]), pooled)
    assert torch.equal(other.features, fresh.features)
    assert torch.equal(other.pixels.projections, fresh.pixels.projections)
    assert other.digests == fresh.digests


def test_the_first_images_are_kept(pooled: FeatureNetwork) -> None:
    images = random_images(12)
    for keep in (0, 3, 5, 12, 20):
        made = image_statistics(image_set(images), pooled, settings=Settings(batch_size=4), keep=keep)
        assert torch.equal(made.kept, images[:keep])
    made = image_statistics(image_set(images), pooled, settings=Settings(batch_size=4, limit=6), keep=9)
    assert torch.equal(made.kept, images[:6])


def test_other_images_networks_or_settings_never_share_a_file(pooled: FeatureNetwork, tmp_path: Path) -> None:
    images, counted = random_images(12), Counting(pooled)
    cached_statistics(image_set(images), counted.network, context=Context(cache=tmp_path))
    changed = images.clone()
    changed[0, 0, 0, 0] += 1
    cached_statistics(image_set(changed), counted.network, context=Context(cache=tmp_path))
    for field in ("name", "weights", "resize", "precision"):
        cached_statistics(
            image_set(images), replace(counted.network, **{field: "other"}), context=Context(cache=tmp_path)
        )
    cached_statistics(image_set(images), counted.network, settings=Settings(seed=1), context=Context(cache=tmp_path))
    cached_statistics(
        image_set(images), counted.network, settings=Settings(projections=7), context=Context(cache=tmp_path)
    )
    assert counted.seen == 12 * 8


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "words", "swap", "version", "method", "array"])
def test_a_damaged_cache_file_is_noticed_and_computed_again(
    damage: str, pooled: FeatureNetwork, tmp_path: Path
) -> None:
    images, counted = image_set(random_images(12)), Counting(pooled)
    first = cached_statistics(images, counted.network, context=Context(cache=tmp_path))
    (file,) = (tmp_path / "statistics").iterdir()
    content = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "flip":
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content)
    elif damage == "words":
        file.write_bytes(b"words")
    elif damage in ("version", "method"):  # of the archive's format: "zip file version 25.5"
        field, byte = (4, 0xFF) if damage == "version" else (8, 0x63)
        content[field] = content[content.index(b"PK\x01\x02") + field + 2] = byte
        file.write_bytes(content)
    elif damage == "array":
        content[content.index(b"NUMPY") + 1] = 0
        file.write_bytes(content)
    else:  # whole, but of other images
        cached_statistics(image_set(random_images(12, seed=5)), pooled, context=Context(cache=tmp_path / "other"))
        (other,) = (tmp_path / "other" / "statistics").iterdir()
        os.replace(other, file)
    said: list[str] = []
    again = cached_statistics(images, counted.network, context=Context(cache=tmp_path, say=said.append))
    assert counted.seen == 24
    assert any("computing again" in s for s in said)
    assert same(first, again)
    cached_statistics(images, counted.network, context=Context(cache=tmp_path))
    assert counted.seen == 24


def test_a_forged_array_with_valid_zip_fails_the_checksum(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    store_arrays(path, "key", {"x": np.arange(5.0)})
    assert load_arrays(path, "key") is not None
    assert load_arrays(path, "other key") is None
    with np.load(path) as stored:
        forged = {name: stored[name] for name in stored.files} | {"x": np.arange(5.0) + 1}
    np.savez(path, **forged)
    assert load_arrays(path, "key") is None


def test_failed_surveys_leave_nothing(pooled: FeatureNetwork, tmp_path: Path) -> None:
    bad = replace(pooled, forward=lambda x: (x.float().mean((2, 3)) * torch.nan, None))
    with pytest.raises(ValueError, match="quadrants features of array: 12 of 12 rows hold NaN"):
        cached_statistics(image_set(random_images(12)), bad, context=Context(cache=tmp_path))
    assert not any(p.is_file() for p in tmp_path.rglob("*"))


def test_an_iterator_is_surveyed_once_and_then_known(pooled: FeatureNetwork, tmp_path: Path) -> None:
    images, counted = random_images(12), Counting(pooled)
    first = cached_statistics(image_set(iter(images.split(5))), counted.network, context=Context(cache=tmp_path))
    again = cached_statistics(image_set(images), counted.network, context=Context(cache=tmp_path))
    assert counted.seen == 12
    assert same(first, again)


def test_an_unwritable_cache_costs_only_time(pooled: FeatureNetwork, tmp_path: Path) -> None:
    (tmp_path / "statistics").write_text("a file where the folder should be")
    said: list[str] = []
    made = cached_statistics(image_set(random_images(5)), pooled, context=Context(cache=tmp_path, say=said.append))
    assert made.count == 5
    assert any("were not cached" in s for s in said)


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "anisodiff"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "anisodiff"
