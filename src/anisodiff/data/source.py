"""What a source of images is: named items in a fixed order, each decoded only when asked; folders and zips as such.

`for item in source.items(): image = item.decode()` is the whole contract. An item that cannot be decoded raises
`DecodeError`; `Skipped.read` leaves it out and goes on. Errors about the source itself are `ValueError` (got,
expected, remedy).
"""

import functools
import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anisodiff.io.images import DecodeError, Fit
from anisodiff.io.picture_files import Item, PictureFiles, Skipped, is_picture, list_pictures
from anisodiff.notation import counted


class Source(ABC):
    """Images in a fixed order.

    `shape` is (C, H, W) where all images are known to share it, else None; `crop` is the side of the center
    square to cut before anything else; `classes` are the names of the labels.
    """

    shape: tuple[int, int, int] | None = None
    crop: int | None = None
    classes: tuple[str, ...] | None = None

    @abstractmethod
    def describe(self) -> str:
        """The source in a few words, for people."""

    @abstractmethod
    def identity(self) -> dict[str, object]:
        """JSON values that change when the images may have changed; cheap, so not a hash of all pixels."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of items, those that will turn out unreadable included."""

    @abstractmethod
    def items(self) -> Iterator[Item]:
        """All items in order. An item is valid until the next one is asked for."""

    def check_outside(self, output: Path) -> None:  # noqa: B027  (most sources are no folder of pictures)
        """Refuse to write into a folder whose pictures are the images: those written would be images, too."""


def read_images(
    source: Source, *, size: tuple[int, int], channels: int, most: int | None = None
) -> NDArray[np.uint8]:
    """The first ``most`` images of a source, uint8 [N, C, H, W], cropped and resized as `prepare` does."""
    skipped = Skipped(source.describe(), len(source))
    fit = Fit(size=size, channels=channels, crop=source.crop)
    rows = [pixels for _, pixels in itertools.islice(skipped.read(source.items(), fit), most)]
    skipped.report()
    return np.stack(rows)


@dataclass(frozen=True, kw_only=True)
class Pictures(Source):
    """Picture files in the order of their names; `expect` is the one (W, H) admitted, where the set has one."""

    files: PictureFiles
    under: str = ""
    classes: tuple[str, ...] | None = None
    shape: tuple[int, int, int] | None = None
    crop: int | None = None
    expect: tuple[int, int] | None = None

    def describe(self) -> str:
        where = f"{self.files.path} below {self.under}" if self.under else f"{self.files.path}"
        return f"{self.files.kind} {where}, {counted(len(self), 'file')}"

    def identity(self) -> dict[str, object]:
        """Names, sizes and stamps: moving the whole folder or zip changes nothing."""
        listing = hashlib.sha256("".join(f"{entry!r}\n" for entry in self.files.entries).encode()).hexdigest()
        labels = self.classes is not None
        return {"kind": self.files.kind, "under": self.under, "labels": labels, "listing": listing}

    def __len__(self) -> int:
        return len(self.files)

    def check_outside(self, output: Path) -> None:
        root, place = self.files.path.resolve(), output.resolve()
        if not root.is_dir() or not place.is_relative_to(root):
            return
        if is_picture((place.relative_to(root) / "0.png").as_posix(), self.under):
            raise ValueError(
                f"{output} lies among the images in {self.files.path}, and pictures written there would count as "
                f"images; choose a folder outside {self.files.path}"
            )

    def items(self) -> Iterator[Item]:
        index = {name: i for i, name in enumerate(self.classes or ())}
        for item in self.files.items():
            opener = functools.partial(_open_expected, item.open, self.expect)
            yield replace(item, open=opener, label=index[class_of(item.name, self.under)] if index else None)


def _open_expected(opener: Callable[[], Image.Image], expect: tuple[int, int] | None) -> Image.Image:
    image = opener()
    if expect is not None and image.size != expect:
        raise DecodeError(f"{image.height}×{image.width} pixels, expected {expect[1]}×{expect[0]}")
    return image


def class_of(name: str, under: str) -> str:
    """The first folder of a file's name below `under`; empty where it lies in none."""
    parts = PurePosixPath(name).relative_to(under).parts
    return parts[0] if len(parts) > 1 else ""


def classes_of(files: PictureFiles, under: str) -> tuple[str, ...]:
    """The class folders in sorted order; every picture must lie in one, and there must be two at least.

    Of a folder that mixes pictures and class folders nobody can tell what the pictures beside them are.
    """
    found = {class_of(name, under): name for name in reversed(files.names)}
    if stray := found.get(""):
        raise ValueError(
            f"{files.path}: {stray} lies in no class folder; expected CLASS/NAME: move it, or train without classes"
        )
    if len(found) < 2:
        raise ValueError(f"{files.path}: got one class folder ({min(found)}), expected two or more folders")
    return tuple(sorted(found))


def class_level(files: PictureFiles) -> str:
    """The folder whose subfolders are the classes: the topmost in which one folder is not all there is."""
    under = ""
    while True:
        tops = {class_of(name, under) for name in files.names}
        below = f"{under}/{min(tops)}".lstrip("/")
        if len(tops) > 1 or "" in tops or not all(class_of(name, below) for name in files.names):
            return under
        under = below


def class_folders(source: Source) -> int:
    """How many classes a source has, or would have if its folders were taken for classes; 0 where they cannot be."""
    if source.classes is not None or not isinstance(source, Pictures):
        return len(source.classes or ())
    try:
        return len(classes_of(source.files, class_level(source.files)))
    except ValueError:
        return 0


def pictures(path: str | Path, *, labels: bool = False) -> Pictures:
    """All pictures of a folder or zip; with `labels` their folder is the class."""
    files = list_pictures(path)
    if not labels:
        return Pictures(files=files)
    under = class_level(files)
    return Pictures(files=files, under=under, classes=classes_of(files, under))
