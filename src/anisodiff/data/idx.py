"""Fashion-MNIST in its idx files (packed by gzip or not), found by content in a folder or archive.

An idx file is two zero bytes, a type (8 = uint8), the number of axes, the axes as big-endian uint32, then the
values.
"""

import functools
import gzip
import hashlib
import io
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anisodiff.data.arrays import picture
from anisodiff.data.source import Source
from anisodiff.io.archives import blobs
from anisodiff.io.picture_files import Item

NAMES = ("t-shirt/top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package dataset-fashion-mnist puts it
LARGEST = 1 << 26
"""Bytes of an idx file; the largest of the set has 47 million."""
LARGEST_TOTAL = 1 << 28
"""Bytes of all of them; the set has 55 million."""
REMEDY = "give the folder with its four idx files (Debian: apt install dataset-fashion-mnist)"


@dataclass(frozen=True, kw_only=True)
class Table:
    """What one split consists of: its number of images, and the sha256 of pixels and label bytes."""

    rows: int
    pixels: str
    labels: str


OFFICIAL: dict[str, Table] = {
    "train": Table(
        rows=60000,
        pixels="2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        labels="657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
    ),
    "test": Table(
        rows=10000,
        pixels="c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
        labels="3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
    ),
}


def read_idx(data: bytes) -> NDArray[np.uint8]:
    """An idx file of uint8 values → array; `ValueError` where it is something else or truncated."""
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise ValueError(
            f"starts with {data[:4].hex() or 'nothing'}: expected an idx file of uint8 values (000008..)"
        )
    axes = data[3]
    start = 4 + 4 * axes
    shape = tuple(int(n) for n in np.frombuffer(data[4:start][: 4 * axes], ">u4")) if len(data) >= start else ()
    if len(shape) != axes or len(data) - start != math.prod(shape):
        raise ValueError(
            f"has {len(data)} bytes: expected {start + math.prod(shape)} for shape {list(shape)}; truncated?"
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _unpacked(data: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        unpacked = stream.read(LARGEST + 1)
    if len(unpacked) > LARGEST:
        raise OSError(f"it unpacks to more than {LARGEST:,} bytes")
    return unpacked


def _idx_files(path: Path) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """All idx files below, unpacked; files of other kinds are passed over."""
    left = LARGEST_TOTAL
    for blob in blobs(path):
        head = blob.head(4)
        if not (head.startswith(b"\x1f\x8b") or head[:3] == b"\x00\x00\x08"):
            continue
        try:
            data = blob.read(LARGEST) if not head.startswith(b"\x1f\x8b") else _unpacked(blob.read(LARGEST))
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: {blob.name} is truncated or damaged ({error}); {REMEDY}") from error
        if (left := left - len(data)) < 0:
            raise ValueError(f"{path}: its files have more than {LARGEST_TOTAL:,} bytes together; {REMEDY}")
        if data[:3] != b"\x00\x00\x08":
            continue
        try:
            yield blob.name, read_idx(data)
        except ValueError as error:
            raise ValueError(f"{path}: {blob.name} {error}") from error


@dataclass(frozen=True, kw_only=True)
class FashionMnist(Source):
    """Fashion-MNIST, split `train` (60000) or `test` (10000), 1×28×28; files are told apart by content."""

    path: Path = DEBIAN
    split: str = "train"
    table: Table | None = None  # the official one of the split
    shape = (1, 28, 28)
    classes = NAMES

    def __post_init__(self) -> None:
        if self.split not in OFFICIAL:
            raise ValueError(f"got split={self.split!r}: expected one of {', '.join(OFFICIAL)}")

    @property
    def _table(self) -> Table:
        return self.table or OFFICIAL[self.split]

    def describe(self) -> str:
        return f"Fashion-MNIST {self.split} from {self.path}"

    def identity(self) -> dict[str, object]:
        return {"kind": "fashion-mnist", "pixels": self._table.pixels}

    def __len__(self) -> int:
        return self._table.rows

    def items(self) -> Iterator[Item]:
        """Images in the official order (the whole set is 47 MB, so one read)."""
        images: NDArray[np.uint8] | None = None
        labels: NDArray[np.uint8] | None = None
        other: list[str] = []
        for name, values in _idx_files(self.path):
            code = hashlib.sha256(values.tobytes()).hexdigest()
            if code == self._table.pixels:
                images = values
            elif code == self._table.labels:
                labels = values
            else:
                other.append(f"{name} {list(values.shape)}")
        if images is None or labels is None:
            what = "images" if images is None else "labels"
            seen = f" (other content: {', '.join(other[:4])})" if other else ""
            raise ValueError(f"{self.path} holds no {what} of Fashion-MNIST {self.split}{seen}; {REMEDY}")
        for i, (image, label) in enumerate(zip(images, labels)):
            yield Item(name=f"row {i}", open=functools.partial(picture, image), label=int(label))
