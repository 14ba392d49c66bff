"""Cartoons: edge-preserving smoothing filters, which keep edges and remove texture.

| kind | what it does |
|---|---|
| `perona-malik(smoothing, edge, steps)` | Perona–Malik flow with ∫α1 = smoothing pixels² and λ = edge |
| `bilateral(radius, space, color)` | mean of near pixels of similar color (Tomasi & Manduchi 1998) |
| `median(radius)` | the median of every channel in a (2·radius + 1)² window |

Each maps images [B, C, H, W] to images of the same shape. `perona-malik` is the noise-free part of the process
`cartoon` at the end of its smoothing. The other two repeat the outermost pixels beyond the border.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from anisodiff import notation
from anisodiff.equation import Equation
from anisodiff.integrators import Exponential
from anisodiff.schedules import Constant, Infinite, Power
from anisodiff.stencils import STENCILS
from anisodiff.tensors import check_state

LARGEST_RADIUS = 16


class Filter(ABC):
    """Images [B, C, H, W] → cartoons [B, C, H, W]; subclasses are frozen dataclasses."""

    @abstractmethod
    def __call__(self, images: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class PeronaMalik(Filter):
    """``perona-malik(smoothing=10, edge=0.05, steps=16)``: edge weights are updated at every step."""

    smoothing: float = 10.0
    edge: float = 0.05
    steps: int = 16

    def __post_init__(self) -> None:
        notation.check_number(self, "smoothing", 1e-6, 1e4)
        notation.check_number(self, "edge", 1e-6, math.inf)
        notation.check_number(self, "steps", 1, 1000, whole=True)

    @cached_property
    def _flow(self) -> tuple[Equation, Exponential]:
        """∫α1 = smoothing·t² up to t = T = 1, as in the process `cartoon`."""
        edge = Infinite() if self.edge == math.inf else Constant(self.edge)
        rate = Power(0.0, 2 * self.smoothing)
        equation = Equation(diffusivity=rate, intensity=Constant(0.0), drift_anisotropy=edge, T=1.0)
        return equation, Exponential(self.steps)

    def __call__(self, images: Tensor) -> Tensor:
        u, (equation, step) = check_state(images), self._flow
        for node in range(self.steps):
            u = step.freeze(equation, STENCILS["flux"], u, node).across(u, None)
        return u

    def __str__(self) -> str:
        return notation.write("perona-malik", self)


def _shifts(images: Tensor, radius: int) -> Tensor:
    """The (2·radius + 1)² neighbors of every pixel, [B, C, N, H, W]."""
    height, width = images.shape[-2:]
    side = 2 * radius + 1
    padded = F.pad(images, (radius,) * 4, mode="replicate")
    return F.unfold(padded, side).reshape(*images.shape[:2], side * side, height, width)


@dataclass(frozen=True)
class Bilateral(Filter):
    """``bilateral(radius=3, space=2, color=0.1)``: weights e^{−d²/(2·space²) − |u_n − u_i|²/(2·color²)}.

    d is in pixels, |u_n − u_i|² the mean square over the channels.
    """

    radius: int = 3
    space: float = 2.0
    color: float = 0.1

    def __post_init__(self) -> None:
        notation.check_number(self, "radius", 1, LARGEST_RADIUS, whole=True)
        notation.check_number(self, "space", 1e-3, 1e3)
        notation.check_number(self, "color", 1e-3, math.inf)

    def __call__(self, images: Tensor) -> Tensor:
        near = _shifts(check_state(images), self.radius)
        offset = torch.arange(-self.radius, self.radius + 1, dtype=images.dtype, device=images.device).square()
        distance = (offset[:, None] + offset).flatten()[:, None, None] / (2 * self.space**2)
        difference = (near - images[:, :, None]).square().mean(1) / (2 * self.color**2)
        weight = torch.exp(-distance - difference)[:, None]
        return (weight * near).sum(2) / weight.sum(2)

    def __str__(self) -> str:
        return notation.write("bilateral", self)


@dataclass(frozen=True)
class Median(Filter):
    """``median(radius=2)``."""

    radius: int = 2

    def __post_init__(self) -> None:
        notation.check_number(self, "radius", 1, LARGEST_RADIUS, whole=True)

    def __call__(self, images: Tensor) -> Tensor:
        return _shifts(check_state(images), self.radius).median(2).values

    def __str__(self) -> str:
        return notation.write("median", self)


KINDS: dict[str, type[Filter]] = {"perona-malik": PeronaMalik, "bilateral": Bilateral, "median": Median}


def read_filter(value: "Filter | str", what: str) -> Filter:
    """A filter from its notation; a `Filter` is returned unchanged."""
    if isinstance(value, Filter):
        return value
    result: Filter = notation.read(str(value), KINDS, what)
    return result
