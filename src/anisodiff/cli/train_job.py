"""What a command line of ``anisodiff train`` asks for: the description of a run, and its images."""

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from anisodiff import notation
from anisodiff.cli import common
from anisodiff.data import Dataset, Source, class_folders, is_dataset, named_source, open_dataset, open_source
from anisodiff.data.splitting import HELD_OUT, aside_of, is_cut, prepare_run, source_of
from anisodiff.io.checkpoint import alone, find
from anisodiff.networks import own
from anisodiff.registry import DEFAULT_PROCESS, TRAINED
from anisodiff.runtime.progress import StageProgress
from anisodiff.training.config import scaled
from anisodiff.training.model import Plan
from anisodiff.training.picking import Machine, for_dataset, for_images, for_source
from anisodiff.training.recipes import RECIPES, recipe
from anisodiff.training.run_folder import NAME, RunDescription, read_run, write_run
from anisodiff.training.setup import find_autoencoder


@dataclass(frozen=True, kw_only=True)
class Command:
    """What the command line asks for."""

    name: str
    """A recipe or a process; empty: neither."""
    data: Path | None
    output: Path
    file: Path | None
    changes: dict[str, Any]
    start: Path | None
    holdout: str | None
    resume: str
    """auto, or never."""
    dry: bool
    saved: RunDescription | None
    """What config.yaml in the output folder says."""
    begun: bool
    """Whether the output folder has checkpoints; a dry run continues nothing."""
    tell: StageProgress
    device: torch.device


class Job(NamedTuple):
    """What to train, and on what; a dry run may have no dataset."""

    run: RunDescription
    dataset: Dataset | None
    source: Source | None = None
    """Of a dry run: the images that the real one would prepare."""


def job_of(command: Command) -> Job:
    """The config and the data of a command line."""
    name, file, data, saved = command.name, command.file, command.data, command.saved
    if file is not None:
        if name:
            raise ValueError(
                f"got the recipe {name!r} and --config {file}: give one of them, and change it with --set"
            )
        return _described(read_run(file), str(file), command)
    if name and name not in RECIPES and name not in TRAINED:
        if Path(name).exists() and data is None:
            raise ValueError(f"{name!r} is a path, not a recipe; did you mean --data {name}?")
        if "=" in name:
            raise ValueError(f"{name!r} is a setting, not a recipe: each key needs a --set of its own, --set {name}")
        raise ValueError(f"unknown recipe {name!r}; {notation.nearest(name, [*RECIPES, *TRAINED])}")
    if name not in RECIPES:
        if saved is not None and (command.begun or (not name and data is None)):  # keep what was picked
            if name:
                command.changes.setdefault("process.preset", name)
            return _described(saved, str(command.output), command)
        return _picked(name or DEFAULT_PROCESS, command)
    config = scaled(recipe(name), command.changes)
    if command.begun and saved is not None and "warm_up" not in command.changes:
        config = replace(config, warm_up=saved.config.warm_up)  # a longer run has the warm-up that it began with
    missing = f"no data for {name}: give --data PATH ({config.dataset}'s archive, or a prepared dataset)"
    run = RunDescription(config=config, data=data, start=command.start, holdout=command.holdout)
    return _with_data(run, command, missing)


def _described(run: RunDescription, where: str, command: Command) -> Job:
    """For config.yaml of a run or a file like it."""
    # a run that goes on keeps its warm-up
    config = run.config.changed(command.changes) if command.begun else scaled(run.config, command.changes)
    data = command.data or run.data
    if data is not None and not data.exists():
        raise ValueError(f"the images of {where} are not at {data}: give --data PATH")
    start, holdout = command.start or run.start, command.holdout or run.holdout
    heldout = None if command.data else run.heldout
    run = replace(run, config=config, data=data, heldout=heldout, start=start, holdout=holdout)
    return _with_data(run, command, f"{where} names no data: give --data PATH")


