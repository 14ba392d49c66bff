"""A training job: from what a command line or a call from Python asks for to a run and its prepared images."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from anisodiff.data import Dataset, Source, class_folders, is_dataset, named_source, open_dataset, open_source
from anisodiff.data.splitting import HELD_OUT, aside_of, check_run, is_cut, prepare_run, source_of
from anisodiff.io.checkpoint import alone, described, find, folder_of
from anisodiff.networks import own
from anisodiff.registry import DEFAULT_PROCESS
from anisodiff.runtime.distributed import Distributed
from anisodiff.runtime.progress import StageProgress
from anisodiff.training.config import TrainConfig, scaled
from anisodiff.training.config_values import classes_of
from anisodiff.training.hooks import TrainingOutcome, read_log
from anisodiff.training.loop import train
from anisodiff.training.model import Plan, as_trained
from anisodiff.training.picking import Machine, for_dataset, for_images, for_source
from anisodiff.training.preview import showing
from anisodiff.training.recipes import recipe
from anisodiff.training.run_folder import NAME, RunDescription, read_run, write_run
from anisodiff.training.setup import (
    describe,
    find_autoencoder,
    refuse_other,
    with_classes,
    with_images_of,
    with_latents,
)  # fmt: skip
from anisodiff.training.start import check_start, network_keys


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asks for. Without recipe, process, description and data, the run in ``output`` is meant."""

    output: Path
    data: Path | Source | None
    recipe: str = ""
    process: str = ""
    description: RunDescription | None = None
    """What the file of --config says, or the config that was given in Python."""
    file: Path | None = None
    """That of --config."""
    changes: Mapping[str, Any]
    start: Path | None = None
    holdout: str | None
    resume: bool = True
    dry: bool = False
    """Prepare nothing."""
    begun: bool
    """Whether the run in ``output`` has checkpoints, and is to be continued."""
    device: torch.device
    say: Callable[[str], None]
    tell: StageProgress
    python: bool = False
    """Images are given as an argument; a config does not limit them to the set its recipe is made for."""

    @property
    def only_output(self) -> bool:
        return not (self.recipe or self.process or self.file or self.description) and self.data is None

    @cached_property
    def saved(self) -> RunDescription | None:
        """What config.yaml in the output folder says."""
        return read_run(self.output) if self.begun or (self.output / NAME).is_file() else None


class Job(NamedTuple):
    """What to train, and on what; a dry run may have no dataset."""

    run: RunDescription
    dataset: Dataset | None
    source: Source | None = None
    """Of a dry run: the images that the real one would prepare."""


def has_checkpoints(output: Path) -> bool:
    """Whether a run has begun in a folder."""
    return any(folder_of(output).glob("step-*"))


def job_of(request: Request) -> Job:
    """The config and the data of a request."""
    changes, run, heldout = dict(request.changes), request.description, None
    if not request.dry:
        read_log(request.output)  # a log that cannot be continued is refused before hours of preparing
    if run is not None and run.changes is not None:  # the rest is picked
        changes, heldout = {**run.changes, **changes}, run.heldout if request.data is None else None
        request = replace(
            request, data=request.data or run.data, start=request.start or run.start,
            holdout=request.holdout or run.holdout,
        )  # fmt: skip
        run = None
    continued = request.saved if request.begun or request.only_output else None
    if continued is not None and "network" in changes:
        changes["network"] = own.again(changes["network"], continued.config.network)
    if run is None and request.recipe:
        run = RunDescription(config=recipe(request.recipe))
    if run is None and continued is not None:  # keep what was picked
        run, begun = continued, continued.config.process["preset"]
        if request.process:
            if request.begun and request.resume and request.process != begun:
                raise ValueError(
                    f"{request.output} holds a run of {begun}, not of {request.process}; choose another folder"
                )
            changes.setdefault("process.preset", request.process)
    request = replace(request, changes=changes)
    job = _picked(request, heldout) if run is None else _described(run, request)
    if job.dataset is None:
        return job
    return job._replace(run=replace(job.run, config=with_classes(job.run.config, job.dataset)))


