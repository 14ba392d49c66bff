"""``anisodiff train``: learn the score of a process on a set of images."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import typer
import yaml
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from anisodiff import notation
from anisodiff.cli import common
from anisodiff.data import Dataset, Source, guess, is_dataset, named_source, open_dataset, open_source, prepare
from anisodiff.models.base import Model
from anisodiff.registry import TRAINED
from anisodiff.runtime.devices import pick_device
from anisodiff.runtime.durations import about
from anisodiff.training import preview
from anisodiff.training.config import TrainConfig
from anisodiff.training.contract import Hooks
from anisodiff.training.estimate import Estimate, estimate
from anisodiff.training.loop import train as run_training
from anisodiff.training.model import Plan, process_of
from anisodiff.training.recipes import RECIPES, SUMMARY, for_dataset, for_images, recipe
from anisodiff.training.setup import check_data


def _changes(items: list[str], seed: int | None, images: int | None) -> dict[str, Any]:
    """``--set``, ``--seed`` and ``--images`` as changes of a config."""
    given = {"seed": seed, "images": images}
    return common.settings(items) | {key: value for key, value in given.items() if value is not None}


def _own_process(name: str) -> str | None:
    """The process of a recipe for one's own images; None for a named recipe."""
    if name == "":
        return "anisotropic"
    if name in TRAINED:
        return name
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}; {notation.nearest(name, [*RECIPES, *TRAINED])}")
    return None


def _prepared(source: Source, output: Path, size: tuple[int, int] | None, channels: int | None) -> Dataset:
    """Images that are prepared beside the run first."""
    with common.progress("preparing the images") as tick:
        made = prepare(source, output / "data", size=size, channels=channels, progress=tick)
    common.console.print(made.message, highlight=False, soft_wrap=True)
    return made.dataset


@dataclass(frozen=True)
class _Job:
    config: TrainConfig
    dataset: Dataset | None


def _job(name: str, data: Path | None, output: Path, changes: dict[str, Any], dry: bool) -> _Job:
    """The config and the data of a command line."""
    process = _own_process(name)
    if process is not None:
        return _own_job(process, data, output, changes, dry)
    config = recipe(name).changed(changes)
    if data is not None and is_dataset(data):
        return _Job(config, open_dataset(data))
    if dry:
        return _Job(config, None)
    if data is None:
        raise ValueError(f"say where {config.dataset} lies: --data PATH (its archive, or a prepared dataset)")
    Plan.of(config)  # contradictions show before hours of preparing
    source = named_source(config.dataset, data) if config.dataset else open_source(data)
    return _Job(config, _prepared(source, output, config.size, config.channels))


def _own_job(process: str, data: Path | None, output: Path, changes: dict[str, Any], dry: bool) -> _Job:
    """The same for one's own images: what is not said is picked, and said."""
    if data is None:
        if not dry:
            raise ValueError("say what to train on: a recipe, or --data PATH with your own images")
        return _Job(for_images(50_000, 3, (32, 32), process, changes)[0], None)
    if is_dataset(data):
        dataset = open_dataset(data)
    else:
        source = open_source(data)
        asked = TrainConfig.from_dict({key: changes[key] for key in ("size", "channels") if key in changes})
        size = asked.size if "size" in changes else None
        channels = asked.channels if "channels" in changes else None
        seen = guess(source)
        config, words = for_images(len(source), channels or seen.channels, size or seen.size, process, changes)
        Plan.of(config)  # contradictions show before hours of preparing
        if dry:  # look, but write nothing
            common.console.print(words, highlight=False, soft_wrap=True)
            return _Job(config, None)
        dataset = _prepared(source, output, size, channels)
    config, words = for_dataset(dataset, process, changes)
    common.console.print(words, highlight=False, soft_wrap=True)
    return _Job(config, dataset)


_LONG = 14 * 86400.0


def _dry(job: _Job, device: torch.device, as_json: bool) -> None:
    """Print what the run would be; nothing is written."""
    plan = Plan.of(job.config)
    if job.dataset is not None:
        check_data(job.config, job.dataset)
        few = job.dataset.first(64)
    else:
        few = torch.rand(64, job.config.channels, *job.config.size, generator=torch.Generator().manual_seed(0))
    said: list[str] = []
    with common.progress("trying a few steps"):
        found: Estimate = estimate(job.config, device, few, said.append)
    numbers = {
        **asdict(found),
        "config": job.config.to_dict(),
        "process": plan.process.identity(),
        "steps": job.config.steps,
        "device": device.type,
    }
    if as_json:
        typer.echo(json.dumps(numbers, indent=2))
        return
    typer.echo(yaml.safe_dump(job.config.to_dict(), sort_keys=False, allow_unicode=True).rstrip())
    for key, value in plan.process.identity().items():
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


