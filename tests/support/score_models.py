"""Small score models with real networks: what a sampler meets in life, in a size for tests."""

import functools
from typing import Any

import torch
from torch import Tensor

import anisodiff
from anisodiff.models.base import ModelOptions
from anisodiff.models.score import ScoreModel
from anisodiff.processes import Process
from anisodiff.samplers.grids import grid_between
from anisodiff.statistics import SpectralStatistics
from tests.support.oracles import Nothing, gaussian_images

T_MIN = 0.02
PROCESSES = {
    "ve": ("ve", {}),
    "heat": ("heat", {}),
    "windows": ("anisotropic", {"step": "exponential(windows=4)"}),
    "one step": ("anisotropic-paper", {"step": "tamed(dt=0.4)"}),
    "anisotropic noise": ("anisotropic-paper", {"step": "tamed(dt=0.4)", "noise_anisotropy": 0.5}),
}


class Small(torch.nn.Module):
    """A fixed nonlinear map of the state and its time; counts how often it is asked."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.weight = torch.nn.Parameter(0.2 * torch.randn(2 * channels, channels, 3, 3, generator=g))
        self.calls = 0

    def forward(self, x: Tensor, c: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        self.calls += 1
        return torch.tanh(torch.nn.functional.conv2d(x, self.weight, padding=1) + c[:, None, None, None])


@functools.cache
def process(name: str, size: int = 4) -> Process:
    kind, overrides = PROCESSES[name]
    return anisodiff.process(kind, size, **overrides)


def small_model(name: str) -> ScoreModel:
    """A model of 4×4 images in two channels around a `Small` network, single precision."""
    return ScoreModel.build(Small(2), process(name), _statistics(name), ModelOptions())


@functools.cache
def _statistics(name: str) -> SpectralStatistics:
    return process(name).estimate_statistics(gaussian_images(32, 4, channels=2).float())


def wiener_model(of: Process, images: Tensor, *, channel_pca: bool = False, **options: Any) -> ScoreModel:
    """The model of a process whose network adds nothing to the Wiener filter; ``options`` of `ModelOptions`."""
    statistics = of.estimate_statistics(images, channel_pca=channel_pca)
    return ScoreModel.build(Nothing(), of, statistics, ModelOptions(**options))


def build(name: str, images: Tensor, **overrides: Any) -> tuple[Process, ScoreModel]:
    """A process for ``images``, and its model by the Wiener filter alone."""
    made = anisodiff.process(name, images.shape[-1], **overrides)
    return made, wiener_model(made, images)


def level_grid(model: ScoreModel, steps: int, t_min: float, *, rho: float = 1.0) -> Tensor:
    """Descending times T … t_min, ``steps`` + 1 or more: even in the noise level, with all edges of the drift."""
    return grid_between(model, "level", steps, t_min, model.equation.T, rho=rho)
