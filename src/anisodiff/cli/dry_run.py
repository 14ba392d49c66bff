"""``anisodiff train --dry-run``: the config as a file for ``--config``, with what the run will cost as comments."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from anisodiff.runtime.durations import about
from anisodiff.runtime.progress import StageProgress

if TYPE_CHECKING:
    import torch

    from anisodiff.data import Dataset
    from anisodiff.training.config import TrainConfig
    from anisodiff.training.estimate import Estimate
    from anisodiff.training.run_folder import RunDescription

_LONG = 14 * 86400.0
"""Seconds: a run that takes longer gets advice."""


def measured(
    config: "TrainConfig", dataset: "Dataset | None", device: "torch.device", tell: StageProgress
) -> "tuple[Estimate, list[str]]":
    """The estimate, and what else there is to say."""
    import torch

    from anisodiff.training.estimate import estimate
    from anisodiff.training.setup import check_data, remarks

    if dataset is not None:
        check_data(config, dataset)
    if dataset is not None and not config.latent:
        few = dataset.first(64)
    else:
        few = torch.rand(64, *config.state_shape, generator=torch.Generator().manual_seed(0))
    said = remarks(config)
    if config.latent:
        said.append("encoding the images, once before the first step, is not in these times")
    tell("timing a few steps", 0, None)
    return estimate(config, device, few, said.append), said


def show(
    run: "RunDescription",
    device: "torch.device",
    found: "tuple[Estimate, list[str]]",
    *,
    as_json: bool,
) -> None:
    """Print it; nothing is written."""
    import yaml

    from anisodiff.training.model import process_of

    (cost, said), config = found, run.config
    identity = process_of(config).identity()
    if as_json:
        facts = {"process": identity, "steps": config.steps, "device": device.type, "notes": said}
        typer.echo(json.dumps({**asdict(cost), "config": config.to_dict(), **facts}, indent=2))
        return
    typer.echo(yaml.safe_dump(run.to_dict(), sort_keys=False, allow_unicode=True).rstrip())
    typer.echo("# process: " + ", ".join(f"{key} = {value}" for key, value in identity.items()))
    for line in [*said, *_lines(config, device, cost)]:
        typer.echo(f"# {line}")


def _lines(config: "TrainConfig", device: "torch.device", cost: "Estimate") -> list[str]:
    measured, seen = "measured" if cost.measured_bytes else "estimated", config.steps * config.batch
    lines = [
        f"parameters: {cost.parameters:,}",
        f"memory: {cost.bytes / 2**30:.2f} GiB {measured}, of which {cost.state_bytes / 2**30:.2f} GiB state",
        f"time per thousand images on {device.type}: {about(cost.seconds_per_thousand)}, {cost.how}",
        *([] if cost.seconds_before is None else [f"before the first step: {about(cost.seconds_before)}"]),
        f"the whole run: {config.steps:,} steps, {seen:,} images, {about(cost.seconds_in_all)}",
    ]
    if cost.seconds_in_all > _LONG:
        lines.append("shorter: --images N, a recipe that ends in -small, a smaller --set network.name, or a GPU")
    return lines
