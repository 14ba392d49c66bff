"""``anisodiff train``: train a model on a set of images, or resume its training."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from anisodiff import notation
from anisodiff.cli import common
from anisodiff.cli.names import complete_recipe
from anisodiff.runtime.durations import about
from anisodiff.runtime.progress import StageProgress, stages

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from anisodiff.data import Dataset, Source
    from anisodiff.models.base import Model
    from anisodiff.training.config import TrainConfig
    from anisodiff.training.hooks import Hooks

_LONG = 14 * 86400.0
"""Seconds: a run that takes longer gets advice."""


class _Job(NamedTuple):
    """What to train, and on what; a dry run may have no data."""

    config: "TrainConfig"
    dataset: "Dataset | None"


def train(
    name: str = typer.Argument(
        "", metavar="[RECIPE]", help="Choose a recipe or a process.", autocompletion=complete_recipe
    ),
    data: Path = typer.Option(None, "--data", help="Read a dataset, an archive, a folder or zip of images."),
    output: Path = common.output(Path("run"), "Write checkpoints and log into this folder."),
    overrides: list[str] = typer.Option([], "--set", help="Override a key, e.g. --set lr=1e-4; repeatable."),
    resume: str = typer.Option("auto", "--resume", help="auto: resume if a run exists. never: fail if one exists."),
    start: Path = typer.Option(None, "--from", help="Start from the weights of a run or score_sde file."),
    images: int = typer.Option(None, "--images", min=0, help="Train for this many images; 0: only set up the run."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print parameters, memory and time; train nothing."),
    as_json: bool = common.JSON,
    seed: int = typer.Option(None, "--seed", min=0, help="Set the random seed of the run."),
    device: str = common.DEVICE,
) -> None:
    """Train a model. The run may be killed at any moment; the same command resumes it.

    Example: anisodiff train cifar10-anisotropic --data cifar-10-python.tar.gz --output run

    Your own images: anisodiff train --data photos/ --output run

    Fine-tuning: anisodiff train cifar10-anisotropic --data cifar10 --from checkpoint_24.pth --output run

    On several GPUs: accelerate launch -m anisodiff train …, or torchrun --nproc-per-node 8 -m anisodiff train …
    """
    from anisodiff.runtime.devices import pick_device
    from anisodiff.training.loop import train as run_training

    if resume not in ("auto", "never"):
        raise ValueError(f"unknown --resume {resume!r}; {notation.nearest(resume, ('auto', 'never'))}")
    where = pick_device(device)
    leads = os.environ.get("RANK", "0") == "0"  # only the first of several processes prints
    common.console.quiet = not leads
    changes = common.settings(overrides)
    changes |= {key: value for key, value in (("seed", seed), ("images", images)) if value is not None}
    if start is not None and start.is_file():  # a published network: keep its inputs and outputs
        changes = {"parameterization": "ve", "channel_pca": False, **changes}
    job = _job(name, data, output, changes, where, dry_run)
    if dry_run:
        _estimate(job, where, as_json)
        return
    assert job.dataset is not None
    with stages(common.console, shown=leads) as tell:
        hooks = _hooks(tell, output, job.config)
        outcome = run_training(
            job.config, job.dataset, output, device=where, resume=resume == "auto", start=start, hooks=hooks
        )
    if not leads:
        return
    if as_json:
        typer.echo(json.dumps({**asdict(outcome), "checkpoint": str(outcome.checkpoint)}))
        return
    loss = "" if outcome.loss is None else f", loss {outcome.loss:.4f}"
    skipped = f", {outcome.skipped} bad batches skipped" if outcome.skipped else ""
    ended = "finished" if outcome.finished else "stopped"
    typer.echo(f"{ended} at step {outcome.step}: {outcome.images} images seen{loss}{skipped}")
    if outcome.checkpoint is not None:
        common.wrote(outcome.checkpoint)


def _job(
    name: str, data: Path | None, output: Path, changes: dict[str, Any], device: "torch.device", dry: bool
) -> _Job:
    """The config and the data of a command line."""
    from anisodiff.data import is_dataset, named_source, open_dataset, open_source
    from anisodiff.registry import DEFAULT_PROCESS, TRAINED
    from anisodiff.training.model import Plan
    from anisodiff.training.recipes import RECIPES, recipe

    if name == "" or name in TRAINED:
        return _own_job(name or DEFAULT_PROCESS, data, output, changes, device, dry)
    if name not in RECIPES:
        if Path(name).exists() and data is None:
            raise ValueError(f"{name!r} is a path, not a recipe; did you mean --data {name}?")
        raise ValueError(f"unknown recipe {name!r}; {notation.nearest(name, [*RECIPES, *TRAINED])}")
    config = recipe(name).changed(changes)
    Plan.of(config)  # contradictions show before hours of preparing
    if data is not None and is_dataset(data):
        return _Job(config, open_dataset(data))
    if dry:
        return _Job(config, None)
    if data is None:
        raise ValueError(f"no data for {name}: give --data PATH ({config.dataset}'s archive, or a prepared dataset)")
    source = named_source(config.dataset, data) if config.dataset else open_source(data)
    return _Job(config, _prepared(source, output, config.size, config.channels))


def _own_job(
    process: str, data: Path | None, output: Path, changes: dict[str, Any], device: "torch.device", dry: bool
) -> _Job:
    """For one's own images: choose what was not given, and print the choice."""
    from anisodiff.data import guess, is_dataset, open_dataset, open_source
    from anisodiff.training.config import TrainConfig
    from anisodiff.training.model import Plan
    from anisodiff.training.picking import Machine, for_dataset, for_images

    machine = Machine.of(device)
    if data is None:
        if not dry:
            raise ValueError("no data to train on: give a recipe, or --data PATH with your own images")
        return _Job(for_images(50_000, 3, (32, 32), machine, process, changes)[0], None)
    if is_dataset(data):
        dataset = open_dataset(data)
    else:
        source = open_source(data)
        asked = TrainConfig.from_dict({key: changes[key] for key in ("size", "channels") if key in changes})
        size = asked.size if "size" in changes else None
        channels = asked.channels if "channels" in changes else None
        seen = guess(source, largest=machine.largest_side(len(source)))
        size, channels = size or seen.size, channels or seen.channels
        config, words = for_images(len(source), channels, size, machine, process, changes)
        Plan.of(config)  # contradictions show before hours of preparing
        if dry:
            _say(words)
            return _Job(config, None)
        dataset = _prepared(source, output, size, channels)
    config, words = for_dataset(dataset, machine, process, changes)
    _say(words)
    return _Job(config, dataset)


