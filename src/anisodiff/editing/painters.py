"""Paintings of photographs: what an edit can start from. Each kind has a notation, ``strokes(colors=8)``.

| kind | what it makes |
|---|---|
| `strokes(colors, position, smooth)` | k-means strokes (`strokes`) |
| `flat(colors, area)` | a flat drawing: k-means colors, regions of fewer than area pixels given to their neighbors |
| `perona-malik(…)`, `bilateral(…)`, `median(…)` | cartoons (`cartoons`) |
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor

from anisodiff import cartoons, notation
from anisodiff.editing.strokes import strokes


@dataclass(frozen=True)
class Strokes:
    """``strokes(colors=8, position=0, smooth=0)``: see `strokes.strokes`."""

    colors: int = 8
    position: float = 0.0
    smooth: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "position", notation.number(self.position, "position"))
        notation.check_number(self, "colors", 1, whole=True)
        notation.check_number(self, "smooth", 0, whole=True)

    def __call__(self, image: Tensor) -> Tensor:
        return strokes(image, self.colors, position=self.position, smooth=self.smooth)

    def __str__(self) -> str:
        return notation.write("strokes", self)


@dataclass(frozen=True)
class Flat:
    """``flat(colors=8, area=16)``: a drawing of few colors in which no region has fewer than ``area`` pixels.

    The smallest region that is too small goes to the neighbor it shares the longest border with, again and again.
    """

    colors: int = 8
    area: int = 16

    def __post_init__(self) -> None:
        notation.check_number(self, "colors", 1, whole=True)
        notation.check_number(self, "area", 1, whole=True)

    def __call__(self, image: Tensor) -> Tensor:
        painted = strokes(image, self.colors)
        color, index = torch.unique(painted.flatten(1), dim=1, return_inverse=True)
        region, own = _regions(index.reshape(image.shape[-2:]).numpy())
        merged = own[_merged(region, self.area)]
        drawn: Tensor = color[:, torch.from_numpy(merged)].to(image)
        return drawn

    def __str__(self) -> str:
        return notation.write("flat", self)


def _regions(label: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Connected regions of equal labels [H, W] (four neighbors), numbered from 0, and the label of each."""
    region, own = np.zeros_like(label), list[int]()
    for value in np.unique(label):
        parts, count = ndimage.label(label == value)
        region += np.where(parts > 0, parts - 1 + len(own), 0)
        own += [int(value)] * count
    return region, np.array(own)


def _merged(region: NDArray[np.int64], area: int) -> NDArray[np.int64]:
    """Regions [H, W] after those with fewer than ``area`` pixels have gone to a neighbor each."""
    region = region.copy()
    sizes = np.bincount(region.ravel())
    while True:
        small = np.flatnonzero((sizes > 0) & (sizes < area))
        if not len(small) or (sizes > 0).sum() == 1:
            return region
        smallest = small[np.argmin(sizes[small])]
        inside = region == smallest
        border = [
            region[pick][inside[other] & ~inside[pick]]
            for axis in (0, 1)
            for pick, other in (_ends(axis), _ends(axis)[::-1])
        ]
        to = np.bincount(np.concatenate(border)).argmax()
        region[inside] = to
        sizes[to] += sizes[smallest]
        sizes[smallest] = 0


def _ends(axis: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """All but the last, and all but the first, along an axis of [H, W]."""
    first, last = [slice(None)] * 2, [slice(None)] * 2
    first[axis], last[axis] = slice(None, -1), slice(1, None)
    return tuple(first), tuple(last)


@dataclass(frozen=True)
class _Cartoon:
    """A filter of `cartoons`, for one image."""

    filter: cartoons.Filter

    def __call__(self, image: Tensor) -> Tensor:
        return self.filter(image[None])[0].clamp(0, 1)

    def __str__(self) -> str:
        return str(self.filter)


Paint = Callable[[Tensor], Tensor]
"""An image [C, H, W] in [0, 1] → its painting; its text is its notation."""
KINDS: dict[str, type] = {"strokes": Strokes, "flat": Flat, **cartoons.KINDS}


def read_paint(text: str, what: str = "paint") -> Paint:
    """A painter from its notation."""
    painter: Any = notation.read(text, KINDS, what)
    return _Cartoon(painter) if isinstance(painter, cartoons.Filter) else painter