def _described(run: RunDescription, request: Request) -> Job:
    """For a recipe, config.yaml of a run, or a file like it."""
    where, remedy = request.file or request.output, "give the images" if request.python else "give --data PATH"
    if request.data is not None:
        run = replace(run, data=_path(request), heldout=None)
    elif run.data is not None and not run.data.exists():
        raise ValueError(f"the images of {where} are not at {run.data}: {remedy}")
    if (saved := described(request.output)) is not None:
        run = replace(run, config=as_trained(run.config, saved))
    config, start, holdout = _changed(run.config, request), request.start or run.start, request.holdout or run.holdout
    run, request = replace(run, config=config, start=start, holdout=holdout), replace(request, holdout=holdout)
    Plan.of(config)  # contradictions show before hours of preparing
    data = run.data if request.data is None else request.data
    if data is None:
        if request.dry:
            return Job(run, None)
        archive = f" ({config.dataset}'s archive, or a prepared dataset)" if request.recipe and config.dataset else ""
        none = f"no data for {request.recipe}" if request.recipe else f"{where} names no data"
        raise ValueError(f"{none}: {remedy}{archive}")
    images = _opened(data, request, "" if request.python else config.dataset, labels=bool(config.classes))
    if request.begun and not request.dry:
        check_same(config, images, request)
    if request.resume and not request.dry:
        if request.begun:
            request.say(f"continuing the run in {request.output}")
        elif request.only_output:
            request.say(f"starting the run that {request.output / NAME} describes")
    return _prepared(run, images, request)


def check_same(config: TrainConfig, images: Dataset | Source | None, request: Request) -> None:
    """Refuse another run, or other images, than those in the folder, before anything is said or prepared."""
    if (saved := described(request.output)) is not None:
        if not request.resume:
            raise ValueError(
                f"{request.output} already holds a run; continue it with --resume auto, or choose another folder"
            )
        dataset = images if isinstance(images, Dataset) else None
        wanted = describe(Plan.of(with_images_of(saved, config)), dataset)
        refuse_other(request.output, saved, wanted if dataset is not None else {**wanted, "data": saved["data"]})
    if isinstance(images, Source):
        check_run(images, request.output, request.holdout, size=config.size, channels=config.channels)


def _changed(config: TrainConfig, request: Request) -> TrainConfig:
    """The config with the changes; a run that goes on keeps its warm-up."""
    if request.begun and not request.recipe:
        return config.changed(request.changes)
    made = scaled(config, request.changes)
    if not request.begun or request.saved is None or "warm_up" in request.changes:
        return made
    return replace(made, warm_up=request.saved.config.warm_up)


def _picked(request: Request, heldout: Path | None = None) -> Job:
    """For one's own images: choose what was not given, and print the choice; ``heldout``: of the file's images."""
    data, changes, machine = request.data, request.changes, Machine.of(request.device)
    process = request.process or _preset(changes) or DEFAULT_PROCESS
    if data is None:
        if not request.dry:
            if request.only_output and not request.python:
                raise ValueError(f"{request.output} holds no run; give --data PATH or a recipe to start one")
            raise ValueError(f"no data for {request.file or process}: give --data PATH with your own images")
        return Job(RunDescription(config=for_images(50_000, 3, (32, 32), machine, process, changes)[0]), None)
    name = "" if request.python else str(changes.get("dataset") or "")
    opened = _opened(data, request, name, labels=changes.get("classes") not in (None, "none", []))
    if request.start is not None and not request.start.is_file() and not {"network", "network.name"} & set(changes):
        held = ("size", "channels") if isinstance(opened, Dataset) else ()  # it keeps them
        changes = {**{k: v for k, v in network_keys(request.start, process).items() if k not in held}, **changes}
    if isinstance(opened, Dataset):
        config, words = for_dataset(opened, machine, process, changes)
    else:
        kept = {}
        if isinstance(data, Path) and is_dataset(data):  # it keeps its size
            kept = {"size": open_dataset(data).size, "channels": open_dataset(data).channels}
        aside = aside_of(request.holdout, request.output, len(opened)) or 0
        config, words = for_source(opened, machine, process, {**changes, **kept}, aside)
    run = RunDescription(
        config=config, data=_path(request), heldout=heldout, start=request.start, holdout=request.holdout
    )
    job = _prepared(run, opened, request)
    if job.dataset is not None and not isinstance(opened, Dataset) and not request.dry:
        config, words = for_dataset(job.dataset, machine, process, changes, class_folders(opened))
    request.say(words)
    return job._replace(run=replace(job.run, config=config))


