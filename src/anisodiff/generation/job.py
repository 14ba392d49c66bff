"""Sampling jobs: images of many seeds, written one by one, resumable, shared among processes.

A job writes SEED.png, of a class SEED-CLASS.png, into a folder (`SampleFolder`), each complete or absent, with the
protocol. A .zip, .npz or .png (a grid) is made from a folder FILE.parts at the end; the same images give the same
bytes.
"""

import shutil
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from anisodiff.generation.classes import ClassChoice
from anisodiff.generation.config import SamplingConfig
from anisodiff.generation.figures import save_sample_grid
from anisodiff.generation.generator import Generator
from anisodiff.generation.priors import Leakage
from anisodiff.generation.protocol import FILES, NAME, RECORD, describe, differences, path_of, read_protocol
from anisodiff.generation.reverse import check_seeds, counting
from anisodiff.io.atomic import clear_orphans, replacing
from anisodiff.io.checkpoint import alone
from anisodiff.io.grids import to_pixels
from anisodiff.io.picture_folder import PART, PictureFolder, read_picture
from anisodiff.io.records import json_text, write_json
from anisodiff.io.tensor_files import Observe, unobserved
from anisodiff.runtime.distributed import Distributed
from anisodiff.runtime.progress import Progress, no_progress
from anisodiff.tensors import highest_precision


@dataclass(frozen=True, kw_only=True)
class SamplingOutcome:
    """What a job has written."""

    path: Path
    count: int
    made: int
    """Images made by this call, by all processes; the others existed."""
    spent: int
    """NFE of this call, by all processes: an incomplete batch of samples is made again as a whole."""
    seconds: float
    protocol: dict[str, Any]


class SampleFolder(PictureFolder):
    """A folder of samples, SEED.png or SEED-CLASS.png, with their protocol."""

    def __init__(
        self, path: Path, seeds: Sequence[int], choice: ClassChoice | None = None, observe: Observe = unobserved
    ) -> None:
        suffixes = {} if choice is None else choice.suffixes(seeds)
        self.choice = choice
        self.by_seed = {seed: path / f"{seed:08d}{suffixes.get(seed, '')}.png" for seed in seeds}
        super().__init__(path, RECORD, NAME, list(self.by_seed.values()), observe)

    def remove(self) -> None:
        """Remove the images, then the protocol: what a kill leaves of the folder is still known for what it is."""
        for entry in sorted(self.path.iterdir(), key=lambda entry: entry.name == NAME):
            if entry.suffix in (".png", ".json", PART):
                self.observe("remove")
                entry.unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def _member(name: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))  # no clock in the bytes


def _zip(folder: SampleFolder, protocol: Mapping[str, Any], out: Path) -> None:
    """SEED.png in ascending order, and the protocol."""
    with replacing(out) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for file in folder.files:
            archive.writestr(_member(file.name), file.read_bytes())
        archive.writestr(_member(NAME), json_text(protocol))


def _npz(folder: SampleFolder, protocol: Mapping[str, Any], out: Path) -> None:
    """``images`` uint8 [N, H, W, C], ``seeds`` and, of classes, ``labels`` int64 [N]; one image at a time."""
    seeds = list(folder.by_seed)
    with replacing(out) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        with archive.open(_member("images.npy"), "w", force_zip64=True) as stream:
            shape = (len(folder.files), *read_picture(folder.files[0]).shape)
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
            for file in folder.files:
                pixels = read_picture(file)
                if pixels.shape != shape[1:]:
                    raise ValueError(f"{file} is {pixels.shape}, expected {shape[1:]}: remove it, run again")
                stream.write(pixels.tobytes())
        with archive.open(_member("seeds.npy"), "w") as stream:
            np.lib.format.write_array(stream, np.array(seeds, dtype=np.int64), allow_pickle=False)
        if folder.choice is not None:
            with archive.open(_member("labels.npy"), "w") as stream:
                np.lib.format.write_array(stream, folder.choice.labels(seeds).numpy(), allow_pickle=False)


def _grid(folder: SampleFolder, protocol: Mapping[str, Any], out: Path) -> None:
    save_sample_grid([read_picture(file) for file in folder.files], list(folder.by_seed), folder.choice, out)


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
    out, seeds = Path(out), tuple(sorted(set(check_seeds(seeds))))
    check_out(out)
    generator.check_condition(None, len(seeds))
    size = generator.batch if config.batch is None else config.batch
    started, distributed = time.perf_counter(), distributed or Distributed(generator.device)
    prior, reverse = generator.named_prior(config.prior_name), generator.reverse_process(config)
    protocol = describe(generator, prior, reverse, seeds, leakage, size)
    join = JOINS.get(out.suffix.lower())
    parts_of = out if join is None else out.with_name(f"{out.name}.parts")
    folder = SampleFolder(parts_of, seeds, reverse.classes, observe)

    def missing() -> set[int]:
        files = set(folder.begin(protocol))
        todo = {seed for seed, file in folder.by_seed.items() if file in files}
        if not todo and join is None:
            all_of_them = "the image is" if len(seeds) == 1 else f"all {len(seeds)} images are"
            say(f"{all_of_them} already in {out}: nothing to do")
        elif len(todo) < len(seeds):
            say(f"continuing: {len(seeds) - len(todo)} of {len(seeds)} images are already there")
        return todo

    def outcome(made: int, spent: float) -> SamplingOutcome:
        return SamplingOutcome(
            path=out, count=len(seeds), made=made, spent=round(spent), seconds=time.perf_counter() - started,
            protocol=protocol,
        )  # fmt: skip

    distributed.agree(lambda: _check_overwriting(folder, out, protocol))
    if join is not None and distributed.agree(lambda: _finished(out, protocol)):
        if distributed.leads and folder.path.is_dir():  # of a job that was killed while it removed them
            with alone(folder.path):
                folder.remove()
        say(f"{out} is already there, made in the same way: nothing to do")
        return outcome(0, 0)
    with ExitStack() as held:
        distributed.agree(lambda: held.enter_context(alone(folder.path)))
        todo: set[int] = distributed.agree(missing)
        size = max(1, min(size, len(seeds)))
        # batches of all seeds, not of the missing ones: rounding depends on the batch, and a restart must give the
        # same bytes
        parts = [seeds[first : first + size] for first in range(0, len(seeds), size)]
        parts = [part for part in parts if not todo.isdisjoint(part)]
        parts = parts[distributed.rank :: distributed.world]
        count, spent = counting(progress, reverse.nfe, sum(map(len, parts)) * reverse.nfe), 0.0
        for part in parts:
            result = generator.sample_with(reverse, part, prior.prior, batch=size, callback=count)
            spent += result.nfe * len(part)
            for seed, pixels in zip(part, to_pixels(result.images)):
                if seed in todo:
                    folder.write(folder.by_seed[seed], pixels)
        own = torch.tensor(spent, dtype=highest_precision(distributed.device), device=distributed.device)
        spent = float(distributed.total(own))  # and all have written
        if join is not None and distributed.leads:
            clear_orphans(out)
            try:
                join(folder, protocol, out)
                write_json(path_of(out), protocol)
            except ValueError as error:
                raise ValueError(f"{error}; all {len(seeds)} images are kept in {folder.path}") from None
            folder.remove()
    if join is not None and distributed.leads:
        with suppress(OSError):
            folder.path.rmdir()  # on Windows it held the lock until now
    return outcome(len(todo), spent)


def _check_overwriting(folder: SampleFolder, out: Path, protocol: dict[str, Any]) -> None:
    """Refuse to mix with, or overwrite, other samples; a grid may be drawn again."""
    folder.check(protocol, differences)
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
