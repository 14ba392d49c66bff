"""What a run shows while it trains: its progress, the fitted prior it keeps, and grids of samples."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisodiff.data import Dataset
from anisodiff.data.latents import open_latents
from anisodiff.io.grids import save_grid
from anisodiff.latent.codec import Codec, codec_of
from anisodiff.models.base import Model
from anisodiff.noise import KeyedNoise, combine
from anisodiff.priors import GaussianPrior
from anisodiff.processes import Process
from anisodiff.registry import default_sampler
from anisodiff.runtime.durations import about
from anisodiff.runtime.progress import Progress, StageProgress, no_progress, no_stage_progress
from anisodiff.training.config import TrainConfig
from anisodiff.training.hooks import Hooks
from anisodiff.training.model import calibration_images, process_of

FIRST = 60.0
"""Seconds of training before the first grid."""
SHARE = 0.1
"""Of the time trained so far: the most that a grid may take."""
_GRIDS = ((8, 32), (6, 32), (4, 32), (4, 16), (3, 16), (2, 16), (2, 8))
"""Side and NFE, from what is wanted to what a slow machine gets."""


def showing(
    output: Path,
    config: TrainConfig,
    dataset: Dataset,
    *,
    tell: StageProgress = no_stage_progress,
    say: Callable[[str], None] = lambda _: None,
    began: float | None = None,
    on_log: Callable[[dict[str, Any]], None] = lambda _: None,
    on_grid: Callable[[Tensor, int], None] = lambda images, step: None,
) -> Hooks:
    """Hooks of a run that people watch: progress and lines, the prior, grids of samples in ``output``/samples.

    ``began`` is `time.perf_counter` when the command began. ``on_log`` gets each record of the log, ``on_grid`` the
    images of each grid and its step.
    """
    process, begin = process_of(config), time.perf_counter() if began is None else began
    codec: list[Codec | None] = []  # loaded for the first grid
    trained: list[float] = []  # when the first step was done
    shown: list[Path] = []

    def progress(stage: str, done: int, total: int | None, note: str = "") -> None:
        tell(stage, done, total, note)
        if stage == "training" and total is not None and not trained:
            trained.append(time.perf_counter())
            say(f"first step after {about(trained[0] - begin)}")

    def on_interval(model: Model, step: int, prior: Mapping[str, Tensor] | None) -> Tensor | bool:
        if prior is None or model.conditional:  # a grid has no image to condition on
            return False
        so_far = time.perf_counter() - trained[0] if trained else 0.0
        if config.latent and not codec:
            codec.append(_codec(config, model.level.device, say))
        if config.latent and codec[0] is None:
            return False
        side, nfe = affordable(evaluation_seconds(model, prior), SHARE * max(FIRST, so_far))
        if not side:
            return False
        start = start_states(process, prior, config, dataset, side * side, model.level.device)
        grid = sample_grid(
            model, start, t_min=config.t_min, process=process, nfe=nfe, classes=len(config.classes),
            progress=lambda done, total: tell("sampling", done, total, f"{side * side} images"),
        )  # fmt: skip
        if codec and codec[0] is not None:
            grid = codec[0].decode(grid)
        path = output / "samples" / f"step-{step:08d}.png"
        images = grid.clamp(0, 1).to("cpu", torch.float32)
        save_grid(images, path)
        on_grid(images, step)
        if not shown:
            say(f"first samples after {about(time.perf_counter() - begin)}: {path}")
        shown.append(path)
        return images

    return Hooks(
        say=say, progress=progress, on_log=on_log, on_interval=on_interval, first_after=FIRST, began=begin,
        fit_prior=fit_prior,
    )  # fmt: skip


def _codec(config: TrainConfig, device: torch.device, say: Callable[[str], None]) -> Codec | None:
    """The decoder of the grids; None, with a line that says why, where it is gone: cached latents train on."""
    try:
        return codec_of(config.latent, config.channels, device)
    except ValueError as error:
        say(f"no grids of samples: {error}")
        return None


def fit_prior(process: Process, images: Tensor) -> Mapping[str, Tensor]:
    """The Gaussian of the terminal states of ``images`` [N, C, H, W], as tensors for a checkpoint."""
    prior = process.prior(images)
    return {"mean": prior.mean, "root": prior.root}


def affordable(seconds: float, budget: float) -> tuple[int, int]:
    """Side and NFE of the largest grid within ``budget`` seconds, if one image costs ``seconds`` an evaluation."""
    return next((grid for grid in _GRIDS if grid[0] ** 2 * grid[1] * seconds <= budget), (0, 0))


def timed_at_once(device: torch.device) -> int:
    """Images of an evaluation that is timed: a GPU takes hardly longer for a full grid than for a few."""
    return _GRIDS[0][0] ** 2 if device.type == "cuda" else 4


def evaluation_seconds(model: Model, prior: Mapping[str, Tensor]) -> float:
    """Seconds of one network evaluation, for one image of `timed_at_once`."""
    device = model.level.device
    count, dtype = timed_at_once(device), next(model.network.parameters()).dtype
    states = prior["mean"].to(device, dtype)[None].expand(count, -1, -1, -1).contiguous()
    states = states.repeat(1, 2, 1, 1) if model.conditional else states
    level = torch.zeros(count, dtype=dtype, device=device)

    def evaluate() -> float:
        begin = time.perf_counter()
        with torch.no_grad():
            model.network(states, level)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - begin) / count

    return min(evaluate(), evaluate())


def start_states(
    process: Process, prior: Mapping[str, Tensor], config: TrainConfig, dataset: Dataset, count: int,
    device: torch.device,
) -> Tensor:  # fmt: skip
    """``count`` terminal states of the process's own prior, the same every time.

    They are drawn from the fitted Gaussian, or the forward process makes them from training images.
    """
    noise = KeyedNoise(combine(0, 1, torch.arange(count, device=device)))
    if process.own_prior == "gaussian":
        return GaussianPrior(prior["mean"].to(device).float(), prior["root"].to(device).float()).draw(count, noise)
    latents = open_latents(dataset, config.latent["sha256"]) if config.latent else None
    images = calibration_images(replace(config, calibration=max(16, count)), dataset, device, latents)
    return process.draw(images[:count], process.T, noise)


def sample_grid(
    model: Model,
    start: Tensor,
    *,
    t_min: float,
    process: Process,
    nfe: int = 32,
    classes: int = 0,
    progress: Progress = no_progress,
) -> Tensor:
    """Images, or latent states, [side², C, H, W] from the terminal states ``start``.

    With ``classes`` each row is of one class; of more classes than rows some are left out, evenly. Image k has the
    same seeds every time: grids of the same side and ``nfe`` compare place by place, others do not.
    """
    side, dtype = math.isqrt(len(start)), next(model.network.parameters()).dtype
    start = start.to(dtype) if dtype == torch.float64 else start
    place = torch.arange(len(start), device=start.device)
    if classes:
        row = place // side
        model = model.given(row % classes if classes <= side else row * classes // side)
    chosen = default_sampler(type(model), process, model.provided)
    times = chosen.times(model, max(nfe, chosen.min_nfe(model, t_min, model.T)), t_min=t_min)
    noise, steps = KeyedNoise(combine(0, 2, place)), len(times) - 1
    return chosen.run(model, start, times, noise, callback=lambda i, _: progress(i + 1, steps)).images
