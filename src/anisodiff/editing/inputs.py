"""Pictures from files in the shape that a model needs, with a line for every change."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from anisodiff.editing.painters import Paint, Strokes
from anisodiff.io.images import Fit, channels_of, read_image, to_unit
from anisodiff.io.picture_files import Skipped, list_pictures
from anisodiff.notation import counted


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """One input: what was given, and what the edit starts from."""

    name: str
    """The file's name without its suffix; with a number where two are the same."""
    photo: Tensor
    """[C, H, W] in [0, 1], of the model's shape."""
    start: Tensor
    """The same, or its painting."""
    shape: tuple[int, int]
    """(H, W) of the file."""
    notes: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """sha256 of what the edit starts from."""
        pixels = (self.start * 255).round().to(torch.uint8).contiguous()
        return hashlib.sha256(pixels.numpy().tobytes()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Painter:
    """How photographs become paintings; the same painting for every seed of an edit."""

    paint: Paint | None = None
    """None: the photographs are edited as they are."""

    @property
    def description(self) -> str | None:
        """For the record."""
        if isinstance(self.paint, Strokes):
            how = self.paint
            return f"k-means, {how.colors} colors, position {how.position:g}, smooth {how.smooth}"
        return None if self.paint is None else str(self.paint)

    def __call__(self, picture: Picture, mask: Tensor | None) -> Picture:
        """The picture with its painting to start from; outside a mask the photograph stays."""
        if self.paint is None:
            return picture
        painting, notes = self.paint(picture.photo), picture.notes
        wanted = getattr(self.paint, "colors", 0)
        if wanted and (count := len(torch.unique(painting.flatten(1), dim=1).mT)) < wanted:
            notes += (f"{picture.name}: painted in {count} colors, fewer than {wanted}",)
        return replace(
            picture, start=painting if mask is None else torch.where(mask, painting, picture.photo), notes=notes
        )


class _Decoded(NamedTuple):
    """A picture brought to a shape, and what the file had."""

    image: Tensor
    shape: tuple[int, int]
    channels: int
    transparent: bool


def read_pictures(paths: Sequence[Path], channels: int, size: tuple[int, int], what: str = "") -> list[Picture]:
    """Pictures from files, and from all picture files of folders and zips, in the shape [channels, *size].

    One of another size is cut around its center and resized; ``what`` names that size where it is not the model's.
    """
    decoded: list[tuple[Path, _Decoded]] = []
    convert = partial(_decoded, channels=channels, size=size)
    for path in paths:
        if path.is_dir() or path.suffix.lower() == ".zip":
            files = list_pictures(path)
            skipped = Skipped(str(path), len(files))
            decoded += [(path / item.name, image) for item, image in skipped.read(files.items(), convert)]
            skipped.report()
        else:
            decoded.append((path, read_image(path, convert)))
    stems = [path.stem for path, _ in decoded]
    times = Counter(stems)
    names = [s if times[s] == 1 else f"{s}-{k:03d}" for k, s in enumerate(stems)]
    if len(set(names)) < len(names):
        raise ValueError("two pictures would have the same name; rename one of the files")
    return [_picture(path, name, image, channels, what) for (path, image), name in zip(decoded, names)]


def in_brief(notes: Iterable[str]) -> list[str]:
    """One line for all pictures that were changed in the same way: the first of them, and how many more."""
    alike: dict[str, list[str]] = {}
    for note in notes:
        alike.setdefault(re.split(r": | pixels[^,]*, ", note)[-1], []).append(note)
    return [
        first if not more else f"{first}; likewise {counted(len(more), 'more image')}"
        for first, *more in alike.values()
    ]


def _picture(path: Path, name: str, decoded: _Decoded, channels: int, what: str) -> Picture:
    notes, (height, width), size = [], decoded.shape, (decoded.image.shape[-2], decoded.image.shape[-1])
    if decoded.shape != size:
        cut = "resized" if _same_aspect(decoded.shape, size) else "cut around the center and resized"
        order = "" if height == width else " (height×width)"
        target = what or f"the model's {size[0]}×{size[1]}"
        notes.append(f"{path}: {height}×{width} pixels{order}, {cut} to {target}")
    if decoded.transparent:
        notes.append(f"{path}: transparency laid over white")
    if decoded.channels != channels:
        notes.append(f"{path}: {'grayscale made color' if channels == 3 else 'color made grayscale'}")
    return Picture(name=name, photo=decoded.image, start=decoded.image, shape=decoded.shape, notes=tuple(notes))


def read_mask(path: Path, pictures: Sequence[Picture], size: tuple[int, int]) -> tuple[Tensor, tuple[str, ...]]:
    """A mask, bool [1, H, W], white (above ½) = edit; and a line for everything that may not be meant.

    It has the shape of the pictures, which it is cut and resized like, or exactly the model's size.
    """
    decoded = read_image(path, partial(_decoded, channels=1, size=size))
    shape = decoded.shape
    if shape != size:
        for picture in pictures:
            if not _same_aspect(shape, picture.shape):
                raise ValueError(
                    f"{path}: the mask has {shape[0]}×{shape[1]} pixels, {picture.name} has {picture.shape[0]}×"
                    f"{picture.shape[1]}; expected the picture's shape, or the model's {size[0]}×{size[1]}"
                )
    mask = decoded.image > 0.5
    if not bool(mask.any()):
        raise ValueError(f"{path}: the mask is black and keeps every pixel; expected white where to edit")
    notes = [] if shape == size else [f"{path}: mask of {shape[0]}×{shape[1]} resized to {size[0]}×{size[1]}"]
    if decoded.transparent:
        notes.append(f"{path}: where the mask is transparent it counts as white, and is edited")
    if bool(mask.all()):
        notes.append(f"{path}: the mask is white everywhere: nothing is kept")
    return mask, tuple(notes)


def _same_aspect(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Equal but for the rounding of a side to whole pixels."""
    return abs(one[0] * other[1] - one[1] * other[0]) <= max(one[0], one[1], other[0], other[1]) / 2


def _decoded(image: Image.Image, channels: int, size: tuple[int, int]) -> _Decoded:
    return _Decoded(
        image=to_unit(Fit(size=size, channels=channels)(image)), shape=(image.height, image.width),
        channels=channels_of(image), transparent=image.has_transparency_data,
    )  # fmt: skip