def _picked(process: str, command: Command) -> Job:
    """For one's own images: choose what was not given, and print the choice."""
    data, changes, machine = command.data, command.changes, Machine.of(command.device)
    if data is None:
        if not command.dry:
            raise ValueError("no data to train on: give a recipe, or --data PATH with your own images")
        return Job(RunDescription(config=for_images(50_000, 3, (32, 32), machine, process, changes)[0]), None)
    opened = _opened(data, command, labels=changes.get("classes") not in (None, "none", []))
    if isinstance(opened, Dataset):
        config, words = for_dataset(opened, machine, process, changes)
    else:
        kept = {}
        if is_dataset(data):  # it keeps its size
            kept = {"size": open_dataset(data).size, "channels": open_dataset(data).channels}
        aside = aside_of(command.holdout, command.output, len(opened)) or 0
        config, words = for_source(opened, machine, process, changes | kept, aside)
    run = RunDescription(config=config, data=data, start=command.start, holdout=command.holdout)
    job = _prepared(run, opened, command)
    if job.dataset is not None and not isinstance(opened, Dataset) and not command.dry:
        config, words = for_dataset(job.dataset, machine, process, changes, class_folders(opened))
    common.say(words)
    return job._replace(run=replace(job.run, config=config))


def _opened(data: Path, command: Command, name: str = "", *, labels: bool) -> Dataset | Source:
    """A prepared dataset, unless a part of it is held out; or a source of images, those of the set ``name``."""
    if not is_dataset(data):
        return named_source(name, data) if name else open_source(data, labels=labels)
    return source_of(data, command.output) if is_cut(data, command.output, command.holdout) else open_dataset(data)


def _with_data(run: RunDescription, command: Command, missing: str) -> Job:
    """The images of a run; ``missing``: the error where there are none, unless it is a dry run."""
    Plan.of(run.config)  # contradictions show before hours of preparing
    command = replace(command, holdout=run.holdout)
    if run.data is None:
        if not command.dry:
            raise ValueError(missing)
        return Job(run, None)
    images = _opened(run.data, command, run.config.dataset, labels=bool(run.config.classes))
    if command.resume == "auto" and not command.dry:
        if command.begun:
            common.say(f"continuing the run in {command.output}")
        elif not (command.name or command.file or command.data):
            common.say(f"starting the run that {command.output / NAME} describes")
    return _prepared(run, images, command)


def _prepared(run: RunDescription, images: Dataset | Source, command: Command) -> Job:
    """Prepare the images of a source in the folder of the run, but for a dry run; those held out in another."""
    if isinstance(images, Dataset):
        return Job(run, images)
    config, data = run.config, run.data
    if command.dry:
        return Job(run, open_dataset(data) if data is not None and is_dataset(data) else None, images)
    if config.latent:
        find_autoencoder(config)  # before hours of preparing
    if command.holdout is None:
        describe_new(command, run)
    tick = partial(command.tell, "preparing the images")
    tick(0, None)
    made = prepare_run(
        images, command.output, command.holdout, size=config.size, channels=config.channels, progress=tick
    )
    for line in made.messages:
        common.say(line)
    return Job(run if made.heldout is None else replace(run, heldout=command.output / HELD_OUT), made.data)


def describe_new(command: Command, run: RunDescription) -> None:
    """Write config.yaml of a run that has not begun: from here on `train -o RUN` knows what to do."""
    if command.begun or os.environ.get("RANK", "0") != "0":
        return
    with alone(command.output):
        write_run(command.output, replace(run, holdout=None))


def trust_files(command: Command) -> None:
    """Allow the networks that the run, the file of --config and the start name."""
    for run in filter(None, (command.saved, None if command.file is None else read_run(command.file))):
        own.trust(run.config.to_dict())
        if run.start is not None and run.start.is_dir():
            own.trust(find(run.start).meta["config"])
    if command.start is not None and not command.start.is_file():
        own.trust(find(command.start).meta["config"])
