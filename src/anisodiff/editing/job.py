"""Editing jobs: pictures × times × seeds, each result written when it is made, resumable.

    OUT/tTIME/NAME-SEED.png     results;  OUT/tTIME-mean/NAME.png, their mean over the seeds, when restoring
    OUT/input/NAME.png          the pictures in the model's size;  OUT/strokes/NAME.png, their paintings
    OUT/edit.json               the record (`io.records`): everything that fixes the pixels

Every file is complete or absent.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from anisodiff.editing.inputs import Picture
from anisodiff.editing.sdedit import edit, restore
from anisodiff.editing.strength import noise_level, strength_of_t
from anisodiff.generation import Generator, SamplingStep
from anisodiff.generation.reverse import Callback, check_seeds
from anisodiff.io import records
from anisodiff.io.atomic import replacing
from anisodiff.io.grids import to_pixels
from anisodiff.io.images import DecodeError, decode, open_image
from anisodiff.io.schema import anything, fields, table
from anisodiff.runtime.progress import Progress, no_progress

NAME = "edit.json"
MAY_GROW = ("strengths", "noise_levels", "pictures")
"""Tables of the record that a later job may add to; everything else fixes the pixels."""
RECORD = records.RecordKind("anisodiff edits", 3, shape=fields(**dict.fromkeys(MAY_GROW, table(anything))))


@dataclass(frozen=True, kw_only=True)
class EditConfig:
    """How every picture is edited."""

    times: tuple[float, ...]
    seeds: tuple[int, ...]
    steps: int = 50
    sampler: str = "auto"
    repeats: int = 1
    restore: bool = False
    strokes: str | None = None
    """A description of how the paintings were made; None: the pictures as they are."""

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ValueError("candidates: got 0, expected 1 or more for every picture")
        check_seeds(self.seeds)
        if not self.times:
            raise ValueError("times: got none, expected one at least")
        if self.repeats < 1:
            raise ValueError(f"repeats: got {self.repeats}, expected 1 or more")
        if self.restore and (self.repeats > 1 or self.strokes is not None):
            raise ValueError("restoring starts from the picture itself: omit --repeats and --strokes")

    def apply(
        self, generator: Generator, images: Tensor, t: float, seeds: Sequence[int], mask: Tensor | None = None,
        callback: Callback | None = None,
    ) -> Tensor:  # fmt: skip
        """Results [B, C, H, W] of ``images`` [B, C, H, W], one for every seed."""
        how: Callable[..., Tensor] = restore if self.restore else partial(edit, repeats=self.repeats)
        return how(
            generator, images, seeds=seeds, t=t, steps=self.steps, sampler=self.sampler, mask=mask, callback=callback
        )


@dataclass(frozen=True, kw_only=True)
class EditingOutcome:
    """What a job has written."""

    path: Path
    count: int
    made: int
    """Results of this call; the others existed."""
    nfe: int
    """Of this call, all results together."""
    seconds: float
    protocol: dict[str, Any]


def write_edits(
    generator: Generator,
    pictures: Sequence[Picture],
    config: EditConfig,
    out: str | Path,
    *,
    mask: Tensor | None = None,
    say: Callable[[str], None] = lambda _: None,
    progress: Progress = no_progress,
) -> EditingOutcome:
    """Every picture at every time with every seed, into a folder; ``progress`` counts NFE."""
    out, begun = Path(out), time.perf_counter()
    costs = {t: generator.route(config.sampler, config.steps, t).nfe for t in config.times}
    protocol = _continued(out, _describe(generator, pictures, config, mask))
    jobs = [(t, k, seed) for t in config.times for k in range(len(pictures)) for seed in config.seeds]
    todo = [job for job in jobs if not complete(result_path(out, pictures[job[1]].name, job[0], job[2]))]
    if len(todo) < len(jobs):
        say(f"continuing: {len(jobs) - len(todo)} of {len(jobs)} results are already in {out}")
    total, spent, made = config.repeats * sum(costs[t] for t, _, _ in todo), 0, 0
    try:
        records.write_json(out / NAME, protocol)
        _save_inputs(out, pictures, config)
        for t in config.times:
            rows = [(k, seed) for when, k, seed in todo if when == t]
            for part in (rows[i : i + generator.batch] for i in range(0, len(rows), generator.batch)):
                callback = _count_nfe(progress, spent, total, costs[t])
                starts = torch.stack([pictures[k].start for k, _ in part])
                results = config.apply(generator, starts, t, [seed for _, seed in part], mask, callback)
                for (k, seed), image in zip(part, results):
                    save_png(result_path(out, pictures[k].name, t, seed), image)
                    made += 1
                spent += len(part) * config.repeats * costs[t]
        if config.restore and len(config.seeds) > 1:
            _save_means(out, pictures, config)
    except ValueError as error:
        if not str(error).startswith("cannot write"):
            raise
        finished = len(jobs) - len(todo) + made
        raise ValueError(
            f"{error}; {finished} finished results are kept: the same command again makes the rest"
        ) from None
    return EditingOutcome(
        path=out, count=len(jobs), made=made, nfe=spent, seconds=time.perf_counter() - begun,
        protocol=protocol,
    )  # fmt: skip


def _count_nfe(progress: Progress, spent: int, total: int, cost: int) -> Callback:
    """Reports every step of a batch, through all its repeats."""
    passed = 0

    def report(step: SamplingStep) -> None:
        nonlocal passed
        progress(spent + len(step.seeds) * cost * (passed * step.of + step.number) // step.of, total)
        passed += step.number == step.of

    return report


def _save_inputs(out: Path, pictures: Sequence[Picture], config: EditConfig) -> None:
    for picture in pictures:
        save_png(out / "input" / f"{picture.name}.png", picture.photo)
        if config.strokes is not None:
            save_png(out / "strokes" / f"{picture.name}.png", picture.start)


def _save_means(out: Path, pictures: Sequence[Picture], config: EditConfig) -> None:
    for t in config.times:
        for picture in pictures:
            results = [read_png(result_path(out, picture.name, t, seed)) for seed in config.seeds]
            save_png(out / f"t{t:g}-mean" / f"{picture.name}.png", torch.stack(results).mean(0))


def _describe(
    generator: Generator, pictures: Sequence[Picture], config: EditConfig, mask: Tensor | None
) -> dict[str, Any]:
    """Everything that fixes the pixels; only plain values."""
    strengths = {f"{t:g}": strength_of_t(generator.model, t) for t in config.times}
    return RECORD.new(
        {
            "checkpoint": generator.origin.model,
            "process": generator.process.identity(),
            "t_min": generator.plan.config.t_min,
            "size": generator.size,
            "sampler": str(generator.route(config.sampler, config.steps, config.times[0]).sampler),
            "steps": config.steps,
            "repeats": config.repeats,
            "restore": config.restore,
            "strokes": config.strokes,
            "mask": None if mask is None else hashlib.sha256(mask.cpu().numpy().tobytes()).hexdigest(),
            "strengths": strengths,
            "noise_levels": {t: noise_level(s) for t, s in strengths.items()},
            "pictures": {picture.name: picture.fingerprint for picture in pictures},
        }
    )


def check_out(out: Path) -> None:
    """A folder of edits, an empty one, or none yet."""
    RECORD.check_folder(out, NAME)


def _continued(out: Path, new: dict[str, Any]) -> dict[str, Any]:
    """The record to write: that of ``out`` with more pictures or times; edits made in another way are refused."""
    check_out(out)
    old = RECORD.read(out / NAME)
    if old is not None and (different := records.differences(old, new, may_grow=MAY_GROW)):
        raise ValueError(f"{out} holds edits made in another way: {'; '.join(different)}; choose another --out")
    return records.merged(old, new, MAY_GROW)


def result_path(out: Path, name: str, t: float, seed: int) -> Path:
    """The file of a result."""
    return out / f"t{t:g}" / f"{name}-{seed:04d}.png"


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
