"""A run from Python, in one call: from images of any kind to a generator."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisodiff.data import Dataset, Source, in_memory, is_dataset, open_dataset, open_source
from anisodiff.data.splitting import aside_of, is_cut, prepare_run, source_of
from anisodiff.generation.generator import Generator, load
from anisodiff.generation.images import Images
from anisodiff.io.checkpoint import folder_of
from anisodiff.latent.autoencoder import describe
from anisodiff.networks import own
from anisodiff.runtime.devices import pick_device
from anisodiff.runtime.distributed import Distributed
from anisodiff.runtime.progress import StageProgress, no_stage_progress, stages
from anisodiff.training import Plan, TrainConfig, loop
from anisodiff.training.picking import Machine, for_dataset, for_source
from anisodiff.training.preview import showing
from anisodiff.training.run_folder import NAME, RunDescription, read_run
from anisodiff.training.setup import find_autoencoder, with_classes, with_latents

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
    True ends the run with a checkpoint, as Ctrl-C does. ``progress``: a bar on a terminal, unless False. ``track``:
    ``("tensorboard", "wandb")``, one of them, or ``()``; None: TensorBoard, where it is installed.
    """
    where, folder = pick_device(device), Path(output)
    if config is not None and not isinstance(config, TrainConfig):
        raise ValueError(f"config: got {type(config).__name__}, expected a TrainConfig; single keys go without it")
    own.trust(keys)  # what was written here; not what a file says
    if isinstance(keys.get("latent"), str | Path):
        keys["latent"] = describe(keys["latent"], online=True).as_keys()
    with _screen(progress) as screen:
        images = _Images(folder, None if holdout is None else str(holdout), screen)
        if labels is not None:
            data = _with_labels(data, labels)
        run = _describe(data, images, config, keys, where)
        assert run.data is not None
        dataset = open_dataset(run.data)
        tell = partial(screen.tell, "encoding the images")
        own_gpu = Distributed(where).device  # of several processes each has its own
        made, _ = with_latents(
            with_classes(run.config, dataset), dataset, own_gpu, tell, start=run.start, say=screen.say
        )
        run = replace(run, config=made)
        hooks = showing(
            folder, run.config, dataset, tell=screen.tell, say=screen.say, on_log=on_log,
            on_grid=lambda images, step: on_grid(images.as_subclass(Images), step),
        )  # fmt: skip
        outcome = loop.train(
            run.config, dataset, folder, device=where, start=run.start, hooks=replace(hooks, stop=stop), track=track,
        )  # fmt: skip
    Distributed(where).agree(lambda: None)  # all wait for the last checkpoint
    generator = load(folder, where)
    generator.outcome = outcome
    return generator


@dataclass(frozen=True)
class _Screen:
    """Where lines and progress go."""

    say: Callable[[str], None] = lambda _: None
    tell: StageProgress = no_stage_progress


@contextmanager
def _screen(wanted: bool | None) -> Iterator[_Screen]:
    """The terminal, where there is one and it is wanted, of the first of several processes."""
    from rich.console import Console

    console = Console(stderr=True, markup=False, emoji=False)
    if os.environ.get("RANK", "0") != "0" or not (console.is_terminal if wanted is None else wanted):
        yield _Screen()
        return
    with stages(console) as tell:
        yield _Screen(partial(console.print, highlight=False, soft_wrap=True), tell)


def _describe(
    data: TrainingImages | Source | None, images: "_Images", config: TrainConfig | None, keys: Mapping[str, Any],
    device: torch.device,
) -> RunDescription:  # fmt: skip
    """Config and prepared images: those of the run in the folder, those given, or what suits the images."""
    folder = images.folder
    if data is None or (_has_checkpoint(folder) and config is None):
        run = read_run(folder)
        if "network" in keys and config is None:
            keys = {**keys, "network": own.again(keys["network"], run.config.network)}
        made, given = (config or run.config).changed(keys), run.data if data is None else data
        if given is None:
            raise ValueError(f"{folder / NAME} names no data: give the images")
        return replace(run, config=made, data=images.prepare(_source(given, made.classes), made))
    if config is not None:
        made = config.changed(keys)
        Plan.of(made)  # contradictions show before anything is prepared
        if made.latent:
            find_autoencoder(made)
        return RunDescription(config=made, data=images.prepare(_source(data, made.classes), made))
    source, machine = _source(data, TrainConfig(classes=keys.get("classes", ())).classes), Machine.of(device)
    if isinstance(source, Dataset):
        made, words = for_dataset(source, machine, **_preset(keys), changes=keys)
    else:
        aside = aside_of(images.holdout, folder, len(source)) or 0
        made, words = for_source(source, machine, **_preset(keys), changes=keys, aside=aside)
    images.screen.say(words)
    return RunDescription(config=made, data=images.prepare(source, made))


def _preset(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The name of the process among the keys, where it is given."""
    given = keys.get("process")
    name = given.get("preset") if isinstance(given, Mapping) else given
    return {"process": name} if isinstance(name, str) else {}


def _with_labels(data: TrainingImages | Source | None, labels: Tensor | NDArray[Any]) -> Source:
    """Images in memory with their labels."""
    if not isinstance(data, Tensor | np.ndarray):
        raise ValueError(f"labels: they belong to images in memory, got {type(data).__name__}; a set has its own")
    return in_memory(data, labels)


def _source(data: TrainingImages | Source, classes: tuple[str, ...]) -> Dataset | Source:
    """A dataset or source of what was given; of a folder with its subfolders as classes, where they are learned."""
    if isinstance(data, Dataset | Source):
        return data
    if isinstance(data, Tensor | np.ndarray):
        return in_memory(data)
    if not isinstance(data, str | Path):
        raise ValueError(f"data: got {type(data).__name__}, expected a path, a dataset, or a tensor of images")
    return open_dataset(data) if is_dataset(data) else open_source(data, labels=bool(classes))


@dataclass(frozen=True)
class _Images:
    """Where images are prepared, and how many of them are held out."""

    folder: Path
    holdout: str | None
    screen: _Screen

    def prepare(self, source: Dataset | Source, config: TrainConfig) -> Path:
        """A prepared dataset as it is, unless it is cut in two; everything else is prepared in the run's folder."""
        if isinstance(source, Dataset):
            if not is_cut(source.path, self.folder, self.holdout):
                return source.path
            source = source_of(source.path, self.folder)
        tick = partial(self.screen.tell, "preparing the images")
        tick(0, None)
        made = prepare_run(
            source, self.folder, self.holdout, size=config.size, channels=config.channels, progress=tick
        )
        for line in made.messages:
            self.screen.say(line)
        return made.data.path


def _has_checkpoint(folder: Path) -> bool:
    return (folder / NAME).is_file() and any(folder_of(folder).glob("step-*"))
