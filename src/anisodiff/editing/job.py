"""Editing jobs: pictures × times × seeds, each result written when it is made, resumable.

    OUT/tTIME/NAME-SEED.png     results;  OUT/tTIME-mean/NAME.png, their mean over the seeds, when restoring
    OUT/input/NAME.png          the pictures in the model's size;  OUT/strokes/NAME.png, their paintings
    OUT/edit.json               the record (`io.records`): everything that fixes the pixels

Every file is complete or absent.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisodiff.editing.inputs import Picture
from anisodiff.editing.results import Job, Task, batch_size, save_image, save_means
from anisodiff.editing.sdedit import edit, from_cartoon, restore
from anisodiff.editing.strength import noise_level, strength_of_t
from anisodiff.generation import Generator, SamplingConfig, SamplingOutcome
from anisodiff.generation.protocol import conditions_of
from anisodiff.generation.reverse import Callback, check_seeds
from anisodiff.io import records
from anisodiff.io.picture_folder import PictureFolder
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
    sampling: SamplingConfig = SamplingConfig()
    """Its classes: what the results are to show; None: the null label."""
    repeats: int = 1
    restore: bool = False
    cartoon: bool = False
    """The pictures are cartoons: see `sdedit.from_cartoon`."""
    strokes: str | None = None
    """A description of how the paintings were made; None: the pictures as they are."""

    def __post_init__(self) -> None:
        check_seeds(self.seeds)

    def apply(
        self, generator: Generator, images: Tensor, t: float, seeds: Sequence[int], mask: Tensor | None = None,
        callback: Callback | None = None,
    ) -> Tensor:  # fmt: skip
        """Results [B, C, H, W] of ``images`` [B, C, H, W], one for every seed."""
        if self.cartoon:
            return from_cartoon(generator, images, self.sampling, seeds=seeds, t=t, callback=callback)
        how: Callable[..., Tensor] = restore if self.restore else partial(edit, repeats=self.repeats)
        return how(generator, images, self.sampling, seeds=seeds, t=t, mask=mask, callback=callback)


def write_edits(
    generator: Generator,
    pictures: Sequence[Picture],
    config: EditConfig,
    out: str | Path,
    *,
    mask: Tensor | None = None,
    say: Callable[[str], None] = lambda _: None,
    progress: Progress = no_progress,
) -> SamplingOutcome:
    """Every picture at every time with every seed, into a folder; ``progress`` counts NFE."""
    out = Path(out)
    if not config.cartoon:
        generator.check_condition(None, 1)
    reverse = {t: generator.reverse_process(config.sampling, t) for t in config.times}
    tasks = [
        Task(path=result_path(out, pictures[k].name, t, seed), picture=k, seed=seed, t=t, cost=reverse[t].nfe)
        for t in config.times for k in range(len(pictures)) for seed in config.seeds
    ]  # fmt: skip

    def make(part: Sequence[Task], callback: Callback) -> Tensor:
        starts = torch.stack([pictures[task.picture].start for task in part])
        return config.apply(generator, starts, part[0].t, [task.seed for task in part], mask, callback)

    def after(folder: PictureFolder) -> None:
        if config.restore and len(config.seeds) > 1:
            for t, picture in product(config.times, pictures):
                made = [result_path(out, picture.name, t, seed) for seed in config.seeds]
                save_means(folder, made, out / f"t{t:g}-mean" / f"{picture.name}.png")

    job = Job(
        out=out, kind=RECORD, name=NAME, record=_describe(generator, pictures, config, mask), may_grow=MAY_GROW,
        tasks=tasks, batch=batch_size(reverse[config.times[0]], config.sampling, generator.batch),
        passes=config.repeats,
    )  # fmt: skip
    return job.write(
        make, before=partial(_save_inputs, pictures=pictures, config=config), after=after, say=say, progress=progress
    )


def _save_inputs(folder: PictureFolder, pictures: Sequence[Picture], config: EditConfig) -> None:
    for picture in pictures:
        save_image(folder, folder.path / "input" / f"{picture.name}.png", picture.photo)
        if config.strokes is not None:
            save_image(folder, folder.path / "strokes" / f"{picture.name}.png", picture.start)


def _describe(
    generator: Generator, pictures: Sequence[Picture], config: EditConfig, mask: Tensor | None
) -> dict[str, Any]:
    """Everything that fixes the pixels; only plain values."""
    strengths = {f"{t:g}": strength_of_t(generator.model, t) for t in config.times}
    reverse = generator.reverse_process(config.sampling, config.times[0])
    return RECORD.new(
        {
            "checkpoint": generator.origin.model,
            "process": generator.process.identity(),
            "t_min": generator.plan.config.t_min,
            "size": generator.size,
            "sampler": str(reverse.sampler),
            "steps": config.sampling.steps,
            "repeats": config.repeats,
            "restore": config.restore,
            **({"cartoon": True} if config.cartoon else {}),
            "strokes": config.strokes,
            **conditions_of(reverse, 1),
            "mask": None if mask is None else hashlib.sha256(mask.cpu().numpy().tobytes()).hexdigest(),
            "strengths": strengths,
            "noise_levels": {t: noise_level(s) for t, s in strengths.items()},
            "pictures": {picture.name: picture.fingerprint for picture in pictures},
        }
    )


def check_out(out: Path) -> None:
    """A folder of edits, an empty one, or none yet."""
    RECORD.check_folder(out, NAME)


def result_path(out: Path, name: str, t: float, seed: int) -> Path:
    """The file of a result."""
    return out / f"t{t:g}" / f"{name}-{seed:04d}.png"
