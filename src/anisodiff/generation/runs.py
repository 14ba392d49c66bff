"""A run from Python, in one call: from images of any kind to a generator."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisodiff.data import Dataset, Source, in_memory
from anisodiff.generation.generator import Generator, load
from anisodiff.generation.images import Images
from anisodiff.io.atomic import leaving_nothing
from anisodiff.latent.autoencoder import describe
from anisodiff.networks import own
from anisodiff.runtime.devices import pick_device
from anisodiff.runtime.distributed import Distributed
from anisodiff.runtime.progress import StageProgress, no_stage_progress, stages
from anisodiff.training import TrainConfig
from anisodiff.training.config import FIELDS
from anisodiff.training.job import Request, has_checkpoints, job_of, run_job
from anisodiff.training.run_folder import NAME, RunDescription, read_run

TrainingImages = str | Path | Dataset | Tensor | NDArray[Any]
"""A folder, zip, .npy, .npz or prepared dataset, or images in memory: uint8, or float in [0, 1]."""


def train(
    data: TrainingImages | Source | None = None,
    output: str | Path = "run",
    *,
    labels: Tensor | NDArray[Any] | None = None,
    config: TrainConfig | None = None,
    holdout: str | int | None = None,
    device: torch.device | str = "auto",
    progress: bool | None = None,
    on_log: Callable[[dict[str, Any]], None] = lambda _: None,
    on_grid: Callable[[Images, int], None] = lambda images, step: None,
    stop: Callable[[], bool] = lambda: False,
    track: Sequence[str] | None = None,
    **keys: Any,
) -> Generator:
    """Train on images of your own, and return the model; how the run ended is its ``outcome``.

    ``data``: a path, a prepared dataset, or images [N, C, H, W], uint8 or in [0, 1], with ``labels`` [N] where they
    have classes; None continues the run in ``output``. What is not given is picked as by `anisodiff train --data`.
    ``keys`` are those of `TrainConfig` (``process="ve", images=200_000, lr=1e-4, size=32, seed=1``); they change
    ``config``, where one is given. ``network``: a name, the class of your own, or ``{"name": MyUNet, "width": 64}``.
    ``classes="auto"`` learns the classes: labels of the set, or subfolders.
    ``latent``: train on the latents of an autoencoder of diffusers, a folder or OWNER/NAME on the Hub.
    ``holdout``: keep images aside, ``"10%"`` or a number of them; a run that continues keeps what it kept.

    Checkpoints, log and grids of samples are written into ``output``; where it holds this run, the run continues.
    ``on_log`` gets each record of the log, ``on_grid`` each grid and its step. ``stop`` is asked after every step:
    True ends the run with a checkpoint, as Ctrl-C does. ``progress``: notes on standard error, and on a terminal a
    bar; True: lines elsewhere, too; False: nothing. ``track``: ``("tensorboard", "wandb")``, one of them, or ``()``;
    None: TensorBoard, where it is installed.
    """
    where, folder = pick_device(device), Path(output)
    if data is None and config is None and not (has_checkpoints(folder) or (folder / NAME).is_file()):
        raise ValueError(f"{output} holds no run to continue: give images as data, or the folder of a run as output")
    if config is not None and not isinstance(config, TrainConfig):
        raise ValueError(f"config: got {type(config).__name__}, expected a TrainConfig; single keys go without it")
    own.trust(keys)  # what was written here; not what a file says
    if isinstance(keys.get("latent"), str | Path):
        keys["latent"] = describe(keys["latent"], online=True).as_keys()
    with leaving_nothing(folder, NAME, ".lock"), _screen(progress) as (say, tell):
        run = read_run(folder) if data is None else None
        if config is not None:
            run, keys = replace(run or RunDescription(config=config), config=config.changed(keys), given=FIELDS), {}
        request = Request(
            output=folder, data=_given(data, labels),
            description=None if config is None else run, changes=keys, begun=has_checkpoints(folder), python=True,
            holdout=None if holdout is None else str(holdout), device=where, say=say, tell=tell,
        )  # fmt: skip
        outcome = run_job(
            job_of(request), request, stop=stop, track=track, on_log=on_log,
            on_grid=lambda images, step: on_grid(images.as_subclass(Images), step),
        )  # fmt: skip
    Distributed(where).agree(lambda: None)  # all wait for the last checkpoint
    generator = load(folder, where)
    generator.outcome = outcome
    return generator


@contextmanager
def _screen(wanted: bool | None) -> Iterator[tuple[Callable[[str], None], StageProgress]]:
    """Where lines and progress go: standard error, a bar on a terminal alone; only of the first process."""
    from rich.console import Console

    console = Console(stderr=True, markup=False, emoji=False)
    if os.environ.get("RANK", "0") != "0" or wanted is False:
        yield lambda _: None, no_stage_progress
        return
    with stages(console, shown=wanted or console.is_terminal) as tell:
        yield partial(console.print, highlight=False, soft_wrap=True), tell


def _given(data: TrainingImages | Source | None, labels: Tensor | NDArray[Any] | None) -> Path | Source | None:
    """A path, or a source of images in memory."""
    if isinstance(data, Tensor | np.ndarray):
        return in_memory(data, labels)
    if labels is not None:
        raise ValueError(f"labels: they belong to images in memory, got {type(data).__name__}; a set has its own")
    if isinstance(data, Dataset):
        return data.path
    if data is None or isinstance(data, Source):
        return data
    if not isinstance(data, str | Path):
        raise ValueError(f"data: got {type(data).__name__}, expected a path, a dataset, or a tensor of images")
    return Path(data)
