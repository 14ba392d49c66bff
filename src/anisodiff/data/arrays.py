"""Arrays in .npy and .npz files: uint8, or float in [0, 1]; [N,H,W,C], [N,C,H,W] or [N,H,W].

The one reader of both, for training and for metrics. Rows are read one after the other from the file, so an .npz
larger than memory works. Nothing is ever unpickled.
"""

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anisodiff.data.source import Source
from anisodiff.io.archives import existing, open_regular, open_zip
from anisodiff.io.arrays import Header, read_header
from anisodiff.io.images import MOST_PIXELS, DecodeError, rounded
from anisodiff.io.picture_files import Item

Layout = Literal["NHWC", "NCHW", "NHW"]
IMAGE_KEYS = ("images", "samples", "data", "x", "x_train", "arr_0")
LARGEST_ROWS = 1 << 28
"""Bytes of an image, and of labels."""
LABEL_KEYS = ("labels", "label", "y", "y_train", "arr_1")


def layout_of(header: Header, where: str) -> Layout:
    """Where the channels stand, or a `ValueError` that says why that cannot be told."""
    shape = header.shape
    if not (header.dtype == np.uint8 or header.dtype.kind == "f"):
        raise ValueError(f"{where} has dtype {header.dtype}: expected uint8, or float in [0, 1]; convert it")
    if len(shape) == 3 and shape[2] in (1, 3, 4) and min(shape[:2]) > 4:
        raise ValueError(
            f"{where} has shape {list(shape)}, which looks like one picture [H,W,C]: expected [N,H,W,C], [N,C,H,W] "
            "or [N,H,W]; save array[None] if it is one"
        )
    if len(shape) == 3:
        return "NHW"
    last, second = (len(shape) == 4 and shape[i] in (1, 3) for i in (-1, 1))
    if last == second:
        why = "both ends look like channels; pass layout=" if last else "no axis has 1 or 3 channels"
        raise ValueError(f"{where} has shape {list(shape)}: expected [N,H,W,C], [N,C,H,W] or [N,H,W]; {why}")
    return "NHWC" if last else "NCHW"


@dataclass(frozen=True, kw_only=True)
class Arrays(Source):
    """Images from one array, labels from another of the same file."""

    path: Path
    key: str | None  # the member of an .npz; None for an .npy
    header: Header
    layout: Layout
    labels: NDArray[np.int64] | None
    stamp: tuple[object, ...]
    shape: tuple[int, int, int]
    classes: tuple[str, ...] | None = None

    def describe(self) -> str:
        where = f"{self.path}:{self.key}" if self.key else f"{self.path}"
        return f"array {where}, {self.header.dtype} {list(self.header.shape)}"

    def identity(self) -> dict[str, object]:
        """The file's checksums (.npz) or size and time (.npy), and the way it is read."""
        return {"kind": "array", "key": self.key, "layout": self.layout, "stamp": list(self.stamp)}

    def __len__(self) -> int:
        return self.header.shape[0]

    def items(self) -> Iterator[Item]:
        for i, row in enumerate(self._rows()):
            row = row.transpose(1, 2, 0) if self.layout == "NCHW" else row
            label = None if self.labels is None else int(self.labels[i])
            yield Item(name=f"row {i}", open=functools.partial(picture, row), label=label)

    def _rows(self) -> Iterator[NDArray[Any]]:
        """The rows one by one, as they lie in the file."""
        row_shape = self.header.shape[1:]
        row_bytes = math.prod(row_shape) * self.header.dtype.itemsize
        with _stream(self.path, self.key) as stream:
            read_header(stream, str(self.path))
            for at in range(len(self)):
                data = stream.read(row_bytes)
                if len(data) < row_bytes:
                    raise ValueError(
                        f"{self.path} ends at row {at}, expected {len(self)} rows: truncated, save it again"
                    )
                yield np.frombuffer(data, self.header.dtype).reshape(row_shape)


