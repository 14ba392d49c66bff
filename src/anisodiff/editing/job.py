"""A job: pictures × times × seeds, each result written when it is made; the same job again makes what is missing."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import anisodiff
from anisodiff.editing.inputs import Picture
from anisodiff.editing.records import FORMAT, NAME, VERSION, merged, place, read_png, save_json, save_png, whole
from anisodiff.editing.sdedit import edit, restore
from anisodiff.editing.strength import strength_of_t
from anisodiff.generation import Generator, Step
from anisodiff.generation.seeds import check_seeds


@dataclass(frozen=True, kw_only=True)
class EditConfig:
    """What is done to every picture."""

    times: tuple[float, ...]
    seeds: tuple[int, ...]
    steps: int = 50
    sampler: str = "auto"
    repeats: int = 1
    restore: bool = False
    strokes: str | None = None
    """How the paintings were made, in words; None: the pictures as they are."""

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ValueError("candidates: got 0, expected 1 or more for every picture")
        check_seeds(self.seeds)
        if not self.times:
            raise ValueError("times: got none, expected one at least")
        if self.repeats < 1:
            raise ValueError(f"repeats: got {self.repeats}, expected 1 or more")
        if self.restore and (self.repeats > 1 or self.strokes is not None):
            raise ValueError("restoring goes back from the picture itself: leave --repeats and --strokes away")

    def apply(
        self,
        generator: Generator,
        images: Tensor,
        t: float,
        seeds: Sequence[int],
        mask: Tensor | None = None,
        callback: Callable[[Step], None] | None = None,
    ) -> Tensor:
        """Results [B, C, H, W] of ``images`` [B, C, H, W], one for every seed."""
        if self.restore:
            return restore(
                generator, images, seeds=seeds, t=t, steps=self.steps, sampler=self.sampler, mask=mask,
                callback=callback,
            )  # fmt: skip
        return edit(
            generator, images, seeds=seeds, t=t, steps=self.steps, sampler=self.sampler, repeats=self.repeats,
            mask=mask, callback=callback,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Edited:
    """What a job has left behind."""

    path: Path
    count: int
    made: int
    """Results of this call; the others were already there."""
    nfe: int
    """Of the network, made by this call."""
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
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> Edited:
    """Every picture at every time with every seed, into a folder; ``progress(done, total)`` counts evaluations."""
    out, begun = Path(out), time.perf_counter()
    costs = {t: generator.route(config.sampler, config.steps, t).nfe for t in config.times}
    protocol = merged(out, _describe(generator, pictures, config, mask))
    jobs = [(t, k, seed) for t in config.times for k in range(len(pictures)) for seed in config.seeds]
    todo = [job for job in jobs if not whole(place(out, pictures[job[1]].name, job[0], job[2]))]
    if len(todo) < len(jobs):
        say(f"continuing: {len(jobs) - len(todo)} of {len(jobs)} results are already in {out}")
    total, spent, made = config.repeats * sum(costs[t] for t, _, _ in todo), 0, 0
    try:
        save_json(out / NAME, protocol)
        _save_inputs(out, pictures, config)
        for t in config.times:
            rows = [(k, seed) for when, k, seed in todo if when == t]
            for part in (rows[i : i + generator.batch] for i in range(0, len(rows), generator.batch)):
                ticker = _ticker(progress, spent, total, costs[t])
                starts = torch.stack([pictures[k].start for k, _ in part])
                results = config.apply(generator, starts, t, [seed for _, seed in part], mask, ticker)
                for (k, seed), image in zip(part, results):
                    save_png(place(out, pictures[k].name, t, seed), image)
                    made += 1
                spent += len(part) * config.repeats * costs[t]
        if config.restore and len(config.seeds) > 1:
            _save_means(out, pictures, config)
    except ValueError as error:
        if not str(error).startswith("cannot write"):
            raise
        kept = len(jobs) - len(todo) + made
        raise ValueError(
            f"{error}; {kept} finished results are kept: the same command again makes the rest"
        ) from None
    return Edited(
        path=out, count=len(jobs), made=made, nfe=spent, seconds=time.perf_counter() - begun,
        protocol=protocol,
    )  # fmt: skip


def _ticker(progress: Callable[[int, int], None], spent: int, total: int, cost: int) -> Callable[[Step], None]:
    """Tells of every step of a batch, through all its repeats."""
    passed = 0

    def tick(step: Step) -> None:
        nonlocal passed
        progress(spent + len(step.seeds) * cost * (passed * step.of + step.number) // step.of, total)
        passed += step.number == step.of

    return tick


def _save_inputs(out: Path, pictures: Sequence[Picture], config: EditConfig) -> None:
    for picture in pictures:
        save_png(out / "input" / f"{picture.name}.png", picture.photo)
        if config.strokes is not None:
            save_png(out / "strokes" / f"{picture.name}.png", picture.start)


def _save_means(out: Path, pictures: Sequence[Picture], config: EditConfig) -> None:
    for t in config.times:
        for picture in pictures:
            results = [read_png(place(out, picture.name, t, seed)) for seed in config.seeds]
            save_png(out / f"t{t:g}-mean" / f"{picture.name}.png", torch.stack(results).mean(0))


def _describe(
    generator: Generator, pictures: Sequence[Picture], config: EditConfig, mask: Tensor | None
) -> dict[str, Any]:
    """Everything that fixes the pixels; only plain values."""
    values = {
        "format": FORMAT,
        "version": VERSION,
        "anisodiff": anisodiff.__version__,
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
        "strengths": {f"{t:g}": strength_of_t(generator.model, t) for t in config.times},
        "pictures": {picture.name: picture.fingerprint for picture in pictures},
    }
    plain: dict[str, Any] = json.loads(json.dumps(values))  # lists for tuples, as they will be read back
    return plain
