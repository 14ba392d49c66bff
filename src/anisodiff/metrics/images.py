"""Sets of images, read in uint8 batches ``[B,3,H,W]``, never all of it in memory.

A set is a path of images (see `data.open_source`) or of a prepared dataset, an array or tensor, or an iterable of
uint8 batches. Gray images are repeated to three channels. All images of a set must have one shape, or are brought to
one (`Fitting`).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from anisodiff.data.arrays import Arrays, array_file
from anisodiff.data.dataset import Dataset, is_dataset, open_dataset
from anisodiff.data.named import open_source
from anisodiff.io.images import Fit, channels_of, to_array, to_bytes
from anisodiff.io.picture_files import Skipped

T = TypeVar("T")
UNCHANGED = "none"
_ROUNDING = 1e-3


class Fitting:
    """Brings pictures to one shape by the rule of `data prepare`, and counts those that had another.

    ``changed`` and ``steps``: their number in the last pass over the whole set, and what was done. A picture that has
    the size already is not cropped.
    """

    def __init__(self, fit: Fit) -> None:
        self.fit, self.changed, self.steps = fit, 0, UNCHANGED
        self._uncropped = replace(fit, crop=None)
        self._changed = self._grayed = self._resized = 0

    def __call__(self, image: Image.Image) -> NDArray[np.uint8]:
        resized, grayed = (image.height, image.width) != self.fit.size, channels_of(image) > self.fit.channels
        pixels = (self.fit if resized else self._uncropped)(image)
        self._changed, self._grayed = self._changed + (resized or grayed), self._grayed + grayed
        self._resized += resized
        return pixels

    def counted(self, batches: Iterator[T]) -> Iterator[T]:
        """The batches of one pass; its changed pictures count once it is complete."""
        self._changed = self._grayed = self._resized = 0
        yield from batches
        crop = "center crop" if self.fit.crop is None else f"center crop {self.fit.crop}"
        steps = ["luma"] if self._grayed else []
        steps += [crop, "Lanczos"] if self._resized else []
        self.changed, self.steps = self._changed, ", ".join(steps) or UNCHANGED


@dataclass(frozen=True, eq=False)
class Labeled:
    """The class of each image, int64 ``[N]``, and the names of the classes."""

    names: tuple[str, ...]
    labels: Tensor

    def rows(self, name: str) -> Tensor:
        """Which images are of the class ``name``; bool ``[N]``."""
        return self.labels == self.names.index(name) if name in self.names else torch.zeros_like(self.labels).bool()


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """A named set of images; ``open(batch_size)`` reads it. ``once``: it can be read only one time. ``size``: height
    and width, where they are known before.

    ``count`` includes files that turn out unreadable: each pass leaves them out and names them in ``skipped``.
    ``fitting``: what brings the images to one shape, where that was asked for. ``classes``: of all images, in the
    order they are read, where they are known.
    """

    name: str
    open: Callable[[int], Iterator[Tensor]]
    count: int | None = None
    once: bool = False
    size: tuple[int, int] | None = None
    skipped: Skipped | None = None
    fitting: Fitting | None = None
    classes: Labeled | None = None

    @property
    def resize(self) -> str:
        """How the images were brought to their shape; known after a pass over all of them."""
        return UNCHANGED if self.fitting is None else self.fitting.steps


Source = str | Path | np.ndarray | Tensor | Iterable[Tensor] | ImageSet


def _batched(images: Iterator[tuple[str, Tensor]], batch_size: int, path: Path) -> Iterator[Tensor]:
    first: tuple[str, Tensor] | None = None
    held: list[Tensor] = []
    for name, image in images:
        first = first or (name, image)
        if image.shape != first[1].shape:
            sizes = [f"{n} is {i.shape[1]}×{i.shape[2]}" for n, i in (first, (name, image))]
            side = min(*first[1].shape[1:], *image.shape[1:])
            target = path.parent / f"{path.resolve().stem}-{side}"
            words = f"anisodiff data prepare {quote(str(path))} --output {quote(str(target))} --size {side}"
            raise ValueError(f"mixed sizes: {', '.join(sizes)}; bring all images to one size first: {words}")
        held.append(image)
        if len(held) == batch_size:
            yield torch.stack(held)
            held = []
    if held:
        yield torch.stack(held)


def _array(array: Tensor | np.ndarray) -> ImageSet:
    def read(size: int) -> Iterator[Tensor]:
        parts = (array[i : i + size] for i in range(0, len(array), size))
        return (part if isinstance(part, Tensor) else torch.from_numpy(np.array(part)) for part in parts)

    return ImageSet(name="array", count=len(array), open=read)


def _at_path(path: Path, fit: Fit | None) -> ImageSet:
    """The images of a folder, zip, npz, npy or prepared dataset, the same as `anisodiff data prepare` takes."""
    dataset = open_dataset(path) if is_dataset(path) else None
    name = path.resolve().name if path.is_dir() else path.stem
    if dataset is not None and _fits(dataset, fit):
        return replace(_array(dataset.images), name=name, classes=_labeled(dataset))
    source = open_source(path) if dataset is None else array_file(path / "images.npy", layout="NCHW")
    array = isinstance(source, Arrays)
    skipped = Skipped(str(path), len(source), limit=0 if array else None)
    if fit is not None and array:
        fit = replace(fit, crop=None)  # the margin belongs to a set's own files
    fitting = None if fit is None else Fitting(fit)

    def read() -> Iterator[tuple[str, Tensor]]:
        for item, pixels in skipped.read(source.items(), fitting or partial(to_array, channels=3)):
            yield item.name, torch.from_numpy(pixels)

    return ImageSet(
        name=name, count=len(source), skipped=skipped, fitting=fitting, classes=_labeled(dataset),
        open=lambda size: _batched(read() if fitting is None else fitting.counted(read()), size, path),
    )  # fmt: skip


def _fits(dataset: Dataset, fit: Fit | None) -> bool:
    """Whether images have the size, and no colors to lose: they are read as they are."""
    size, channels = (dataset.size, 3) if fit is None else (fit.size, fit.channels)
    return dataset.size == size and dataset.channels in (1, channels)


def _labeled(dataset: Dataset | None) -> Labeled | None:
    if dataset is None or dataset.labels is None:
        return None
    return Labeled(dataset.classes, torch.from_numpy(dataset.labels))


def image_set(source: Source, *, name: str | None = None, fit: Fit | None = None) -> ImageSet:
    """Open ``source`` as an :class:`ImageSet`; ``name`` is what the protocol will call it.

    ``fit``: bring the images of a path to this shape by the rule of `data prepare`.
    """
    if isinstance(source, ImageSet):
        found = source
    elif isinstance(source, str | Path):
        found = _at_path(Path(source), fit)
    elif isinstance(source, np.ndarray | Tensor):
        found = _array(source)
    else:
        once = iter(source) is source
        found = ImageSet(name="iterator" if once else "batches", open=lambda _: iter(source), once=once)
    return found if name is None else replace(found, name=name)


def _checked(batch: Tensor, name: str) -> Tensor:
    if batch.ndim != 4 or not (batch.dtype == torch.uint8 or batch.dtype.is_floating_point):
        got = f"{str(batch.dtype).removeprefix('torch.')} {list(batch.shape)}"
        raise ValueError(f"{name}: got {got}, expected batches [B, 3, H, W] of uint8, or of floats in [0, 1]")
    if batch.dtype.is_floating_point and batch.numel():
        low, high = float(batch.min()), float(batch.max())
        if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):  # NaN too
            raise ValueError(f"{name}: got values from {low:.4g} to {high:.4g}, expected floats in [0, 1], or uint8")
        batch = to_bytes(batch)
    if batch.shape[1] not in (1, 3) and batch.shape[3] in (1, 3):
        batch = batch.permute(0, 3, 1, 2)
    if batch.shape[1] not in (1, 3):
        raise ValueError(f"{name}: expected 1 or 3 channels, got shape {tuple(batch.shape)}")
    return batch.expand(-1, 3, -1, -1).contiguous()


def read_batches(images: ImageSet, batch_size: int, *, limit: int | None = None) -> Iterator[Tensor]:
    """Yield checked uint8 batches ``[B,3,H,W]``, at most ``limit`` images; refuses an empty or mixed set."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    seen, size = 0, None
    for batch in images.open(batch_size if limit is None else min(batch_size, limit)):
        batch = _checked(batch, images.name)
        if limit is not None:
            batch = batch[: limit - seen]
        if not len(batch):
            continue
        size = size or batch.shape[2:]
        if batch.shape[2:] != size:
            raise ValueError(
                f"mixed sizes in {images.name}: {size[0]}×{size[1]} and {batch.shape[2]}×{batch.shape[3]}"
            )
        seen += len(batch)
        yield batch
        if seen == limit:
            break
    if images.skipped is not None:
        images.skipped.report()
    if not seen:
        raise ValueError(f"no images in {images.name}")


def image_digests(batch: Tensor) -> tuple[bytes, ...]:
    """sha256 of shape and pixels of each image of a uint8 batch ``[B,3,H,W]``."""
    shape = f"{tuple(batch.shape[1:])}".encode()
    return tuple(hashlib.sha256(shape + image.tobytes()).digest() for image in batch.cpu().numpy())


def fingerprint_of(digests: Iterable[bytes]) -> str:
    """sha256 over the sorted digests of images: the same for a folder, a zip and an npz, in any order."""
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()


def peek(images: ImageSet, batch_size: int) -> tuple[tuple[int, int], ImageSet]:
    """Height and width of the first image, and the set to read from now on.

    Of a set that can be read only once, the first batch is read now and yielded again later.
    """
    if images.size is not None:
        return images.size, images
    if not images.once:
        first = next(read_batches(images, 1, limit=1))
        return (first.shape[2], first.shape[3]), images
    rest = images.open(batch_size)
    batch = next(rest, None)
    if batch is None:
        raise ValueError(f"no images in {images.name}")
    checked = _checked(batch, images.name)
    whole = itertools.chain([checked], rest)
    return (checked.shape[2], checked.shape[3]), replace(images, open=lambda _: whole)
