"""Sampling jobs: images of many seeds, written one by one, resumable, shared among processes.

A job writes SEED.png, of a class SEED-CLASS.png, into a folder (`SampleFolder`), each complete or absent, with the
protocol. A .zip, .npz or .png
(a grid) is made from a folder FILE.parts at the end; the same images give the same bytes.
"""

import errno
import io
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from PIL import Image

from anisodiff.generation.classes import ClassChoice
from anisodiff.generation.generator import Generator
from anisodiff.generation.priors import Leakage
from anisodiff.generation.protocol import FILES, NAME, RECORD, describe, differences, path_of, read_protocol
from anisodiff.generation.reverse import Route, SamplingStep, check_seeds
from anisodiff.io.atomic import atomic, clear_orphans, replacing
from anisodiff.io.checkpoint import alone
from anisodiff.io.grids import Pixels, save_grid, to_pixels
from anisodiff.io.images import DecodeError, decode, open_image, whole_png
from anisodiff.io.records import json_text, write_json
from anisodiff.io.tensor_files import Observe, unobserved
from anisodiff.models.guidance import Guidance
from anisodiff.runtime.distributed import Distributed
from anisodiff.runtime.progress import Progress, no_progress
from anisodiff.tensors import highest_precision

_PART = ".part"


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How samples are made; see `Generator.sample`."""

    steps: int = 50
    sampler: str = "auto"
    prior: str = "auto"
    classes: str | None = None
    guidance: Guidance = Guidance()
    batch: int | None = None

    def route(self, generator: Generator) -> Route:
        """The route of a generator that samples so."""
        return generator.route(self.sampler, self.steps, classes=self.classes, guidance=self.guidance)


@dataclass(frozen=True, kw_only=True)
class SamplingOutcome:
    """What a job has written."""

    path: Path
    count: int
    made: int
    """Images made by this call, by all processes; the others existed."""
    nfe: int
    """Per image."""
    spent: int
    """NFE of this call, by all processes: an incomplete batch is made again as a whole."""
    seconds: float
    protocol: dict[str, Any]


class SampleFolder:
    """A folder of finished samples, SEED.png or SEED-CLASS.png, with their protocol."""

    def __init__(
        self, path: Path, observe: Observe = unobserved, choice: ClassChoice | None = None,
        seeds: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.path, self.observe, self.choice = path, observe, choice
        self.suffixes = {} if choice is None else choice.suffixes(seeds)

    def file(self, seed: int) -> Path:
        return self.path / f"{seed:08d}{self.suffixes.get(seed, '')}.png"

    def check(self, protocol: Mapping[str, Any]) -> None:
        """Refuse a folder that holds anything else than a part of the job of ``protocol``."""
        RECORD.check_folder(self.path, NAME)
        held = read_protocol(self.path)
        if held is not None and (different := differences(held, protocol)):
            raise ValueError(f"{self.path} holds other samples: {'; '.join(different)}; choose another --out")

    def begin(self, protocol: Mapping[str, Any], seeds: Iterable[int]) -> list[int]:
        """Write the protocol, remove the incomplete files of a killed job, and return the seeds still missing."""
        with self._disk_errors():
            self.path.mkdir(parents=True, exist_ok=True)
            names = {entry.name for entry in os.scandir(self.path)}
            for name in names:
                if name.endswith(_PART):
                    (self.path / name).unlink(missing_ok=True)
            if read_protocol(self.path) != protocol:  # none yet, or of fewer seeds
                write_json(self.path / NAME, protocol)
            return [seed for seed in seeds if self.file(seed).name not in names or not whole_png(self.file(seed))]

    def put(self, seed: int, pixels: Pixels) -> None:
        """Write the image ``pixels`` [H, W, 1 or 3] of a seed."""
        buffer = io.BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(buffer, "PNG")
        with self._disk_errors():
            self.observe("write")
            with atomic(self.file(seed), suffix=_PART, parents=False) as part:  # a removed folder is an error
                part.write_bytes(buffer.getvalue())
                self.observe("rename")

    def get(self, seed: int) -> Pixels:
        """The image of a seed, [H, W, 1 or 3]."""
        try:
            pixels = np.array(decode(lambda: open_image(self.file(seed))))
        except DecodeError as error:
            raise ValueError(f"{self.file(seed)} cannot be read ({error}): remove it and run again") from None
        return pixels[..., None] if pixels.ndim == 2 else pixels

    def remove(self) -> None:
        """Remove the images, then the protocol: what a kill leaves of the folder is still known for what it is."""
        for entry in sorted(self.path.iterdir(), key=lambda entry: entry.name == NAME):
            if entry.suffix in (".png", ".json", _PART):
                self.observe("remove")
                entry.unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        """An error of the disk as one line with the number of images that are safe."""
        try:
            yield
        except OSError as error:
            safe = sum(1 for _ in self.path.glob("*.png")) if self.path.is_dir() else 0
            remedy = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "repair it"
            shown = OSError(
                f"cannot write into {self.path}: {error.strerror or error}; {safe} finished images are kept there: "
                f"{remedy} and run the same command again"
            )
            shown.errno = error.errno
            raise shown from None


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))  # no clock in the bytes


def _zip(folder: SampleFolder, seeds: Sequence[int], protocol: Mapping[str, Any], out: Path) -> None:
    """SEED.png in ascending order, and the protocol."""
    with replacing(out) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for seed in seeds:
            archive.writestr(_member(folder.file(seed).name), folder.file(seed).read_bytes())
        archive.writestr(_member(NAME), json_text(protocol))


def _npz(folder: SampleFolder, seeds: Sequence[int], protocol: Mapping[str, Any], out: Path) -> None:
    """``images`` uint8 [N, H, W, C], ``seeds`` and, of classes, ``labels`` int64 [N]; one image at a time."""
    with replacing(out) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        with archive.open(_member("images.npy"), "w", force_zip64=True) as stream:
            shape = (len(seeds), *folder.get(seeds[0]).shape)
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
            for seed in seeds:
                pixels = folder.get(seed)
                if pixels.shape != shape[1:]:
                    raise ValueError(
                        f"{folder.file(seed)} is {pixels.shape}, expected {shape[1:]}: remove it, run again"
                    )
                stream.write(pixels.tobytes())
        with archive.open(_member("seeds.npy"), "w") as stream:
            np.lib.format.write_array(stream, np.array(seeds, dtype=np.int64), allow_pickle=False)
        if folder.choice is not None:
            with archive.open(_member("labels.npy"), "w") as stream:
                np.lib.format.write_array(stream, folder.choice.labels(seeds).numpy(), allow_pickle=False)


def _grid(folder: SampleFolder, seeds: Sequence[int], protocol: Mapping[str, Any], out: Path) -> None:
    save_grid([folder.get(seed) for seed in seeds], out)


JOINS = MappingProxyType(dict(zip(FILES, (_zip, _npz, _grid))))
"""By the suffix of the file; a folder is never joined."""


def check_out(out: Path) -> None:
    """A folder, or a file of a kind that can be written."""
    kinds = ", ".join(JOINS)
    if out.suffix.lower() not in JOINS:
        if out.suffix[1:].isalpha() and not out.is_dir():  # a mistyped file; but run-0.5 may be a folder
            raise ValueError(f"--out: got {out}, expected a folder or a file ending in {kinds}")
    elif out.is_dir():
        raise ValueError(f"--out: {out} is a folder, but its name ends as a file's; choose another name")


def write_samples(
    generator: Generator, seeds: Sequence[int], out: str | Path, config: SamplingConfig = SamplingConfig(), *,
    leakage: Leakage | None = None, distributed: Distributed | None = None,
    say: Callable[[str], None] = lambda _: None, progress: Progress = no_progress, observe: Observe = unobserved,
) -> SamplingOutcome:  # fmt: skip
    """Write the images of ``seeds`` to ``out``: a folder of SEED.png, or one .zip, .npz or .png (a grid).

    The same call again makes what is missing; one that would give other images is refused. Of W ``distributed``
    processes each makes every W-th batch. ``progress`` is called with (done, total) NFE of this process.
    """
    out, chosen = Path(out), tuple(sorted(set(check_seeds(seeds))))
    check_out(out)
    generator.check_condition(None, len(chosen))
    size = generator.batch if config.batch is None else config.batch
    if size < 1:
        raise ValueError(f"batch: got {size}, expected 1 or more")
    begun, distributed = time.perf_counter(), distributed or Distributed(generator.device)
    start, route = generator.start(config.prior), config.route(generator)
    protocol = describe(generator, start, route, chosen, leakage)
    join = JOINS.get(out.suffix.lower())
    parts_of = out if join is None else out.with_name(f"{out.name}.parts")
    folder = SampleFolder(parts_of, observe, route.classes, chosen)

    def missing() -> list[int]:
        todo = folder.begin(protocol, chosen)
        if not todo and join is None:
            say(f"all {len(chosen)} images are already in {out}: nothing to do")
        elif len(todo) < len(chosen):
            say(f"continuing: {len(chosen) - len(todo)} of {len(chosen)} images are already there")
        return todo

    def outcome(made: int, spent: float) -> SamplingOutcome:
        return SamplingOutcome(
            path=out, count=len(chosen), made=made, nfe=route.nfe, spent=round(spent),
            seconds=time.perf_counter() - begun, protocol=protocol,
        )  # fmt: skip

    distributed.agree(lambda: _check_overwriting(folder, out, protocol))
    if join is not None and distributed.agree(lambda: _finished(out, protocol)):
        if distributed.leads and folder.path.is_dir():  # of a job that was killed while it removed them
            with alone(folder.path):
                folder.remove()
        say(f"{out} is already there, made in the same way: nothing to do")
        return outcome(0, 0)
    with alone(folder.path) if distributed.leads else nullcontext():
        todo: set[int] = distributed.agree(lambda: set(missing()))
        size = max(1, min(size, len(chosen)))
        # batches of all seeds, not of the missing ones: rounding depends on the batch, and a restart must give the
        # same bytes
        parts = [chosen[first : first + size] for first in range(0, len(chosen), size)]
        parts = [part for part in parts if not todo.isdisjoint(part)]
        parts = parts[distributed.rank :: distributed.world]
        total, done, spent = sum(map(len, parts)) * route.nfe, 0, 0.0

        def watch(step: SamplingStep) -> None:
            progress(done + len(step.seeds) * route.nfe * step.number // step.of, total)

        for part in parts:
            found = generator.sample_along(route, part, start.prior, batch=size, callback=watch)
            spent += found.nfe * len(part)
            for seed, pixels in zip(part, to_pixels(found.images)):
                if seed in todo:
                    folder.put(seed, pixels)
            done += len(part) * route.nfe
        own = torch.tensor(spent, dtype=highest_precision(distributed.device), device=distributed.device)
        spent = float(distributed.total(own))  # and all have written
        if join is not None and distributed.leads:
            clear_orphans(out)
            try:
                join(folder, chosen, protocol, out)
                write_json(path_of(out), protocol)
            except ValueError as error:
                raise ValueError(f"{error}; all {len(chosen)} images are kept in {folder.path}") from None
            folder.remove()
    if join is not None and distributed.leads:
        with suppress(OSError):
            folder.path.rmdir()  # on Windows it held the lock until now
    return outcome(len(todo), spent)


def _check_overwriting(folder: SampleFolder, out: Path, protocol: dict[str, Any]) -> None:
    """Refuse to mix with, or overwrite, other samples; a grid may be drawn again."""
    folder.check(protocol)
    if folder.path == out or not out.exists() or out.suffix.lower() == ".png" or folder.path.is_dir():
        return  # a file beside its parts is this job's own: joined, parts not yet removed
    held = read_protocol(out)
    if held is None:
        raise ValueError(f"{out} already exists, and {path_of(out).name} is missing: choose another --out")
    if different := differences(held, protocol):
        raise ValueError(f"{out} holds other samples: {'; '.join(different)}; choose another --out")
    if held["seeds"] != protocol["seeds"]:
        raise ValueError(f"{out} holds seeds {held['seeds']} and is finished: choose another --out for more")


def _finished(out: Path, protocol: dict[str, Any]) -> bool:
    """Whether ``out`` is there and what the job would make."""
    held = read_protocol(out) if out.exists() else None
    return held is not None and held["seeds"] == protocol["seeds"] and not differences(held, protocol)