def _preset(changes: Mapping[str, Any]) -> str:
    """The name of the process among the changes: what is picked depends on it."""
    given = changes.get("process", changes.get("process.preset"))
    name = given.get("preset") if isinstance(given, Mapping) else given
    return name if isinstance(name, str) else ""


def _path(request: Request) -> Path | None:
    return request.data if isinstance(request.data, Path) else None


def _opened(data: Path | Source, request: Request, name: str = "", *, labels: bool) -> Dataset | Source:
    """A prepared dataset, unless a part of it is held out; or a source of images, those of the set ``name``."""
    if isinstance(data, Source):
        return data
    if not is_dataset(data):
        source = named_source(name, data) if name else open_source(data, labels=labels)
        if not request.begun:
            source.check_outside(request.output)
        return source
    return source_of(data, request.output) if is_cut(data, request.output, request.holdout) else open_dataset(data)


def _prepared(run: RunDescription, images: Dataset | Source, request: Request) -> Job:
    """Prepare the images of a source in the folder of the run, but for a dry run; those held out in another."""
    config, data = run.config, run.data
    if run.start is not None and not request.begun and not config.asks_classes:
        check_start(run.start, Plan.of(config))
    if isinstance(images, Dataset):
        return Job(run, images)
    if config.asks_classes:
        classes_of(images.classes or ())  # names that no run takes
    if request.dry:
        return Job(run, open_dataset(data) if data is not None and is_dataset(data) else None, images)
    if config.latent:
        find_autoencoder(config)  # before hours of preparing
    if request.holdout is None and data is not None:
        _describe_new(request, run)
    tick = partial(request.tell, "preparing the images")
    tick(0, None)
    made = prepare_run(
        images, request.output, request.holdout, size=config.size, channels=config.channels, progress=tick
    )
    for line in made.messages:
        request.say(line)
    return Job(run if made.heldout is None else replace(run, heldout=request.output / HELD_OUT), made.data)


def _describe_new(request: Request, run: RunDescription) -> None:
    """Write config.yaml of a run that has not begun: from here on `train -o RUN` knows what to do."""
    if request.begun or os.environ.get("RANK", "0") != "0":
        return
    with alone(request.output):
        write_run(request.output, replace(run, holdout=None))


def run_job(
    job: Job, request: Request, *, stop: Callable[[], bool] = lambda: False, track: Sequence[str] | None, **shown: Any
) -> TrainingOutcome:
    """Train; ``shown`` are arguments of `preview.showing`."""
    run, dataset, output, device = job.run, job.dataset, request.output, request.device
    assert dataset is not None
    told = partial(request.tell, "encoding the images")
    own_gpu = Distributed(device).device  # of several processes each has its own
    config, _ = with_latents(run.config, dataset, own_gpu, told, start=run.start, say=request.say)
    _describe_new(request, replace(run, config=config, data=dataset.path))
    hooks = replace(showing(output, config, dataset, tell=request.tell, say=request.say, **shown), stop=stop)
    return train(
        config, dataset, output, device=device, resume=request.resume, start=run.start, hooks=hooks, track=track
    )


def trust_files(request: Request) -> None:
    """Allow the networks that the run, the file of --config and the start name."""
    for run in filter(None, (request.saved, request.description)):
        own.trust(run.config.to_dict())
        if run.start is not None and run.start.is_dir():
            own.trust(find(run.start).meta["config"])
    if request.start is not None and not request.start.is_file():
        own.trust(find(request.start).meta["config"])
