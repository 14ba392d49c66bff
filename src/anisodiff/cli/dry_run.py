"""``anisodiff train --dry-run``: the config as a file for ``--config``, with what the run will cost as comments."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
import typer
import yaml

from anisodiff.cli.train_job import Command, Job, job_of
from anisodiff.data import Source
from anisodiff.data.guessing import blurred
from anisodiff.data.latents import open_latents
from anisodiff.data.splitting import check_run
from anisodiff.io.checkpoint import find, folder_of
from anisodiff.io.tensor_files import sha256
from anisodiff.latent.autoencoder import WEIGHTS
from anisodiff.runtime.durations import about
from anisodiff.runtime.progress import StageProgress
from anisodiff.training.config import TrainConfig
from anisodiff.training.estimate import Estimate, encoding_seconds, estimate
from anisodiff.training.model import Plan, process_of
from anisodiff.training.run_folder import RunDescription, read_run
from anisodiff.training.setup import check_data, describe, differences, find_autoencoder, notes, other_size

_LONG = 14 * 86400.0
"""Seconds: a run that takes longer gets advice."""


def measured(job: Job, device: torch.device, tell: StageProgress) -> tuple[Estimate, list[str]]:
    """The estimate, and what else there is to say."""
    config, dataset = job.run.config, job.dataset
    said = notes(config, dataset)
    if dataset is not None:
        check_data(config, dataset)
    elif job.source is not None:
        said += blurred(job.source, config.size)
    if dataset is not None and not config.latent:
        few = dataset.first(64)
    else:
        few = torch.rand(64, *config.state_shape, generator=torch.Generator().manual_seed(0))
    tell("timing a few steps", 0, None)
    found = estimate(config, device, few, said.append)
    if config.latent:
        tell("timing the autoencoder", 0, None)
        encoding, lines = _encoding(job, device)
        said += lines
        found = replace(found, seconds_encoding=encoding, seconds_in_all=found.seconds_in_all + encoding)
    return found, said


def _encoding(job: Job, device: torch.device) -> tuple[float, list[str]]:
    """Seconds to encode the images that are not encoded yet, and what to say of the autoencoder."""
    config, images = job.run.config, job.dataset or job.source
    try:
        found = find_autoencoder(config)
        said = other_size(found, config.size)
        if job.dataset is not None and open_latents(job.dataset, sha256(found.folder / WEIGHTS)) is not None:
            return 0.0, said
        seconds = encoding_seconds(config, device)
    except ValueError as error:
        return 0.0, [f"encoding the images is not in these times: {error}"]
    if images is None:
        return 0.0, [*said, f"encoding, once, is not in these times: {about(1000 * seconds)} per thousand images"]
    return seconds * len(images), said


def foreseen(command: Command, run: RunDescription, source: Source | None) -> list[str]:
    """What the command without --dry-run would do with a run, or other images, in the output folder."""
    output, there = command.output, any(folder_of(command.output).glob("step-*"))
    wrong = ["--resume never"] if there and command.resume == "never" else []
    try:
        if there:
            run, dataset, source = job_of(replace(command, begun=True, saved=read_run(output)))
            saved = find(output).meta
            wanted = describe(Plan.of(_with_images_of(saved, run.config)), dataset)
            known = dataset is not None and source is None  # what is to be prepared is compared below
            wrong += differences(saved, wanted if known else {**wanted, "data": saved["data"]})
        if source is not None:
            check_run(source, output, run.holdout, size=run.config.size, channels=run.config.channels)
    except ValueError as error:
        wrong.append(str(error))
    if not there and not wrong:
        return []
    holds = f"{output} holds a run: " if there else ""
    does = f"be refused ({'; '.join(wrong)}): choose another --output" if wrong else "continue it"
    return [f"{holds}without --dry-run this command would {does}"]


def _with_images_of(saved: Mapping[str, Any], config: TrainConfig) -> TrainConfig:
    """The config with what only the images tell, classes and latents, as the run there has it: none are read now."""
    if config.asks_classes and saved["config"].get("classes"):
        config = replace(config, classes=tuple(saved["config"]["classes"]))
    if not config.latent or "sha256" in config.latent:
        return config
    code = sha256(find_autoencoder(config).folder / WEIGHTS)
    return replace(config, latent={**saved["config"].get("latent", {}), **config.latent, "sha256": code})


def show(run: RunDescription, device: torch.device, cost: Estimate, said: list[str], *, as_json: bool) -> None:
    """Print it; nothing is written."""
    config, identity = run.config, process_of(run.config).identity()
    if as_json:
        facts = {"process": identity, "steps": config.steps, "device": device.type, "notes": said}
        typer.echo(json.dumps({**asdict(cost), "config": config.to_dict(), **facts}, indent=2))
        return
    typer.echo(yaml.safe_dump(run.to_dict(), sort_keys=False, allow_unicode=True).rstrip())
    typer.echo("# process: " + ", ".join(f"{key} = {value}" for key, value in identity.items()))
    for line in [*said, *_lines(config, device, cost)]:
        typer.echo(f"# {line}")


def _lines(config: TrainConfig, device: torch.device, cost: Estimate) -> list[str]:
    measured = "measured" if cost.measured_bytes else "estimated"
    before = "not timed here, and not in the whole run" if cost.seconds_before is None else about(cost.seconds_before)
    lines = [
        f"parameters: {cost.parameters:,}",
        f"memory: {cost.bytes / 2**30:.2f} GiB {measured}, of which {cost.state_bytes / 2**30:.2f} GiB state",
        f"time per thousand images on {device.type}: {about(cost.seconds_per_thousand)}, {cost.how}",
        *([f"encoding the images, once: {about(cost.seconds_encoding)}"] if cost.seconds_encoding else []),
        f"before the first step: {before}",
        f"the whole run: {config.steps:,} steps, {config.images_seen:,} images, {about(cost.seconds_in_all)}",
    ]
    if cost.seconds_in_all > _LONG:
        lines.append("shorter: --images N, a recipe that ends in -small, a smaller --set network.name, or a GPU")
    return lines
