"""``anisodiff train``: train a model on a set of images, or continue its training."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from anisodiff import notation
from anisodiff.cli import common
from anisodiff.cli.names import RECIPES, complete_recipe
from anisodiff.io.atomic import leaving_nothing
from anisodiff.notation import counted
from anisodiff.registry import TRAINED
from anisodiff.runtime.progress import stages

if TYPE_CHECKING:
    from anisodiff.training.hooks import TrainingOutcome


def train(
    name: str = typer.Argument(
        "", metavar="RECIPE", help="Choose a recipe or a process.", autocompletion=complete_recipe
    ),
    data: Path = typer.Option(None, "--data", help="Read a dataset, an archive, a folder or zip of images."),
    output: Path = common.output_folder(Path("run"), "Write checkpoints and log into this folder."),
    file: Path = typer.Option(None, "--config", help="Read the keys from a YAML file, or from another run."),
    overrides: list[str] = typer.Option([], "--set", help="Override a key, e.g. --set lr=1e-4; repeatable."),
    network: str = typer.Option(None, "--network", help="Choose a network: a name, or MODULE:CLASS of your own."),
    trust_code: bool = common.TRUST,
    resume: str = typer.Option("auto", "--resume", help="auto: resume if a run exists. never: fail if one exists."),
    start: Path = typer.Option(None, "--from", help="Start from the weights of a run or score_sde file."),
    images: int = typer.Option(None, "--images", min=0, help="Train for this many images; 0: only set up the run."),
    holdout: str = typer.Option(None, "--holdout", help="Hold out this share or number of images: 10%, 500."),
    track: str = typer.Option(None, "--track", help="Log to tensorboard, wandb (comma-separated), or none."),
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
    notation.check_choice(resume, ("auto", "never"), "--resume")
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
        from anisodiff.networks import own
        from anisodiff.runtime.devices import pick_device
        from anisodiff.training.job import Request, has_checkpoints, job_of, run_job, trust_files
        from anisodiff.training.model import read_trained
        from anisodiff.training.trackers import parse

        tracked = None if track is None else parse(track)  # before hours of preparing
        _check_name(name, data, file)
        request = Request(
            output=output, data=data, recipe=name if name in RECIPES else "", process="" if name in RECIPES else name,
            description=None if file is None else read_trained(file), file=file, changes=changes, start=start,
            holdout=holdout, resume=resume == "auto", dry=dry_run, begun=has_checkpoints(output) and not dry_run,
            device=pick_device(device), say=common.say, tell=tell,
        )  # fmt: skip
        own.trust(changes)  # what was typed here; not what a file says, unless it is allowed
        if trust_code:
            trust_files(request)
        job = job_of(request)
        if dry_run:
            cost, said = dry.measured(job, request)
        else:
            outcome = run_job(job, request, track=tracked, began=began)
    if dry_run:
        dry.show(job.run, request, cost, said, as_json=as_json)
        return
    if leads:
        _report(outcome, as_json)
    if not outcome.finished:
        raise typer.Exit(130)  # a command behind && must not take the run for whole


def _check_name(name: str, data: Path | None, file: Path | None) -> None:
    """Refuse a name that is neither a recipe nor a process, and one beside a file."""
    if name and file is not None:
        raise ValueError(f"got the recipe {name!r} and --config {file}: give one of them, and change it with --set")
    known = (*RECIPES, *TRAINED)
    if not name or name in known:
        return
    if (Path(name) / "config.yaml").is_file():
        raise ValueError(f"{name!r} is a run, not a recipe; to continue it: anisodiff train -o {name}")
    if Path(name).exists():
        remedy = f"did you mean --data {name}?" if data is None else f"for the folder of the run: -o {name}"
        raise ValueError(f"{name!r} is a path, not a recipe; {remedy}")
    if "=" in name:
        raise ValueError(f"{name!r} is a setting, not a recipe: each key needs a --set of its own, --set {name}")
    raise ValueError(f"unknown recipe {name!r}; {notation.nearest(name, known)}")


@contextmanager
def _stopped_in_one_line(output: Path) -> Iterator[None]:
    """Ctrl-C before the first step, or twice: say how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        begun = (output / "config.yaml").is_file()
        how = f"continue with: anisodiff train -o {output}" if begun else "nothing was kept; give the command again"
        common.say(f"stopped; {how}")
        raise typer.Exit(130) from None


def _report(outcome: "TrainingOutcome", as_json: bool) -> None:
    """How the run ended."""
    if as_json:
        typer.echo(json.dumps({**asdict(outcome), "checkpoint": str(outcome.checkpoint)}))
        return
    if outcome.finished and outcome.began == outcome.step > 0:
        typer.echo(f"already finished: {counted(outcome.images, 'image')} seen; train longer with --images N")
        return
    loss = "" if outcome.loss is None else f", loss {outcome.loss:.4f}"
    skipped = f", {outcome.skipped} bad batches skipped" if outcome.skipped else ""
    ended = "finished" if outcome.finished else "stopped"
    typer.echo(f"{ended} at step {outcome.step}: {counted(outcome.images, 'image')} seen{loss}{skipped}")
    if outcome.checkpoint is not None:
        common.wrote(outcome.checkpoint)
