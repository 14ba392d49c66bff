"""``anisodiff train``: train a model on a set of images, or continue its training."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from anisodiff import notation
from anisodiff.cli import common
from anisodiff.cli.names import complete_recipe
from anisodiff.io.atomic import leaving_nothing
from anisodiff.runtime.progress import StageProgress, stages

if TYPE_CHECKING:
    import torch

    from anisodiff.data import Dataset, Source
    from anisodiff.training.config import TrainConfig
    from anisodiff.training.hooks import TrainingOutcome
    from anisodiff.training.run_folder import RunDescription


@dataclass(frozen=True, kw_only=True)
class _Command:
    """What the command line asks for, besides a recipe or a process."""

    data: Path | None
    output: Path
    changes: dict[str, Any]
    start: Path | None
    holdout: str | None
    dry: bool
    saved: "RunDescription | None"
    """What config.yaml in the output folder says."""
    begun: bool
    """Whether the output folder has checkpoints; a dry run continues nothing."""
    tell: StageProgress
    device: "torch.device"


class _Job(NamedTuple):
    """What to train, and on what; a dry run may have no dataset."""

    config: "TrainConfig"
    dataset: "Dataset | None"
    data: Path | None = None
    heldout: Path | None = None
    start: Path | None = None
    holdout: str | None = None
    """What a file for --config asks to keep aside."""


def train(
    name: str = typer.Argument(
        "", metavar="[RECIPE]", help="Choose a recipe or a process.", autocompletion=complete_recipe
    ),
    data: Path = typer.Option(None, "--data", help="Read a dataset, an archive, a folder or zip of images."),
    output: Path = common.output(Path("run"), "Write checkpoints and log into this folder."),
    file: Path = typer.Option(None, "--config", help="Read the keys from a YAML file, or from another run."),
    overrides: list[str] = typer.Option([], "--set", help="Override a key, e.g. --set lr=1e-4; repeatable."),
    network: str = typer.Option(None, "--network", help="Choose a network: a name, or MODULE:CLASS of your own."),
    trust_code: bool = common.TRUST,
    resume: str = typer.Option("auto", "--resume", help="auto: resume if a run exists. never: fail if one exists."),
    start: Path = typer.Option(None, "--from", help="Start from the weights of a run or score_sde file."),
    images: int = typer.Option(None, "--images", min=0, help="Train for this many images; 0: only set up the run."),
    holdout: str = typer.Option(None, "--holdout", help="Keep images aside, e.g. 10% or 500: not trained on."),
    track: str = typer.Option(None, "--track", help="Log to tensorboard, wandb, both by a comma, or none."),
    latent: str | None = typer.Option(
        None, "--latent", help="Train on latents of an autoencoder: FOLDER or OWNER/NAME."
    ),
    classes: bool = typer.Option(False, "--classes", help="Learn classes: subfolders, or labels of the set."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print config, memory and time; train nothing."),
    as_json: bool = common.JSON,
    seed: int = typer.Option(None, "--seed", min=0, help="Set the random seed of the run."),
    device: str = common.DEVICE,
) -> None:
    """Train a model. The run may be killed at any moment; anisodiff train -o RUN continues it.

    Example: anisodiff train cifar10 --data cifar-10-python.tar.gz --output run

    Your own images: anisodiff train --data photos/ --output run

    Your own network: anisodiff train --data photos/ --network my_module:MyUNet --set network.width=64

    Classes, one a subfolder: anisodiff train --data photos/ --classes --output run

    In latent space: anisodiff train --data photos/ --latent stabilityai/sd-vae-ft-mse --output run

    Fine-tuning: anisodiff train cifar10 --data cifar10 --from checkpoint_24.pth --output run

    On several GPUs: accelerate launch -m anisodiff train …, or torchrun --nproc-per-node 8 -m anisodiff train …
    """
    began = time.perf_counter()
    if resume not in ("auto", "never"):
        raise ValueError(f"unknown --resume {resume!r}; {notation.nearest(resume, ('auto', 'never'))}")
    leads = os.environ.get("RANK", "0") == "0"  # only the first of several processes prints
    common.console.quiet = not leads
    changes = ({} if network is None else {"network": network}) | common.settings(overrides)
    changes |= {key: value for key, value in (("seed", seed), ("images", images)) if value is not None}
    if classes:
        changes.setdefault("classes", "auto")
    if latent is not None or isinstance(changes.get("latent"), str):
        changes |= common.latent_keys(latent or str(changes["latent"]))
    if start is not None and start.is_file():  # a published network: keep its inputs and outputs
        changes = {"parameterization": "ve", "channel_pca": False, **changes}
    if start is not None and not start.is_file():
        from anisodiff.io.checkpoint import find
        from anisodiff.io.hub import is_hub

        there = find(start).path  # before hours of preparing
        start = there if is_hub(start) else start  # a run's description names folders alone
    refused = leaving_nothing(output, "config.yaml", ".lock")
    with refused, _stopped_in_one_line(output), stages(common.console, shown=leads) as tell:
        tell("starting", 0, None)
        from anisodiff.cli import dry_run as dry
        from anisodiff.io.checkpoint import folder_of
        from anisodiff.networks import own
        from anisodiff.runtime.devices import pick_device
        from anisodiff.runtime.distributed import Distributed
        from anisodiff.training.loop import train as run_training
        from anisodiff.training.preview import showing
        from anisodiff.training.run_folder import NAME, RunDescription, read_run
        from anisodiff.training.setup import with_classes, with_latents
        from anisodiff.training.trackers import parse

        tracked = None if track is None else parse(track)  # before hours of preparing
        where, begun = pick_device(device), not dry_run and any(folder_of(output).glob("step-*"))
        command = _Command(
            data=data, output=output, changes=changes, start=start, holdout=holdout, dry=dry_run, tell=tell,
            saved=read_run(output) if begun or (output / NAME).is_file() else None, begun=begun, device=where,
        )  # fmt: skip
        own.trust(changes)  # what was typed here; not what a file says, unless it is allowed
        if trust_code:
            _trust_files(command, file)
        if network is not None and begun and command.saved is not None:
            changes["network"] = own.again(network, command.saved.config.network)
        job = _job(name, file, command)
        if job.dataset is not None:
            job = job._replace(config=with_classes(job.config, job.dataset))
        if job.dataset is not None and not dry_run:
            told = partial(tell, "encoding the images")
            own_gpu = Distributed(where).device  # of several processes each has its own
            job = job._replace(config=with_latents(job.config, job.dataset, own_gpu, told)[0])
        if dry_run:
            found = dry.measured(job.config, job.dataset, where, tell)
            if any(folder_of(output).glob("step-*")):
                found[1].append(_of_the_run_there(name, file, command, resume))
        else:
            assert job.dataset is not None
            _note(command, job, job.dataset.path)
            hooks = showing(output, job.config, job.dataset, tell=tell, say=_say, began=began)
            outcome = run_training(
                job.config, job.dataset, output, device=where, resume=resume == "auto", start=job.start, hooks=hooks,
                track=tracked,
            )  # fmt: skip
    if dry_run:
        run = RunDescription(
            config=job.config, data=job.data, heldout=job.heldout, start=job.start, holdout=holdout or job.holdout
        )
        dry.show(run, where, found, as_json=as_json)
    else:
        if leads:
            _report(outcome, output, as_json)
        if not outcome.finished:
            raise typer.Exit(130)  # a command behind && must not take the run for whole


def _trust_files(command: _Command, file: Path | None) -> None:
    """Allow the networks that the run, the file of --config and the start name."""
    from anisodiff.io.checkpoint import find
    from anisodiff.networks import own
    from anisodiff.training.run_folder import read_run

    for run in filter(None, (command.saved, None if file is None else read_run(file))):
        own.trust(run.config.to_dict())
        if run.start is not None and run.start.is_dir():
            own.trust(find(run.start).meta["config"])
    if command.start is not None and not command.start.is_file():
        own.trust(find(command.start).meta["config"])


def _of_the_run_there(name: str, file: Path | None, command: _Command, resume: str) -> str:
    """What the command without --dry-run would do with the run in the output folder."""
    from anisodiff.io.checkpoint import find
    from anisodiff.training.model import Plan
    from anisodiff.training.run_folder import read_run
    from anisodiff.training.setup import describe, differences

    try:
        job = _job(name, file, replace(command, begun=True, saved=read_run(command.output)))
        saved = find(command.output).meta
        wanted = describe(Plan.of(_with_images_of(saved, job.config)), job.dataset)
        wrong = differences(saved, wanted if job.dataset is not None else {**wanted, "data": saved["data"]})
    except ValueError as error:
        wrong = [str(error)]
    if resume == "never":
        wrong.insert(0, "--resume never")
    does = f"be refused ({'; '.join(wrong)}): choose another --output" if wrong else "continue it"
    return f"{command.output} holds a run: without --dry-run this command would {does}"


def _with_images_of(saved: Mapping[str, Any], config: "TrainConfig") -> "TrainConfig":
    """The config with what only the images tell, classes and latents, as the run there has it: none are read now."""
    from anisodiff.io.tensor_files import sha256
    from anisodiff.latent.autoencoder import WEIGHTS
    from anisodiff.training.setup import find_autoencoder

    if config.asks_classes and saved["config"].get("classes"):
        config = replace(config, classes=tuple(saved["config"]["classes"]))
    if not config.latent or "sha256" in config.latent:
        return config
    code = sha256(find_autoencoder(config).folder / WEIGHTS)
    return replace(config, latent={**saved["config"].get("latent", {}), **config.latent, "sha256": code})


@contextmanager
def _stopped_in_one_line(output: Path) -> Iterator[None]:
    """Ctrl-C before the first step, or twice: say how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        begun = (output / "config.yaml").is_file()
        how = f"continue with: anisodiff train -o {output}" if begun else "nothing was kept; give the command again"
        _say(f"stopped; {how}")
        raise typer.Exit(130) from None