def _prepared(source: "Source", output: Path, size: tuple[int, int] | None, channels: int | None) -> "Dataset":
    """Prepare the images in the folder of the run."""
    from anisodiff.data import prepare

    with common.progress("preparing the images") as tick:
        made = prepare(source, output / "data", size=size, channels=channels, progress=tick)
    _say(made.message)
    return made.dataset


def _say(line: str) -> None:
    common.console.print(line, highlight=False, soft_wrap=True)


def _estimate(job: _Job, device: "torch.device", as_json: bool) -> None:
    """Print config, parameters, memory and time; write nothing."""
    import torch
    import yaml

    from anisodiff.training.estimate import estimate
    from anisodiff.training.model import Plan
    from anisodiff.training.setup import check_data

    plan = Plan.of(job.config)
    if job.dataset is not None:
        check_data(job.config, job.dataset)
        few = job.dataset.first(64)
    else:
        few = torch.rand(64, job.config.channels, *job.config.size, generator=torch.Generator().manual_seed(0))
    said: list[str] = []
    with common.progress("timing a few steps"):
        found = estimate(job.config, device, few, said.append)
    config, identity = job.config.to_dict(), plan.process.identity()
    if as_json:
        facts = {"config": config, "process": identity, "steps": job.config.steps, "device": device.type}
        typer.echo(json.dumps({**asdict(found), **facts}, indent=2))
        return
    typer.echo(yaml.safe_dump(config, sort_keys=False, allow_unicode=True).rstrip())
    for key, value in identity.items():
        typer.echo(f"# process: {key} = {value}")
    for line in said:
        typer.echo(f"# {line}")
    measured = "measured" if found.measured_bytes else "estimated"
    scaled = "" if found.batch * job.config.accumulation == job.config.batch else f" (timed {found.batch} at a time)"
    typer.echo(f"parameters: {found.parameters:,}")
    typer.echo(
        f"memory: {found.bytes / 2**30:.2f} GiB {measured}, of which {found.state_bytes / 2**30:.2f} GiB state"
    )
    typer.echo(f"time per thousand images on {device.type}: {about(found.seconds_per_thousand)}{scaled}")
    typer.echo(
        f"the whole run: {job.config.steps:,} steps, {job.config.images:,} images, {about(found.seconds_in_all)}"
    )
    if found.seconds_in_all > _LONG:
        typer.echo("shorter: --images N, a recipe that ends in -small, a smaller --set network.name, or a GPU")


def _hooks(tell: StageProgress, output: Path, config: "TrainConfig") -> "Hooks":
    """Lines and progress on the terminal, the prior, and grids of samples in ``samples/``."""
    from anisodiff.io.grids import save_grid
    from anisodiff.training import preview
    from anisodiff.training.hooks import Hooks
    from anisodiff.training.model import process_of

    last = ""

    def on_log(record: dict[str, Any]) -> None:
        nonlocal last
        loss = "" if record["loss"] is None else f", loss {record['loss']:.4f}"
        last = f"step {record['step']}, {record['images_per_second']:,.0f} images/s{loss}"

    def on_interval(model: "Model", step: int, prior: "Mapping[str, Tensor] | None") -> None:
        if prior is not None:
            grid = preview.sample_grid(model, prior, t_min=config.t_min, process=process_of(config))
            save_grid(grid.clamp(0, 1), output / "samples" / f"step-{step:08d}.png")

    def progress(stage: str, done: int, total: int | None, note: str = "") -> None:
        tell(stage, done, total, note or last)

    return Hooks(say=_say, progress=progress, on_log=on_log, on_interval=on_interval, fit_prior=preview.fit_prior)
