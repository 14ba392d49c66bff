"""What a source of images is: named items in a fixed order, each decoded only when asked.

`for item in source.items(): image = item.decode()` is the whole contract. An item that cannot be decoded raises
`DecodeError`; `Skipped.read` leaves it out and goes on. Errors about the source itself are `ValueError` (got,
expected, remedy).
"""

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from anisodiff.io.images import Fit
from anisodiff.io.picture_files import Item, Skipped


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


def digest(lines: Iterable[object]) -> str:
    """The sha256 of a listing, one line per entry."""
    total = hashlib.sha256()
    for line in lines:
        total.update(repr(line).encode())
        total.update(b"\n")
    return total.hexdigest()


def read_images(
    source: Source, *, size: tuple[int, int], channels: int, most: int | None = None
) -> NDArray[np.uint8]:
    """The first ``most`` images of a source, uint8 [N, C, H, W], cropped and resized as `prepare` does."""
    skipped = Skipped(source.describe(), len(source))
    fit = Fit(size=size, channels=channels, crop=source.crop)
    rows = [pixels for _, pixels in itertools.islice(skipped.read(source.items(), fit), most)]
    skipped.report()
    return np.stack(rows)