def _report(outcome: "TrainingOutcome", output: Path, as_json: bool) -> None:
    """How the run ended."""
    if as_json:
        typer.echo(json.dumps({**asdict(outcome), "checkpoint": str(outcome.checkpoint)}))
        return
    loss = "" if outcome.loss is None else f", loss {outcome.loss:.4f}"
    skipped = f", {outcome.skipped} bad batches skipped" if outcome.skipped else ""
    ended = "finished" if outcome.finished else "stopped"
    typer.echo(f"{ended} at step {outcome.step}: {outcome.images} images seen{loss}{skipped}")
    if outcome.checkpoint is not None:
        common.wrote(outcome.checkpoint)


def _job(name: str, file: Path | None, command: _Command) -> _Job:
    """The config and the data of a command line."""
    from anisodiff.registry import DEFAULT_PROCESS, TRAINED
    from anisodiff.training.config import scaled
    from anisodiff.training.model import Plan
    from anisodiff.training.recipes import RECIPES, recipe
    from anisodiff.training.run_folder import read_run

    data, saved = command.data, command.saved
    if file is not None:
        if name:
            raise ValueError(
                f"got the recipe {name!r} and --config {file}: give one of them, and change it with --set"
            )
        return _described_job(read_run(file), str(file), command)
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
            return _described_job(saved, str(command.output), command)
        return _own_job(name or DEFAULT_PROCESS, command)
    config = scaled(recipe(name), command.changes)
    if command.begun and saved is not None and "warm_up" not in command.changes:
        config = replace(config, warm_up=saved.config.warm_up)  # a longer run has the warm-up that it began with
    Plan.of(config)  # contradictions show before hours of preparing
    if data is None and not command.dry:
        raise ValueError(f"no data for {name}: give --data PATH ({config.dataset}'s archive, or a prepared dataset)")
    return _with_data(config, data, command)


