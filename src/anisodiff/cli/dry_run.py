"""``anisodiff train --dry-run``: the config as a file for ``--config``, with what the run will cost as comments."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import torch
import typer
import yaml

from anisodiff.data import read_images
from anisodiff.data.guessing import blurred
from anisodiff.data.latents import open_latents
from anisodiff.data.splitting import aside_of
from anisodiff.io.checkpoint import find
from anisodiff.io.tensor_files import sha256
from anisodiff.latent.autoencoder import WEIGHTS
from anisodiff.notation import counted
from anisodiff.runtime.durations import about
from anisodiff.training.config import TrainConfig
from anisodiff.training.estimate import Estimate, encoding_seconds, estimate
from anisodiff.training.job import Job, Request, check_same, has_checkpoints, job_of
from anisodiff.training.model import process_of
from anisodiff.training.run_folder import RunDescription
from anisodiff.training.setup import check_data, find_autoencoder, notes, other_size


def measured(job: Job, request: Request) -> tuple[Estimate, list[str]]:
    """The estimate, and what else there is to say."""
    config, dataset, device = job.run.config, job.dataset, request.device
    count = _count(job, request.output)
    said = notes(config, count, at_most=job.source is not None and job.source.shape is None)
    few = torch.rand(64, *config.state_shape, generator=torch.Generator().manual_seed(0))
    if dataset is not None:
        check_data(config, dataset)
        said += dataset.blurred()
        few = few if config.latent else dataset.first(64)
    elif job.source is not None:
        request.tell("reading a few images", 0, None)  # refused as by the command itself
        pixels = read_images(job.source, size=config.size, channels=config.channels, most=64)
        few = few if config.latent else torch.from_numpy(pixels).float() / 255
        said += blurred(job.source, config.size)
    request.tell("timing a few steps", 0, None)
    found = estimate(config, device, few, said.append)
    if config.latent:
        request.tell("timing the autoencoder", 0, None)
        encoding, lines = _encoding(job, device, count)
        said += lines
        found = replace(found, seconds_encoding=encoding, seconds_in_all=found.seconds_in_all + encoding)
    return found, said + _foreseen(job, request)


def _count(job: Job, output: Path) -> int | None:
    """How many images the run would be trained on; files that cannot be decoded count."""
    if job.source is None:
        return None if job.dataset is None else len(job.dataset)
    return len(job.source) - (aside_of(job.run.holdout, output, len(job.source)) or 0)


def _encoding(job: Job, device: torch.device, count: int | None) -> tuple[float, list[str]]:
    """Seconds to encode ``count`` images, if they are not encoded yet, and what to say of the autoencoder."""
    config = job.run.config
    try:
        found = find_autoencoder(config)
        said = other_size(found, config.size)
        if job.dataset is not None and open_latents(job.dataset, sha256(found.folder / WEIGHTS)) is not None:
            return 0.0, said
        seconds = encoding_seconds(config, device)
    except ValueError as error:
        return 0.0, [f"encoding the images is not in these times: {error}"]
    if count is None:
        return 0.0, [*said, f"encoding, once, is not in these times: {about(1000 * seconds)} per thousand images"]
    return seconds * count, said


def _foreseen(job: Job, request: Request) -> list[str]:
    """What the command without --dry-run would do with a run, or other images, in the output folder."""
    output, there = request.output, has_checkpoints(request.output)
    line = f"{f'{output} holds a run: ' if there else ''}without --dry-run this command would"
    try:
        if there:
            job = job_of(replace(request, begun=True))
            find(output)  # a damaged one is refused
        check_same(job.run.config, job.source or job.dataset, replace(request, holdout=job.run.holdout))
    except ValueError as error:  # it names the remedy
        return [f"{line} be refused ({error})"]
    return [f"{line} continue it"] if there else []


def show(run: RunDescription, request: Request, cost: Estimate, said: list[str], *, as_json: bool) -> None:
    """Print it; nothing is written."""
    config, identity, device = run.config, process_of(run.config).identity(), request.device
    if as_json:
        facts = {"process": identity, "steps": config.steps, "device": device.type, "notes": said}
        typer.echo(json.dumps({**asdict(cost), "config": config.to_dict(), **facts}, indent=2))
        return
    typer.echo(yaml.safe_dump(run.to_dict(), sort_keys=False, allow_unicode=True).rstrip())
    typer.echo("# process: " + ", ".join(f"{key} = {value}" for key, value in identity.items()))
    for line in [*said, *_lines(config, request, cost)]:
        typer.echo(f"# {line}")


def _lines(config: TrainConfig, request: Request, cost: Estimate) -> list[str]:
    measured = "measured" if cost.measured_bytes else "estimated"
    before = "not timed here, and not in the whole run" if cost.seconds_before is None else about(cost.seconds_before)
    return [
        f"parameters: {cost.parameters:,}",
        f"memory: {cost.bytes / 2**30:.2f} GiB {measured}, of which {cost.state_bytes / 2**30:.2f} GiB state",
        f"time per thousand images on {request.device.type}: {about(cost.seconds_per_thousand)}, {cost.how}",
        *([f"encoding the images, once: {about(cost.seconds_encoding)}"] if cost.seconds_encoding else []),
        f"before the first step: {before}",
        f"the whole run: {counted(config.steps, 'step', ',')}, {counted(config.images_seen, 'image', ',')}, "
        f"{about(cost.seconds_in_all)}",
    ]
