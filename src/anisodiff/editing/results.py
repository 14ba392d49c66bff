"""Results of a job, one picture file each: written when it is made, complete or absent, and the rest made later."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from anisodiff.generation import SamplingStep
from anisodiff.generation.reverse import Callback
from anisodiff.io import records
from anisodiff.io.atomic import replacing
from anisodiff.io.grids import to_pixels
from anisodiff.io.images import DecodeError, decode, open_image
from anisodiff.runtime.progress import Progress, no_progress


@dataclass(frozen=True, kw_only=True)
class Task:
    """One result: the file, the number of its picture, its seed, the time it starts from, and the NFE it costs."""

    path: Path
    picture: int
    seed: int
    t: float
    cost: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a job has written."""

    path: Path
    count: int
    made: int
    """Results of this call; the others existed."""
    nfe: int
    """Of this call, all results together."""
    seconds: float
    protocol: dict[str, Any]


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
        before: Callable[[], None],
        after: Callable[[], None],
        say: Callable[[str], None] = lambda _: None,
        progress: Progress = no_progress,
    ) -> Outcome:
        """Make all missing results, images [B, C, H, W] of some tasks; other files are written before and after."""
        begun, out, made, spent = time.perf_counter(), self.out, 0, 0
        protocol = continued(self.kind, self.name, out, self.record, self.may_grow)
        todo = [task for task in self.tasks if not complete(task.path)]
        if len(todo) < len(self.tasks):
            say(f"continuing: {len(self.tasks) - len(todo)} of {len(self.tasks)} results are already in {out}")
        total = self.passes * sum(task.cost for task in todo)
        try:
            records.write_json(out / self.name, protocol)
            before()
            for t in dict.fromkeys(task.t for task in todo):
                rows = [task for task in todo if task.t == t]
                for part in (rows[i : i + self.batch] for i in range(0, len(rows), self.batch)):
                    results = make(part, _count_nfe(progress, spent, total, part[0].cost))
                    for task, image in zip(part, results):
                        save_png(task.path, image)
                        made += 1
                    spent += self.passes * sum(task.cost for task in part)
            after()
        except ValueError as error:
            if not str(error).startswith("cannot write"):
                raise
            finished = len(self.tasks) - len(todo) + made
            raise ValueError(
                f"{error}; {finished} finished results are kept: the same command again makes the rest"
            ) from None
        return Outcome(
            path=out, count=len(self.tasks), made=made, nfe=spent, seconds=time.perf_counter() - begun,
            protocol=protocol,
        )  # fmt: skip


def _count_nfe(progress: Progress, spent: int, total: int, cost: int) -> Callback:
    """Reports every step of a batch, through all its passes."""
    before = 0

    def report(step: SamplingStep) -> None:
        nonlocal before
        now = before + len(step.seeds) * cost * step.number // step.of
        progress(spent + now, total)
        before = now if step.number == step.of else before

    return report


def continued(
    kind: records.RecordKind, name: str, out: Path, new: dict[str, Any], may_grow: Collection[str]
) -> dict[str, Any]:
    """The record to write: that of ``out`` with more in the tables that may grow; other results are refused."""
    kind.check_folder(out, name)
    old = kind.read(out / name)
    if old is not None and (different := records.differences(old, new, may_grow=may_grow)):
        what = kind.noun
        raise ValueError(f"{out} holds {what} made in another way: {'; '.join(different)}; choose another --out")
    return records.merged(old, new, may_grow)


def save_means(paths: Sequence[Path], target: Path) -> None:
    """The mean of some results."""
    save_png(target, torch.stack([read_png(path) for path in paths]).mean(0))


def read_png(path: Path) -> Tensor:
    """A picture written by `save_png`, [C, H, W] in [0, 1]."""
    pixels = np.array(decode(lambda: open_image(path)))
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1).float() / 255


def complete(path: Path) -> bool:
    """Whether a picture exists and can be decoded."""
    try:
        return path.is_file() and bool(read_png(path).numel())
    except DecodeError:
        return False


def save_png(path: Path, image: Tensor) -> None:
    """Write a picture [C, H, W] in [0, 1], rounded to bytes."""
    pixels = to_pixels(image[None])[0]
    with replacing(path) as temporary:
        Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(temporary)