def _described_job(run: "RunDescription", where: str, command: _Command) -> _Job:
    """For config.yaml of a run or a file like it."""
    from anisodiff.training.config import scaled
    from anisodiff.training.model import Plan

    # a run that goes on keeps its warm-up
    config = run.config.changed(command.changes) if command.begun else scaled(run.config, command.changes)
    Plan.of(config)
    data = command.data or run.data
    command = replace(command, start=command.start or run.start, holdout=command.holdout or run.holdout)
    if data is None and not command.dry:
        raise ValueError(f"{where} names no data: give --data PATH")
    if data is not None and not data.exists():
        raise ValueError(f"the images of {where} are not at {data}: give --data PATH")
    job = _with_data(config, data, command)._replace(holdout=run.holdout)
    return job if job.heldout or command.data else job._replace(heldout=run.heldout)


def _own_job(process: str, command: _Command) -> _Job:
    """For one's own images: choose what was not given, and print the choice."""
    from anisodiff.data import class_folders, is_dataset, open_dataset, open_source
    from anisodiff.data.splitting import aside_of, is_cut, source_of
    from anisodiff.training.picking import Machine, for_dataset, for_images, for_source

    data, changes, machine = command.data, command.changes, Machine.of(command.device)
    if data is None:
        if not command.dry:
            raise ValueError("no data to train on: give a recipe, or --data PATH with your own images")
        return _Job(for_images(50_000, 3, (32, 32), machine, process, changes)[0], None)
    heldout, known = None, 0
    if is_dataset(data) and not is_cut(data, command.output, command.holdout):
        dataset = open_dataset(data)
    else:
        learned = changes.get("classes") not in (None, "none", [])
        source = source_of(data, command.output) if is_dataset(data) else open_source(data, labels=learned)
        kept = {}
        if is_dataset(data):  # it keeps its size
            kept = {"size": open_dataset(data).size, "channels": open_dataset(data).channels}
        aside = aside_of(command.holdout, command.output, len(source)) or 0
        config, words = for_source(source, machine, process, changes | kept, aside)
        if command.dry:
            _say(words)
            return _Job(config, None, data, start=command.start)
        _note(command, _Job(config, None, start=command.start), data)
        dataset, heldout = _prepared(source, command, config.size, config.channels)
        known = class_folders(source)
    config, words = for_dataset(dataset, machine, process, changes, known)
    _say(words)
    return _Job(config, dataset, data, heldout, command.start)


