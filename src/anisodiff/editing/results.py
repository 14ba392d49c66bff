"""Results of a job, one picture each, in a folder that the same job continues (`io.picture_folder`)."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisodiff.generation import SamplingConfig, SamplingOutcome
from anisodiff.generation.reverse import Callback, ReverseProcess, counting
from anisodiff.io import records
from anisodiff.io.checkpoint import alone
from anisodiff.io.grids import to_pixels
from anisodiff.io.images import to_unit
from anisodiff.io.picture_folder import PictureFolder, read_picture
from anisodiff.runtime.progress import Progress, no_progress


@dataclass(frozen=True, kw_only=True)
class Task:
    """One result: the file, the number of its picture, its seed, the time it starts from, and the NFE it costs."""

    path: Path
    picture: int
    seed: int
    t: float
    cost: int


def batch_size(reverse: ReverseProcess, config: SamplingConfig, default: int) -> int:
    """Results at a time. A sampler that looks at its batch gets one: a continued job has other neighbors."""
    return 1 if reverse.sampler.depends_on_batch else config.batch or default


@dataclass(frozen=True, kw_only=True)
class Job:
    """A folder with a record (`io.records`) of everything that fixes the pixels, and the results to be made in it."""

    out: Path
    kind: records.RecordKind
    name: str
    """The record's file."""
    record: dict[str, Any]
    may_grow: Collection[str]
    """Tables of the record that a later job may add to."""
    tasks: Sequence[Task]
    batch: int
    """Results at a time; those of one batch start from one time."""
    passes: int = 1
    """Through the sampler, for each result."""

    def write(
        self,
        make: Callable[[Sequence[Task], Callback], Tensor],
        *,
        before: Callable[[PictureFolder], None],
        after: Callable[[PictureFolder], None],
        say: Callable[[str], None] = lambda _: None,
        progress: Progress = no_progress,
    ) -> SamplingOutcome:
        """Make all missing results, images [B, C, H, W] of some tasks; other files are written before and after."""
        started, out, spent = time.perf_counter(), self.out, 0
        folder = PictureFolder(out, self.kind, self.name, [task.path for task in self.tasks])
        held = folder.check(self.record, partial(records.differences, may_grow=self.may_grow))
        protocol = records.merged(held, self.record, self.may_grow)
        with alone(out):
            missing = set(folder.begin(protocol))
            todo = [task for task in self.tasks if task.path in missing]
            if len(todo) < len(self.tasks):
                say(f"continuing: {len(self.tasks) - len(todo)} of {len(self.tasks)} results are already in {out}")
            total = self.passes * sum(task.cost for task in todo)
            before(folder)
            for t in dict.fromkeys(task.t for task in todo):
                rows = [task for task in todo if task.t == t]
                for part in (rows[i : i + self.batch] for i in range(0, len(rows), self.batch)):
                    results = make(part, counting(progress, part[0].cost, total, spent))
                    for task, pixels in zip(part, to_pixels(results)):
                        folder.write(task.path, pixels)
                    spent += self.passes * sum(task.cost for task in part)
            after(folder)
        return SamplingOutcome(
            path=out, count=len(self.tasks), made=len(todo), spent=spent, seconds=time.perf_counter() - started,
            protocol=protocol,
        )  # fmt: skip


def save_means(folder: PictureFolder, paths: Sequence[Path], target: Path) -> None:
    """The mean of some results."""
    save_image(folder, target, torch.stack([read_result(path) for path in paths]).mean(0))


def read_result(path: Path) -> Tensor:
    """A picture of the folder, [C, H, W] in [0, 1]."""
    return to_unit(read_picture(path).transpose(2, 0, 1))


def save_image(folder: PictureFolder, path: Path, image: Tensor) -> None:
    """Write a picture [C, H, W] in [0, 1], rounded to bytes."""
    folder.write(path, to_pixels(image)[0])
