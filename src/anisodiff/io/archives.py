"""Paths that must exist, files and zip archives (npz among them) as bytes, and the files of a folder, a tar or a zip.

Only regular files are opened, so no pipe or device can make a command wait. A size is compared with its bound before
anything is read. Every error is one line that names the file.
"""

import bz2
import errno
import gzip
import io
import lzma
import os
import re
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

LARGEST = 1 << 26
LARGEST_BLOB = 1 << 28
LARGEST_HEADER, MOST_RECORDS = 1 << 20, 1000
"""Bytes that are read, unless said otherwise: of a record; of a picture, or a file of a packed dataset; of a
header in a tar, and its records."""
MOST_PACKED = 200
"""Times its own size that a packed archive may unpack to: pictures hardly shrink, zeros shrink a thousand times."""
_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, OSError, RecursionError)


def one_line(error: Exception) -> str:
    """What an error says, on one line; its class where it says nothing.

    TorchScript begins with its own traceback: there the last line says what went wrong.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and "TorchScript interpreter" in lines[0]:
        lines = [lines[-1].removeprefix("RuntimeError: ")]
    return " ".join(lines)[:200] or type(error).__name__


def existing(path: str | Path, what: str) -> Path:
    """The path, if it is a folder or a regular file; ``what`` was expected there."""
    text, path = str(path), Path(path)
    try:
        path.stat()
    except OSError as error:
        if _URL.match(text):
            raise ValueError("URLs are not downloaded: download the file, then give its path") from None
        raise ValueError(
            f"cannot read {path} ({error.strerror}): expected {what}; check the path and its permissions"
        ) from error
    if not (path.is_dir() or path.is_file()):
        raise ValueError(f"{path} is neither a folder nor a regular file: expected {what}")
    return path


def open_regular(path: str | Path) -> IO[bytes]:
    """A regular file, opened to read; a pipe or a device is a ValueError, and is not waited for."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise ValueError(f"{path} is not a regular file")
    return os.fdopen(handle, "rb")


def read_regular(path: str | Path, largest: int = LARGEST) -> bytes:
    """The contents of a regular file of at most ``largest`` bytes."""
    with open_regular(path) as stream:
        data = stream.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"{path} is larger than {largest:,} bytes, the most that is read of such a file")
    return data


def read_member(archive: zipfile.ZipFile, name: str, largest: int = LARGEST) -> bytes:
    """One file of a zip, of at most ``largest`` bytes unpacked: zipfile gives no more than the header says."""
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise ValueError(f"{archive.filename} holds no {name}") from None
    if info.file_size > largest:
        raise ValueError(f"{archive.filename}: {name} is larger than {largest:,} bytes, the most that is read of it")
    return archive.read(name)


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive at ``path``; damage found while it is read counts too."""
    with ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(open_regular(path))))
        except (zipfile.BadZipFile, OSError, ValueError, RuntimeError, struct.error, OverflowError) as error:
            raise ValueError(
                f"cannot read {path} as a zip ({one_line(error)}): truncated or no zip; "
                "fetch it again and compare its size"
            ) from error
        archive.filename = str(path)
        with _zip_damage_named(path):
            yield archive


@contextmanager
def _zip_damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    # an encrypted member and an unknown compression are RuntimeErrors of zipfile
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"{path}: damaged or unreadable ({one_line(error)})") from error


@contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    """Whatever a damaged archive raises, as one line."""
    try:
        yield
    except DAMAGED as error:
        raise ValueError(
            f"cannot read {path} ({error}): truncated or no archive; fetch it again and compare its size"
        ) from error


@dataclass(frozen=True)
class Blob:
    """One file; `open` works until the next blob is asked for."""

    archive: Path
    name: str
    size: int
    open: Callable[[], IO[bytes]]

    def head(self, count: int = 32) -> bytes:
        with _damage_named(self.archive), self.open() as stream:
            return stream.read(count)

    def read(self, largest: int = LARGEST_BLOB) -> bytes:
        if self.size > largest:
            raise ValueError(f"{self.archive}: {self.name} is larger than {largest:,} bytes, the most that is read")
        with _damage_named(self.archive), self.open() as stream:
            return stream.read(self.size)


class _Budget:
    """What an archive may still unpack to."""

    def __init__(self, path: Path) -> None:
        self._path, self._left = path, MOST_PACKED * path.stat().st_size + LARGEST

    def take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ValueError(f"{self._path} unpacks to more than {MOST_PACKED} times its size: it is not read")


class _Bounded(io.BufferedReader):
    """Bounded reads of a tar: headers may ask for any number of bytes, and what they say is parsed slowly."""

    headers: _Budget | None = None
    """None while a member is read."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= (LARGEST_HEADER if self.headers else LARGEST_BLOB):
            raise tarfile.ReadError(f"it asks for {size} bytes at once")
        data = super().read(size)
        if self.headers:
            self.headers.take(16 * size)
            if data.count(b"=") > MOST_RECORDS:
                raise tarfile.ReadError(f"a header of more than {MOST_RECORDS:,} records")
        return data