def _with_data(config: "TrainConfig", data: Path | None, command: _Command) -> _Job:
    """The images of a config; those of a source are prepared, but for a dry run."""
    from anisodiff.data import is_dataset, named_source, open_dataset, open_source
    from anisodiff.data.splitting import is_cut, source_of
    from anisodiff.training.setup import find_autoencoder

    if data is None:
        return _Job(config, None, start=command.start)
    if is_dataset(data) and not is_cut(data, command.output, command.holdout):
        return _Job(config, open_dataset(data), data, start=command.start)
    if command.dry:
        return _Job(config, open_dataset(data) if is_dataset(data) else None, data, start=command.start)
    if config.latent:
        find_autoencoder(config)  # before hours of preparing
    if is_dataset(data):
        source = source_of(data, command.output)
    else:
        source = (
            named_source(config.dataset, data) if config.dataset else open_source(data, labels=bool(config.classes))
        )
    _note(command, _Job(config, None, start=command.start), data)
    dataset, heldout = _prepared(source, command, config.size, config.channels)
    return _Job(config, dataset, data, heldout, command.start)


def _prepared(
    source: "Source", command: _Command, size: tuple[int, int], channels: int
) -> "tuple[Dataset, Path | None]":
    """Prepare the images in the folder of the run; those kept aside in a folder of their own."""
    from anisodiff.data.splitting import HELD_OUT, prepare_run

    def tick(done: int, total: int | None) -> None:
        command.tell("preparing the images", done, total)

    tick(0, None)
    made = prepare_run(source, command.output, command.holdout, size=size, channels=channels, progress=tick)
    for line in made.messages:
        _say(line)
    return made.data, None if made.heldout is None else command.output / HELD_OUT


def _note(command: _Command, job: _Job, data: Path) -> None:
    """Write config.yaml of a run that has not begun: from here on `train -o RUN` knows what to do."""
    from anisodiff.io.checkpoint import alone
    from anisodiff.training.run_folder import RunDescription, write_run

    parts_to_come = job.dataset is None and command.holdout is not None
    if command.begun or parts_to_come or os.environ.get("RANK", "0") != "0":
        return
    with alone(command.output):
        write_run(command.output, RunDescription(config=job.config, data=data, heldout=job.heldout, start=job.start))


def _say(line: str) -> None:
    common.console.print(line, highlight=False, soft_wrap=True)
