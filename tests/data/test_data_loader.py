"""The order of the images, flips, and the loader: bijections, laws, and independence of everything else."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from anisodiff.data import Dataset, Loader, draw, permute, prepare
from anisodiff.data.loader import flips, key

COUNT, SIDE = 37, 8


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    root = tmp_path_factory.mktemp("loader")
    rng = np.random.default_rng(0)
    (root / "in").mkdir()
    for i in range(COUNT):
        values = rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(values).save(root / "in" / f"{i:03d}.png")
    return prepare(root / "in", root / "out", size=SIDE).dataset


@settings(deadline=None, max_examples=150)
@given(count=st.integers(1, 3000), seed=st.integers(-(2**63), 2**64 - 1), epoch=st.integers(0, 2**40))
def test_permutation_is_a_bijection(count: int, seed: int, epoch: int) -> None:
    got = permute(np.arange(count), count, key(seed, epoch))
    np.testing.assert_array_equal(np.sort(got), np.arange(count))


@settings(deadline=None, max_examples=50)
@given(count=st.integers(10**6, 2**45), seed=st.integers(0, 2**64 - 1), data=st.data())
def test_permutation_of_huge_sets_stays_inside_and_apart(count: int, seed: int, data: st.DataObject) -> None:
    at = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=50, unique=True)))
    got = permute(at, count, key(seed))
    assert got.min() >= 0
    assert got.max() < count
    assert len(np.unique(got)) == len(at)


def chi2_limit(cells: int) -> float:
    """Five standard deviations above the mean of χ² with cells − 1 degrees of freedom."""
    return (cells - 1) + 5 * (2 * (cells - 1)) ** 0.5


@pytest.mark.parametrize("count", [2, 3, 4])
def test_all_orders_of_a_tiny_set_are_equally_likely(count: int) -> None:
    """Also a check of the rounds: with few of them some orders of 4 never appear."""
    trials, orders = 4800, [*itertools.permutations(range(count))]
    keys = np.repeat(key(11, np.arange(trials)), count)
    got = permute(np.tile(np.arange(count), trials), count, keys).reshape(trials, count)
    seen = np.array([(got == np.array(order)).all(1).sum() for order in orders])
    expected = trials / len(orders)
    assert ((seen - expected) ** 2 / expected).sum() < chi2_limit(len(orders))


def test_neighbors_are_independent() -> None:
    """(π(i), π(i+1)) for N = 50 over many epochs: pairs, steps and places all uniform."""
    count, trials = 50, 2000
    keys = np.repeat(key(5, np.arange(trials)), count)
    got = permute(np.tile(np.arange(count), trials), count, keys).reshape(trials, count)
    step = (got[:, 1:] - got[:, :-1]) % count
    for values in (step.ravel() - 1, got[:, 0], got[:, 17]):
        cells = 49 if values is not got[:, 0] and values.size > trials else 50
        seen = np.bincount(values, minlength=cells)
        assert ((seen - values.size / cells) ** 2 / (values.size / cells)).sum() < chi2_limit(cells)


def test_epochs_and_seeds_differ() -> None:
    at = np.arange(1000)
    orders = [permute(at, 1000, key(seed, epoch)) for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1), (2**32, 0))]
    for a, b in itertools.combinations(orders, 2):
        assert (a == b).sum() < 12  # Poisson with mean 1


@given(batch=st.integers(1, 80), count=st.integers(1, 60), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_every_epoch_shows_every_image_once(batch: int, count: int, seed: int) -> None:
    epochs = 3
    batches = -(-epochs * count // batch)
    drawn = [draw(seed=seed, k=k, batch=batch, count=count) for k in range(batches)]
    index = np.concatenate([d.index for d in drawn])[: epochs * count].reshape(epochs, count)
    epoch = np.concatenate([d.epoch for d in drawn])[: epochs * count].reshape(epochs, count)
    np.testing.assert_array_equal(np.sort(index, 1), np.tile(np.arange(count), (epochs, 1)))
    assert (epoch == np.arange(epochs)[:, None]).all()


@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_ranks_together_make_the_same_batch(dataset: Dataset, world: int) -> None:
    whole = Loader(dataset, batch=12, seed=4)
    parts = [Loader(dataset, batch=12, seed=4, rank=r, world=world) for r in range(world)]
    for k in (0, 2, 3, 1000):  # 3 runs over the end of an epoch
        images, index = whole.batch(k)
        split = [part.batch(k) for part in parts]
        assert torch.equal(torch.cat([s[1] for s in split]), index)
        assert torch.equal(torch.cat([s[0] for s in split]), images)


def test_random_access_equals_iteration_from_anywhere(dataset: Dataset) -> None:
    loader = Loader(dataset, batch=10, seed=1, threads=2, ahead=3)
    for start in (0, 5):
        for k, (images, index) in zip(range(start, start + 9), loader.iterate(start)):
            again, where = Loader(dataset, batch=10, seed=1).batch(k)
            assert torch.equal(images, again)
            assert torch.equal(index, where)


def test_images_are_those_of_the_index(dataset: Dataset) -> None:
    images, index = Loader(dataset, batch=COUNT, seed=0, flip=False).batch(0)
    assert images.dtype == torch.float32
    assert index.dtype == torch.int64
    want = torch.from_numpy(np.asarray(dataset.images)[index.numpy()]).float() / 255
    assert torch.equal(images, want)
    flipped, same = Loader(dataset, batch=COUNT, seed=0, flip=True).batch(0)
    assert torch.equal(same, index)
    mirrored = torch.tensor([bool(torch.equal(f, w.flip(-1))) for f, w in zip(flipped, want)])
    kept = torch.tensor([bool(torch.equal(f, w)) for f, w in zip(flipped, want)])
    assert torch.equal(mirrored, ~kept)
    assert 0 < mirrored.sum() < COUNT


def test_flips_are_fair_and_independent_of_epoch_and_neighbor() -> None:
    n = 40_000
    index, epoch = np.arange(n), np.zeros(n, np.int64)
    first, later, other = flips(3, epoch, index), flips(3, epoch + 1, index), flips(4, epoch, index)
    for coin in (first, later, other, first ^ later, first ^ other, first[1:] ^ first[:-1]):
        assert abs(coin.mean() - 0.5) < 5 * 0.5 / n**0.5
    np.testing.assert_array_equal(flips(3, epoch[5:9], index[5:9]), first[5:9])


def test_batch_size_does_not_change_an_image_within_an_epoch(dataset: Dataset) -> None:
    """Flips belong to (seed, epoch, index), whatever the batch."""
    by_size = []
    for batch in (1, 5, COUNT):
        loader = Loader(dataset, batch=batch, seed=2)
        parts = [loader.batch(k) for k in range(-(-COUNT // batch))]
        images, index = (torch.cat([part[i] for part in parts])[:COUNT] for i in (0, 1))
        by_size.append(images[torch.argsort(index)])
    assert torch.equal(by_size[0], by_size[1])
    assert torch.equal(by_size[0], by_size[2])


def test_bad_arguments_are_refused(dataset: Dataset) -> None:
    with pytest.raises(ValueError, match="got global batch 10 on 3 processes: expected a positive multiple of 3"):
        Loader(dataset, batch=10, seed=0, world=3)
    with pytest.raises(ValueError, match="expected 0 ≤ rank < world"):
        Loader(dataset, batch=10, seed=0, rank=2, world=2)
    with pytest.raises(ValueError, match="expected k ≥ 0"):
        Loader(dataset, batch=10, seed=0).batch(-1)
    with pytest.raises(ValueError, match="got 0 images"):
        permute(np.arange(0), 0, key(0))


def test_an_error_in_the_background_reaches_the_caller(dataset: Dataset) -> None:
    loader = Loader(dataset, batch=4, seed=0)
    with pytest.raises(ValueError, match="start ≥ 0"):
        next(loader.iterate(-1))
    far = loader.iterate(2**62)  # draw numbers beyond int64
    with pytest.raises((OverflowError, ValueError)):
        next(far)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("resident_bytes", [0, 8 << 30])
def test_gpu_batches_equal_cpu_batches(dataset: Dataset, resident_bytes: int) -> None:
    cpu = Loader(dataset, batch=10, seed=6)
    gpu = Loader(dataset, batch=10, seed=6, device="cuda", resident_bytes=resident_bytes)
    assert gpu.resident == (resident_bytes > 0)
    for k, (images, index) in zip(range(12), gpu.iterate()):
        want, where = cpu.batch(k)
        assert torch.equal(index.cpu(), where)
        torch.testing.assert_close(images.cpu(), want, rtol=0, atol=1e-7)


def test_benchmark_script_prints_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import runpy

    path = Path(__file__).parents[2] / "benchmarks" / "loader.py"
    main = runpy.run_path(str(path))["main"]
    main(
        [
            "--device",
            "cpu",
            "--size",
            "8",
            "--n",
            "40",
            "--batch",
            "8",
            "--seconds",
            "0.05",
            "--folder",
            str(tmp_path),
        ]
    )
    header, _, row = capsys.readouterr().out.strip().splitlines()
    cells = dict(zip(header.split("|"), row.split("|")))
    values = {name.strip(): value.strip() for name, value in cells.items()}
    assert values["size"] == "8²"
    assert values["batch"] == "8"
    assert float(values["images/s"].replace(",", "")) > 0