@contextmanager
def _unpacked(path: Path) -> Iterator[_Bounded]:
    """A tar behind gzip, bzip2 or xz, or as it is."""
    with open_regular(path) as file:
        head = file.peek(6)[:6]  # type: ignore[attr-defined]
        openers: dict[bytes, Callable[[IO[bytes]], Any]] = {
            b"\x1f\x8b": lambda f: gzip.GzipFile(fileobj=f), b"BZh": bz2.BZ2File, b"\xfd7zXZ": lzma.LZMAFile,
        }  # fmt: skip
        for magic, opener in openers.items():
            if head.startswith(magic):
                with opener(file) as stream:
                    yield _Bounded(stream)
                return
        yield _Bounded(file)  # type: ignore[arg-type]


def _tar_blobs(path: Path) -> Iterator[Blob]:
    budget = _Budget(path)
    with _damage_named(path), _unpacked(path) as stream:
        stream.headers = budget
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            while True:
                start = archive.offset
                if (member := archive.next()) is None:
                    return
                budget.take(max(member.size, archive.offset - start))  # what a sparse one seems to have, or has
                archive.members.clear()  # type: ignore[attr-defined]  # else it keeps them all
                if len(archive.pax_headers) > MOST_RECORDS:  # every member has a copy
                    raise tarfile.ReadError(f"more than {MOST_RECORDS:,} records for all members")
                if member.isfile():
                    stream.headers = None
                    yield Blob(path, member.name, member.size, lambda member=member: _member(archive, member))  # type: ignore[misc]
                    stream.headers = budget


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    stream = archive.extractfile(member)
    assert stream is not None, "asked for regular files only"
    return stream


def _zip_blobs(path: Path) -> Iterator[Blob]:
    budget = _Budget(path)
    with open_zip(path) as archive, _damage_named(path):
        for info in archive.infolist():
            budget.take(info.file_size)
            if not info.is_dir():
                yield Blob(path, info.filename, info.file_size, lambda info=info: archive.open(info))  # type: ignore[misc]


def _folder_blobs(path: Path) -> Iterator[Blob]:
    for here, folders, files in os.walk(path):
        folders.sort()
        for file in sorted(files):
            full = Path(here, file)
            if full.is_file():
                name = full.relative_to(path).as_posix()
                yield Blob(path, name, full.stat().st_size, lambda full=full: full.open("rb"))  # type: ignore[misc]


def blobs(path: str | Path) -> Iterator[Blob]:
    """All files below a folder (sorted) or in an archive (as stored)."""
    path = existing(path, "a folder or an archive")
    if path.is_dir():
        return _folder_blobs(path)
    with open_regular(path) as file:
        packed_as_zip = file.read(2) == b"PK"
    return _zip_blobs(path) if packed_as_zip else _tar_blobs(path)


def read_blob(path: str | Path, name: str) -> bytes:
    """The content of one file of `blobs(path)`."""
    if Path(path).is_dir():
        return read_regular(Path(path) / name, LARGEST_BLOB)
    for blob in blobs(path):
        if blob.name == name:
            return blob.read()
    raise ValueError(f"{path} no longer holds {name}: it changed while it was read; start again")