def train(
    name: str = typer.Argument("", metavar="[RECIPE]", help=f"A recipe ({SUMMARY}), or a process."),
    data: Path = typer.Option(None, "--data", help="A prepared dataset, an archive, a folder or zip of images."),
    output: Path = typer.Option(Path("run"), "--output", "-o", help="Folder for checkpoints and log."),
    overrides: list[str] = typer.Option([], "--set", help="KEY=VALUE, e.g. --set lr=1e-4 --set network.dropout=0."),
    resume: str = typer.Option("auto", "--resume", help="auto continues the run in the folder; never refuses to."),
    start: Path = typer.Option(
        None, "--from", help="Begin a new run with the weights of this run, checkpoint, or score_sde_pytorch file."
    ),
    images: int = typer.Option(None, "--images", min=0, help="Images seen in all; 0: the start of the run alone."),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Print recipe, parameters, memory and time; train nothing."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the outcome as JSON."),
    seed: int = typer.Option(None, "--seed", min=0, help="Everything random follows from it."),
    device: str = common.DEVICE,
) -> None:
    """Train a model. It may be killed at any moment; the same command again continues it.

    Example: anisodiff train cifar10-anisotropic --data cifar-10-python.tar.gz --output run

    Your own images: anisodiff train --data photos/ --output run

    Fine-tuning: anisodiff train cifar10-anisotropic --data cifar10 --from checkpoint_24.pth --output run

    On several GPUs: accelerate launch -m anisodiff train …, or torchrun --nproc-per-node 8 -m anisodiff train …
    """
    if resume not in ("auto", "never"):
        raise ValueError(f"unknown --resume {resume!r}; {notation.nearest(resume, ('auto', 'never'))}")
    where = pick_device(device)
    leads = os.environ.get("RANK", "0") == "0"  # of several processes the first speaks
    common.console.quiet = not leads
    changes = _changes(overrides, seed, images)
    if start is not None and start.is_file():  # a published network: keep what it was given and asked for
        changes = {"parameterization": "ve", **changes}
    job = _job(name, data, output, changes, dry_run)
    if dry_run:
        _dry(job, where, as_json)
        return
    assert job.dataset is not None
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn("{task.fields[rate]}"), TimeRemainingColumn(), console=common.console, transient=True,
        speed_estimate_period=120,
    )  # fmt: skip
    bar.disable = not leads
    with bar:
        outcome = run_training(
            job.config,
            job.dataset,
            output,
            device=where,
            resume=resume == "auto",
            start=start,
            hooks=_hooks(bar, output, job.config),
        )
    if not leads:
        return
    if as_json:
        typer.echo(json.dumps({**asdict(outcome), "checkpoint": str(outcome.checkpoint)}))
        return
    loss = "" if outcome.loss is None else f", loss {outcome.loss:.4f}"
    left_out = f", {outcome.skipped} bad batches left out" if outcome.skipped else ""
    ended = "finished" if outcome.finished else "stopped"
    typer.echo(f"{ended} at step {outcome.step}: {outcome.images} images seen{loss}{left_out}")
    if outcome.checkpoint is not None:
        common.wrote(outcome.checkpoint)


def _hooks(bar: Progress, output: Path, config: TrainConfig) -> Hooks:
    """Lines, a bar with images per second and remaining time, the prior, and grids of samples in ``samples/``."""

    def on_interval(model: Model, step: int, prior: Mapping[str, Tensor] | None) -> None:
        if prior is not None:
            grid = preview.sample_grid(model, prior, t_min=config.t_min, process=process_of(config))
            preview.write_grid(grid, output / "samples" / f"step-{step:08d}.png")

    task = bar.add_task("training", total=1, rate="")

    def on_log(record: dict[str, Any]) -> None:
        rate = f"{record['images_per_second']:,.0f} images/s"
        loss = "" if record["loss"] is None else f", loss {record['loss']:.4f}"
        bar.update(task, rate=rate + loss)
        if not bar.console.is_terminal:
            bar.console.print(f"step {record['step']}: {record['images']} images, {rate}{loss}", highlight=False)

    say: Callable[[str], None] = lambda line: bar.console.print(line, highlight=False, soft_wrap=True)  # noqa: E731
    progress: Callable[[int, int], None] = lambda done, total: bar.update(task, completed=done, total=total)  # noqa: E731
    return Hooks(say=say, progress=progress, on_log=on_log, on_interval=on_interval, fit_prior=preview.fit_prior)
