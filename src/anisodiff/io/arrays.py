"""Arrays in the NumPy format, alone (.npy) or in a zip (.npz): the header first, then no more bytes than it says.

Nothing is ever unpickled. What a file says of itself is compared with a bound before anything is made of it.
"""

import io
import math
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from anisodiff.io.archives import one_line, open_regular, open_zip

LONGEST_HEADER = 1 << 16
"""Bytes; NumPy reads up to 4 GB before it compares with a limit of its own."""
LARGEST_PACKED = 1 << 29
"""Bytes that the arrays of an .npz may have beyond its own size."""
LARGEST_SIDE = 4096
"""Pixels of images that are made."""
_PART = 1 << 20

BAD_HEADERS = (
    ValueError, TypeError, SyntaxError, tokenize.TokenError, EOFError, OSError, zlib.error, zipfile.BadZipFile,
    RecursionError, MemoryError,
)  # fmt: skip
"""What NumPy raises for headers that are no header: it reads them with Python's own parser."""


@dataclass(frozen=True)
class Header:
    """What an .npy stream says about its array before the first value."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool = False

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(stream: IO[bytes], where: str) -> Header:
    """Read up to the first value; Python objects are refused."""
    try:
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        field = stream.read(2 if version == (1, 0) else 4)
        length = int.from_bytes(field, "little")
        if length > LONGEST_HEADER:
            raise ValueError(f"a header of {length:,} bytes")
        shape, fortran, dtype = reader(io.BytesIO(field + stream.read(length)))
    except BAD_HEADERS as error:
        raise ValueError(
            f"{where} is no readable array ({one_line(error)}): expected the NumPy format; save it again"
        ) from error
    if dtype.hasobject:
        raise ValueError(
            f"{where} holds Python objects: expected uint8, or float in [0, 1]; nothing is unpickled here"
        )
    header = Header(tuple(shape), dtype, fortran)
    if min(shape, default=0) < 0 or max(shape, default=0) >= 2**53 or header.nbytes >= 2**53:
        raise ValueError(f"{where} has shape {list(shape)}: damaged")
    return header


def map_array(path: Path) -> NDArray[Any]:
    """The array of an .npy as a memory map, read only; a file shorter than its header says is a ValueError."""
    with open_regular(path) as stream:
        header = read_header(stream, str(path))
        order: Literal["C", "F"] = "F" if header.fortran else "C"
        return np.memmap(stream, header.dtype, "r", stream.tell(), header.shape, order)


def read_npz(path: Path, *keys: str, largest: int | None = None) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz by name, all or those of ``keys``; damage and what is missing are a ValueError.

    All together have ``largest`` bytes at most, or what `LARGEST_PACKED` says.
    """
    found: dict[str, NDArray[Any]] = {}
    left = most = LARGEST_PACKED + path.stat().st_size if largest is None else largest
    with open_zip(path) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name == info.filename or (keys and name not in keys):
                continue
            with archive.open(info) as stream:
                header = read_header(stream, f"{path}:{name}")
                if info.compress_type == zipfile.ZIP_STORED and header.nbytes > info.file_size:
                    raise ValueError(f"{path}:{name} ends early: damaged")
                if (left := left - header.nbytes) < 0:
                    raise ValueError(f"{path} unpacks to more than {most:,} bytes, the most that is read")
                data = bytearray()
                while block := stream.read(min(_PART, header.nbytes - len(data))):
                    data += block
            if len(data) != header.nbytes:
                raise ValueError(f"{path}:{name} ends early: damaged")
            order = "F" if header.fortran else "C"
            found[name] = np.frombuffer(data, header.dtype).reshape(header.shape, order=order)  # type: ignore[call-overload]
    if missing := [key for key in keys if key not in found]:
        raise ValueError(f"{path} is damaged: it holds no {missing[0]}")
    return found


def read_pixels(path: Path, key: str = "images", largest: int | None = None) -> NDArray[np.uint8]:
    """The images uint8 [N, C, H, W] of an .npz of ours, C = 1 or 3."""
    found = read_npz(path, key, largest=largest)[key]
    plain = found.dtype == np.uint8 and found.ndim == 4 and found.shape[1] in (1, 3) and 0 not in found.shape
    if not plain or max(found.shape[2:]) > LARGEST_SIDE:
        raise ValueError(
            f"{path} is damaged: {key} is {found.dtype} {list(found.shape)}, expected uint8 [N, C, H, W]"
        )
    return found
