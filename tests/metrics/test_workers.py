from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch
from torch import nn

from anisodiff.metrics import Report, Workers, current_workers, evaluate, function_network, image_set, survey

from .conftest import random_images


def quadrants(images: torch.Tensor) -> torch.Tensor:
    return nn.functional.adaptive_avg_pool2d(images.float() / 255, 2).flatten(1)


def measure(cache: Path, workers: Workers) -> Report:
    return evaluate(
        random_images(700, seed=1),
        random_images(600, seed=2),
        network=function_network("quadrants", quadrants),
        cache=cache,
        workers=workers,
    )


def work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder / 'meeting'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    workers = current_workers()
    assert (workers.rank, workers.world) == (rank, 2)
    for cache in ("first", "first", "second"):  # the second time from the cache
        report = measure(folder / cache, workers)
    (folder / f"{rank}.json").write_text(report.to_json())
    torch.distributed.destroy_process_group()


def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(rank, tmp_path)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    alone = measure(tmp_path / "alone", current_workers())
    for rank in range(2):
        assert Report.from_json((tmp_path / f"{rank}.json").read_text()) == alone


def test_shares_cover_every_batch_once_and_once_sets_are_own_parts() -> None:
    for world in (1, 2, 3):
        workers = [Workers(rank=r, world=world) for r in range(world)]
        assert all(sum(w.mine(batch) for w in workers) == 1 for batch in range(10))
    with pytest.raises(ValueError, match="rank must lie in 0 … 1"):
        Workers(rank=2, world=2)
    images, network = random_images(12), function_network("quadrants", quadrants)
    own = survey(image_set(iter(images.split(4))), network, workers=Workers(rank=1, world=2))
    assert own.count == 12
