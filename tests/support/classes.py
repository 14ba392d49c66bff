"""Labeled images for tests: classes whose scores are known, and small sets with labels."""

from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from anisodiff.dct import dct2, idct2
from anisodiff.models.base import Model, ModelOptions
from anisodiff.models.score import ScoreModel
from anisodiff.models.velocity import VelocityModel
from anisodiff.processes import Process
from tests.support.oracles import F64

SIZE, WITHIN, BETWEEN = 4, 0.01, 0.04
"""Pixels of a class are N(m, WITHIN), and the means m of infinitely many classes are N(½, BETWEEN): the law of all
classes together is N(½, WITHIN + BETWEEN)."""
MEANS = (0.65, 0.3)
"""Of the two classes that have a label."""


def images(count: int = 256) -> Tensor:
    """Draws of all classes together, [count, 1, SIZE, SIZE]."""
    g = torch.Generator().manual_seed(3)
    return 0.5 + (WITHIN + BETWEEN) ** 0.5 * torch.randn(count, 1, SIZE, SIZE, dtype=F64, generator=g)


def law(labels: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of a pixel, [B, 1, 1, 1] each; None and the label 2: of all classes."""
    labels = torch.full((count,), 2) if labels is None else labels
    mean, variance = (
        torch.tensor([*MEANS, 0.5], dtype=F64),
        torch.tensor([WITHIN, WITHIN, WITHIN + BETWEEN], dtype=F64),
    )
    return mean[labels][:, None, None, None], variance[labels][:, None, None, None]


class Exact(torch.nn.Module):
    """The network that a class-conditional model converges to; counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.answer = 0, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

    def forward(
        self, x: Tensor, c: Tensor, labels: Tensor | None = None, dropout_key: Tensor | None = None
    ) -> Tensor:
        self.calls += 1
        return self.answer(x, c, *law(labels, len(x)))


def score_model(process: Process) -> ScoreModel:
    """Of `ve`: U_t = x + √N ξ, so the score of a class is −(u − m)/(WITHIN + N)."""
    network = Exact()
    model = ScoreModel.build(network, process, process.estimate_statistics(images()), ModelOptions()).double()

    times = torch.linspace(0, model.T, 20001, dtype=F64)[1:]
    told = 0.25 * model.level_at(times)

    def answer(x: Tensor, c: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        assert bool((c == c[0]).all())
        at = model.coefficients(times[torch.searchsorted(told, c[:1]).clamp(max=len(times) - 1)])
        z = dct2(x) / at.input
        score = dct2(-(model.from_coordinates(z) - mean) / (variance + at.noise))
        return idct2((score + z / at.power) / at.scale)

    network.answer = answer
    return model


def velocity_model(process: Process) -> VelocityModel:
    """Of flow matching: z = 2u − 1 = (1 − t) z0 + s ξ, and E[dz/dt | z] is linear in z for each class."""
    network = Exact()
    model = VelocityModel(network, process, process.estimate_statistics(images())).double()

    def answer(z: Tensor, t: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        t, least = t[:, None, None, None], process.sigma_min
        a, s, power = 1 - t, t + least * (1 - t), 4 * variance
        off = z - a * (2 * mean - 1)
        both = a.square() * power + s.square()
        return (1 - least) * s / both * off - (2 * mean - 1) - a * power / both * off

    network.answer = answer
    return model


def counted(model: Model, run: Callable[[], float]) -> tuple[float, int]:
    """What ``run`` says it spent, and the calls of the network meanwhile."""
    before = model.network.calls
    return run(), model.network.calls - before


def labeled_pixels(count: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Dark pictures of class 0 and bright ones of class 1, uint8 [count, 1, 8, 8], with their labels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    field = 0.25 + 0.5 * labels[:, None, None, None] + rng.normal(0, 0.05, (count, 1, 8, 8))
    return (255 * field.clip(0, 1)).astype(np.uint8), labels


def class_folders(path, count: int = 12):
    """The same as pictures in two folders."""
    pictures, labels = labeled_pixels(count)
    for number, (picture, label) in enumerate(zip(pictures[:, 0], labels)):
        folder = path / ("dark", "bright")[label]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.kron(picture, np.ones((2, 2), np.uint8))).save(folder / f"{number:02d}.png")
    return path