def to_uint8(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Bytes as they are, float in [0, 1] as bytes; a `DecodeError` where it is not."""
    if values.dtype != np.uint8:
        low, high = values.min(), values.max()
        if not (low >= 0 and high <= 1):  # written so that NaN fails too
            raise DecodeError(f"float values in [{low:g}, {high:g}], expected [0, 1]; rescale the array")
        return rounded(values, 255.0)
    return values


def picture(row: NDArray[Any]) -> Image.Image:
    """uint8, or float in [0, 1], [H,W] or [H,W,C] → a picture."""
    row = to_uint8(row)
    return Image.fromarray(np.ascontiguousarray(row[..., 0] if row.ndim == 3 and row.shape[2] == 1 else row))


@contextmanager
def _stream(path: Path, key: str | None) -> Iterator[IO[bytes]]:
    if key is None:
        with open_regular(path) as file:
            yield file
    else:
        with open_zip(path) as archive, archive.open(f"{key}.npy") as member:
            yield member


def _pick(found: dict[str, Header], known: tuple[str, ...], dims: tuple[int, ...]) -> str | None:
    """A well-known key, or that of the only array with so many axes."""
    fits = [key for key, header in found.items() if len(header.shape) in dims]
    named = [key for key in known if key in fits]
    return named[0] if named else fits[0] if len(fits) == 1 else None


def array_file(path: str | Path, *, layout: Layout | None = None) -> Arrays:
    """Images from an .npy or .npz file; the layout is found or may be given."""
    path = existing(path, "an .npy or .npz file")
    labels: NDArray[np.int64] | None = None
    where = str(path)
    with open_regular(path) as file:
        plain = file.read(6) == b"\x93NUMPY"
    if plain:
        with _stream(path, None) as stream:
            header = read_header(stream, where)
        stat = path.stat()
        stamp: tuple[object, ...] = (stat.st_size, stat.st_mtime_ns)
        key = None
    else:
        found: dict[str, Header] = {}
        with open_zip(path) as archive:
            for name in archive.namelist():
                if name.endswith(".npy"):
                    with archive.open(name) as stream:
                        found[name[:-4]] = read_header(stream, f"{path}:{name}")
            stamp = tuple(sorted(info.CRC for info in archive.infolist()))
            key = _pick(found, IMAGE_KEYS, (3, 4))
            if key is None:
                held = ", ".join(f"{k} {list(h.shape)}" for k, h in found.items()) or "no array"
                raise ValueError(f"{path} holds {held}: expected one array of images; name it images")
            header, where = found[key], f"{path}:{key}"
            label_key = _pick(found, LABEL_KEYS, (1,))
            of_labels = None if label_key is None else found[label_key]
            if of_labels is not None and of_labels.shape == header.shape[:1] and of_labels.dtype.kind in "iu":
                if math.prod(of_labels.shape) * 8 > LARGEST_ROWS:
                    raise ValueError(f"{path}:{label_key} has {of_labels.shape[0]:,} labels: too many to read")
                with archive.open(f"{label_key}.npy") as stream:
                    labels = np.lib.format.read_array(stream, allow_pickle=False).astype(np.int64)
    if header.fortran and len(header.shape) > 1:
        raise ValueError(f"{where} is in Fortran order: expected C order; save np.ascontiguousarray(array)")
    guessed = layout_of(header, where) if layout is None else layout
    if len(guessed) != len(header.shape) or 0 in header.shape:
        raise ValueError(
            f"{where} has shape {list(header.shape)}: expected images as {','.join(guessed)}, one at least"
        )
    size = dict(zip(guessed, header.shape))
    if header.nbytes // header.shape[0] > LARGEST_ROWS or size["H"] * size["W"] > MOST_PIXELS:
        raise ValueError(f"{where} has shape {list(header.shape)}: its images are too large to read")
    shape = (size.get("C", 1), size["H"], size["W"])
    return Arrays(path=path, key=key, header=header, layout=guessed, labels=labels, stamp=stamp, shape=shape)
