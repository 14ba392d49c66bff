"""What a source of images is: named items in a fixed order, each decoded only when asked.

`for item in source.items(): image = item.open()` is the whole contract. An item that cannot be decoded raises
`DecodeError`; `prepare` lists it and goes on. Errors about the source itself are `ValueError` (got, expected,
remedy).
"""

import hashlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from PIL import Image


class DecodeError(ValueError):
    """One image cannot be used; the message is the reason, without the image's name."""


@dataclass(frozen=True, kw_only=True)
class Item:
    """One image of a source: its name, its class where known, and a function that opens it.

    `open` may return an image whose header alone is read (enough to see size and mode); `decode` reads all of
    it.
    """

    name: str
    open: Callable[[], Image.Image]
    label: int | None = None

    def decode(self) -> Image.Image:
        """The image with its pixels read; `DecodeError` where that fails for whatever reason."""
        try:
            image = self.open()
            image.load()
        except (MemoryError, DecodeError):
            raise
        except Exception as error:  # a damaged file makes Pillow's readers raise almost any type
            raise DecodeError(f"{type(error).__name__}: {' '.join(str(error).split())}") from error
        return image


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


def open_image(data: bytes | IO[bytes]) -> Image.Image:
    """A picture file's header, from its bytes or an open file."""
    return Image.open(io.BytesIO(data) if isinstance(data, bytes) else data)


def digest(lines: Iterable[object]) -> str:
    """The sha256 of a listing, one line per entry."""
    total = hashlib.sha256()
    for line in lines:
        total.update(repr(line).encode())
        total.update(b"\n")
    return total.hexdigest()


def existing(path: str | Path, what: str) -> Path:
    """The path, if there is something readable there."""
    path = Path(path)
    try:
        path.stat()
    except OSError as error:
        raise ValueError(
            f"cannot read {path} ({error.strerror}): expected {what}; check the path and its permissions"
        ) from error
    return path
