from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from anisodiff.cli import main
from anisodiff.metrics import Context, Report, Settings, evaluate, function_network, image_set, image_statistics
from anisodiff.runtime.distributed import Distributed
from tests.metrics.conftest import Process, random_images, save_folder, save_network
from tests.support.children import together


def quadrants(images: torch.Tensor) -> torch.Tensor:
    return nn.functional.adaptive_avg_pool2d(images.float() / 255, 2).flatten(1)


def measure(cache: Path, distributed: Distributed | None = None) -> Report:
    return evaluate(
        random_images(700, seed=1),
        random_images(600, seed=2),
        network=function_network("quadrants", quadrants, weights="2×2"),
        context=Context(cache=cache, distributed=distributed),
    )


def command(folder: Path, name: str) -> None:
    """``anisodiff evaluate`` on the folders made below."""
    where = [folder / "samples", "--reference", folder / "reference", "--network", folder / "tiny.pt", "--trust-code"]
    options = ["--input", "unit", "--device", "cpu", "--batch", 8, "--sheet", folder / f"{name}.png"]
    sys.argv = ["anisodiff", "evaluate", *map(str, [*where, *options, "--json", folder / f"{name}.json"])]
    main.app(standalone_mode=False)


def work(rank: int, folder: Path) -> None:
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    command(folder, "both")  # joins the processes, as under torchrun
    distributed = Distributed(torch.device("cpu"))
    assert (distributed.rank, distributed.world) == (rank, 2)
    for cache in ("first", "first", "second"):  # the second time from the cache
        report = measure(folder / cache, distributed)
    (folder / f"{rank}.json").write_text(report.to_json())


def test_two_processes_find_what_one_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    save_network(tmp_path / "tiny.pt")
    save_folder(random_images(45, seed=1), tmp_path / "samples")
    save_folder(random_images(50, seed=2), tmp_path / "reference")
    together(lambda rank: work(rank, tmp_path))
    assert capfd.readouterr().out.count("| fid ") == 1  # one of them speaks
    alone = measure(tmp_path / "alone")
    for rank in range(2):
        assert Report.from_json((tmp_path / f"{rank}.json").read_text()) == alone
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(sys, "argv", [])
    command(tmp_path, "one")
    for kind in ("json", "png"):
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"both.{kind}").read_bytes()


def test_each_batch_is_one_process_work_and_once_sets_are_own_parts() -> None:
    images, network = random_images(12), function_network("quadrants", quadrants, weights="2×2")
    settings = Settings(batch_size=2)
    for world in (1, 2, 3):
        parts = [
            image_statistics(
                image_set(images), network, settings=settings, context=Context(distributed=Process(r, world))
            )
            for r in range(world)
        ]
        found = [digest for part in parts for digest in part.digests]
        assert sorted(found) == sorted(image_statistics(image_set(images), network).digests)
    own = image_statistics(image_set(iter(images.split(4))), network, context=Context(distributed=Process(1, 2)))
    assert own.count == 12
