"""Samples on disk, one file per batch; a batch that exists is not generated again.

FOLDER/FIRST-LAST.npz    images uint8 [n, C, H, W] of the seeds FIRST … LAST, the seconds they took, ``warm``: whether
                         an earlier batch has paid for compilation, and the NFE of each under an adaptive sampler
"""

import math
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisodiff.experiments.budget import Deadline
from anisodiff.experiments.layout import MADE, read_json, save_arrays, shown
from anisodiff.generation import Generator
from anisodiff.generation.protocol import describe, differences
from anisodiff.io.arrays import read_npz, read_pixels
from anisodiff.io.atomic import without_folders
from anisodiff.io.images import to_bytes
from anisodiff.io.records import write_json
from anisodiff.metrics import ImageSet
from anisodiff.runtime.progress import StageProgress
from anisodiff.samplers import SampleResult

SHOWN = 32
"""Images kept among the results."""


class Failed(Exception):
    """A run cannot do what was asked: a result, not the end of a study."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A prior and an NFE."""

    prior: str
    steps: int

    @property
    def name(self) -> str:
        return f"{self.prior}-{self.steps}"


@dataclass(frozen=True)
class Chunks:
    """The batches in a folder."""

    folder: Path

    def ranges(self) -> list[tuple[int, int, Path]]:
        """(first, last + 1, file), ascending; files cut off by a crash are left out."""
        found = []
        for path in self.folder.glob("[!.]*-*.npz"):
            first, last = path.stem.split("-")
            if path.is_file() and zipfile.is_zipfile(path):
                found.append((int(first), int(last) + 1, path))
        return sorted(found)

    def missing(self, n: int, batch: int) -> Iterator[range]:
        """Missing rows of 0 … n − 1, at most ``batch`` at a time."""
        done = 0
        for first, end in [*((a, b) for a, b, _ in self.ranges()), (n, n)]:
            while done < min(first, n):
                yield range(done, min(done + batch, first, n))
                done = min(done + batch, first, n)
            done = max(done, end)

    def put(self, rows: range, pixels: Tensor, seconds: float, *, warm: bool, nfe: float | None = None) -> None:
        """Write uint8 images [n, C, H, W] as one file, complete or absent."""
        file, images = self.folder / f"{rows[0]:08d}-{rows[-1]:08d}.npz", pixels.cpu().numpy()
        save_arrays(file, images=images, seconds=seconds, warm=warm, nfe=math.nan if nfe is None else nfe)

    def read(self, *keys: str) -> Iterator[tuple[Any, ...]]:
        """The arrays of these names, file after file."""
        for _, _, path in self.ranges():
            stored = {**read_npz(path, *keys), **({"images": read_pixels(path)} if "images" in keys else {})}
            yield tuple(stored[key] for key in keys)

    def first(self, n: int) -> NDArray[np.uint8]:
        """The images that the page shows."""
        held: list[NDArray[np.uint8]] = []
        for (images,) in self.read("images"):
            held.append(images)
            if sum(map(len, held)) >= n:
                break
        return shown(np.concatenate(held), n)

    def seconds_per_image(self) -> float:
        """Without first batches, unless there are no others."""
        times = [(float(s), len(i), bool(warm)) for s, i, warm in self.read("seconds", "images", "warm")]
        usual = [(s, n) for s, n, warm in times if warm] or [(s, n) for s, n, _ in times]
        return sum(s for s, _ in usual) / sum(n for _, n in usual)

    def nfe(self) -> float | None:
        """Mean NFE of an adaptive sampler; None where it is the same for all."""
        found = [(float(nfe), len(images)) for nfe, images in self.read("nfe", "images")]
        total = sum(nfe * count for nfe, count in found)
        return None if math.isnan(total) else total / sum(count for _, count in found)

    def image_set(self, name: str, n: int) -> ImageSet:
        """For the metrics: batches of equal size."""

        def read(size: int) -> Iterator[Tensor]:
            rest = np.empty((0,), dtype=np.uint8)
            for (images,) in self.read("images"):
                rest = images if not len(rest) else np.concatenate([rest, images])
                while len(rest) >= size:
                    yield torch.from_numpy(rest[:size].copy())
                    rest = rest[size:]
            if len(rest):
                yield torch.from_numpy(rest.copy())

        return ImageSet(name=name, open=read, count=n)


class SampleWriter:
    """Fills folders with samples of one generator until the deadline; its first batch is not ``warm``."""

    def __init__(
        self, generator: Generator, batch: int | None, deadline: Deadline, progress: StageProgress,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.generator, self.batch, self.warm = generator, batch or generator.batch, False
        self.deadline, self.progress, self.say = deadline, progress, say
        self._leakage: dict[str, Any] = {}

    def fill(self, chunks: Chunks, n: int, make: Callable[[range], Tensor | SampleResult], stage: str) -> bool:
        """Write rows 0 … n − 1 by ``make``; whether all are there. What ``make`` refuses, and NaN, is a `Failed`."""
        took = 0.0
        for rows in chunks.missing(n, self.batch):
            if self.deadline.over(took):
                return False
            begin = time.perf_counter()
            try:
                found = make(rows)
                took = time.perf_counter() - begin
                images, nfe = found if isinstance(found, SampleResult) else (found, None)
                pixels = to_bytes(images)
            except ValueError as error:
                raise Failed(str(error)) from None
            chunks.put(rows, pixels, took, warm=self.warm, nfe=nfe)
            self.warm = True
            self.progress(stage, rows[-1] + 1, n)
        return True

    def column(self, folder: Path, column: Column, sampler: str, n: int, stage: str) -> dict[str, Any] | None:
        """Write samples of the seeds 0 … n − 1; their protocol, or None where the deadline came first."""
        generator = self.generator
        try:
            start = generator.named_prior(column.prior)
            reverse = generator.reverse_process(steps=column.steps, sampler=sampler)
        except ValueError as error:
            raise Failed(str(error)) from None
        if generator.process.conditional:
            raise Failed("it makes images from cartoons, not from noise alone: see anisodiff edit --cartoon")
        held = read_json(folder / "protocol.json", MADE)
        first = column.prior not in self._leakage
        if held is None and first:
            self._leakage[column.prior] = start.leakage(generator.device)
        leakage = self._leakage.get(column.prior)
        protocol = describe(generator, start, reverse, range(n), leakage, self.batch)
        protocol["note"] = start.note(leakage)
        protocol["checkpoint_path"] = without_folders(protocol["checkpoint_path"])  # it will be published
        if held is not None:
            if different := differences(held, protocol):
                raise ValueError(f"{folder} holds other samples: {'; '.join(different)}; delete it to start again")
            protocol |= {key: held[key] for key in ("leakage", "note")}
        write_json(folder / "protocol.json", protocol)
        chunks = Chunks(folder)
        if protocol["note"] and held is None and first:
            self.say(f"{folder.parent.name}, prior {column.prior}: {protocol['note']}")

        def make(rows: range) -> SampleResult:
            return generator.sample_with(reverse, rows, start.prior, batch=self.batch)

        if not self.fill(chunks, n, make, stage):
            return None
        if (mean := chunks.nfe()) not in (None, reverse.nfe):
            protocol["mean_nfe"] = mean
        return {**protocol, "seconds_per_image": chunks.seconds_per_image(), "batch": self.batch}
