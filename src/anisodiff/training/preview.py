"""What a run shows while it trains: the fitted prior it keeps, and grids of samples from the averaged weights."""

from collections.abc import Mapping

import torch
from torch import Tensor

from anisodiff.models.base import Model
from anisodiff.noise import KeyedNoise, combine
from anisodiff.priors import GaussianPrior
from anisodiff.processes import Process
from anisodiff.registry import default_sampler


def fit_prior(process: Process, images: Tensor) -> Mapping[str, Tensor]:
    """The Gaussian of the terminal states of ``images`` [N, C, H, W], as tensors for a checkpoint."""
    prior = process.prior(images)
    return {"mean": prior.mean, "root": prior.root}


def sample_grid(
    model: Model,
    prior: Mapping[str, Tensor],
    *,
    t_min: float,
    process: Process,
    side: int = 8,
    nfe: int = 32,
    seed: int = 0,
) -> Tensor:
    """side² images [side², C, H, W] from the Gaussian prior; the same seeds every time, so that grids compare."""
    device = model.level.device
    place = torch.arange(side * side, device=device)
    gaussian = GaussianPrior(prior["mean"].to(device).float(), prior["root"].to(device).float())
    start = gaussian.draw(side * side, KeyedNoise(combine(seed, 1, place)))
    dtype = next(model.network.parameters()).dtype
    start = start.to(dtype) if dtype == torch.float64 else start
    chosen = default_sampler(type(model), process, model.provided)
    times = chosen.times(model, max(nfe, chosen.least(model, t_min, model.T)), t_min=t_min)
    return chosen.run(model, start, times, KeyedNoise(combine(seed, 2, place))).images
