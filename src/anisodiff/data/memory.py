"""Images that are already in memory, as a source."""

import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisodiff.data.arrays import layout_of, picture, to_uint8
from anisodiff.data.source import Source
from anisodiff.io.arrays import Header
from anisodiff.io.images import DecodeError
from anisodiff.io.picture_files import Item
from anisodiff.notation import counted

_ROWS = 1024


@dataclass(frozen=True, kw_only=True)
class InMemory(Source):
    """Images [N, H, W, C] as bytes; two of the same pixels are the same source."""

    images: NDArray[np.uint8]
    shape: tuple[int, int, int]
    labels: NDArray[np.int64] | None = None

    def describe(self) -> str:
        return f"memory, {counted(len(self), 'image')}"

    def identity(self) -> dict[str, object]:
        known = {"kind": "memory", "sha256": hashlib.sha256(self.images.tobytes()).hexdigest()}
        if self.labels is None:
            return {**known}
        return {**known, "labels": hashlib.sha256(self.labels.tobytes()).hexdigest()}

    def __len__(self) -> int:
        return len(self.images)

    def items(self) -> Iterator[Item]:
        for number, row in enumerate(self.images):
            label = None if self.labels is None else int(self.labels[number])
            yield Item(name=f"row {number}", open=functools.partial(picture, row), label=label)


def in_memory(images: Tensor | NDArray[Any], labels: Tensor | NDArray[Any] | None = None) -> InMemory:
    """A tensor or array of images, bytes or float in [0, 1]: [N,C,H,W], [N,H,W,C] or [N,H,W]; labels [N] from 0."""
    if isinstance(images, Tensor):
        here = images.detach().cpu().as_subclass(Tensor)
        images = (here if here.dtype != torch.bfloat16 else here.float()).numpy()
    layout = layout_of(Header(images.shape, images.dtype), "images:")
    if not images.size:
        raise ValueError(f"images: got {list(images.shape)}, expected one at least")
    try:
        pixels = np.concatenate([to_uint8(images[i : i + _ROWS]) for i in range(0, len(images), _ROWS)])
    except DecodeError as error:
        raise ValueError(f"images: {error}") from None
    pixels = pixels[..., None] if layout == "NHW" else pixels.transpose(0, 2, 3, 1) if layout == "NCHW" else pixels
    _, height, width, channels = pixels.shape
    known = None if labels is None else _whole_numbers(labels, len(pixels))
    return InMemory(images=np.ascontiguousarray(pixels), shape=(channels, height, width), labels=known)


def _whole_numbers(labels: Tensor | NDArray[Any], count: int) -> NDArray[np.int64]:
    given = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if given.shape != (count,) or given.dtype.kind not in "iu":
        raise ValueError(
            f"labels: got {given.dtype} {list(given.shape)}, expected whole numbers [{count}], one an image"
        )
    return given.astype(np.int64)
