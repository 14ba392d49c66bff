"""Folders and zips of picture files."""

import functools
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from PIL import Image

from anisodiff.data.source import DecodeError, Item, Source, digest, existing, open_image

SUFFIXES = frozenset(
    [
        ".png",
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".webp",
        ".bmp",
        ".gif",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".pbm",
        ".pnm",
        ".tga",
        ".jp2",
        ".avif",
    ]
)
Entry = tuple[str, int, int]
Opener = Callable[[str], Image.Image]


@dataclass(frozen=True, kw_only=True)
class Pictures(Source):
    """Picture files in the order of their names.

    `entries` are (name, bytes, stamp) with a stamp that changes when the file does; `reader(path)` gives the
    function that opens a name. `expect` is the one (W, H) admitted, where the set has one.
    """

    what: str
    path: Path
    entries: tuple[Entry, ...]
    reader: Callable[[Path], AbstractContextManager[Opener]]
    under: str = ""
    classes: tuple[str, ...] | None = None
    shape: tuple[int, int, int] | None = None
    crop: int | None = None
    expect: tuple[int, int] | None = None

    def describe(self) -> str:
        """E.g. 'folder photos, 120 files'."""
        where = f"{self.path} below {self.under}" if self.under else f"{self.path}"
        return f"{self.what} {where}, {len(self)} files"

    def identity(self) -> dict[str, object]:
        """Names, sizes and stamps: moving the whole folder or zip changes nothing."""
        return {
            "kind": self.what,
            "under": self.under,
            "labels": self.classes is not None,
            "listing": digest(self.entries),
        }

    def __len__(self) -> int:
        return len(self.entries)

    def items(self) -> Iterator[Item]:
        """Files in the order of their names."""
        index = {name: i for i, name in enumerate(self.classes or ())}
        with self.reader(self.path) as opener:
            for name, _, _ in self.entries:
                yield Item(
                    name=name,
                    open=functools.partial(_open_expected, opener, name, self.expect),
                    label=index[class_of(name, self.under)] if index else None,
                )


def _open_expected(opener: Opener, name: str, expect: tuple[int, int] | None) -> Image.Image:
    image = opener(name)
    if expect is not None and image.size != expect:
        raise DecodeError(f"{image.width}×{image.height} pixels, expected {expect[0]}×{expect[1]}")
    return image


def is_picture(name: str, under: str) -> bool:
    """By suffix and place; hidden files and the doubles that macOS puts into zips do not count."""
    path = PurePosixPath(name)
    return (
        path.suffix.lower() in SUFFIXES
        and "__MACOSX" not in path.parts
        and not any(part.startswith(".") for part in path.parts)
        and (not under or name.startswith(under.rstrip("/") + "/"))
    )


def class_of(name: str, under: str) -> str:
    """The first folder of a file's name below `under`; empty where it lies in none."""
    parts = PurePosixPath(name).relative_to(under).parts
    return parts[0] if len(parts) > 1 else ""


def classes_of(entries: tuple[Entry, ...], under: str, where: Path) -> tuple[str, ...]:
    """The class folders in sorted order; every picture must lie in one, and there must be two at least."""
    found = {class_of(name, under) for name, _, _ in entries}
    if "" in found:
        stray = next(name for name, _, _ in entries if not class_of(name, under))
        raise ValueError(f"{where}: {stray} lies in no class folder; expected CLASS/PICTURE, or leave labels out")
    if len(found) < 2:
        raise ValueError(f"{where}: got one class folder ({min(found)}), expected two or more; see under=")
    return tuple(sorted(found))


def _checked(entries: list[Entry], where: Path, under: str) -> tuple[Entry, ...]:
    if not entries:
        below = f" below {under}" if under else ""
        raise ValueError(f"{where} holds no images{below}: expected files such as .png, .jpg or .webp, at any depth")
    return tuple(sorted(entries))


def folder(path: str | Path, *, under: str = "", labels: bool = False) -> Pictures:
    """All pictures below a folder; `under` keeps one subfolder, with `labels` the next one is the class."""
    root = existing(path, "a folder of images")
    entries: list[Entry] = []
    seen: set[tuple[int, int]] = set()  # links to folders are followed, but never in a circle

    def refuse(error: OSError) -> None:
        raise ValueError(f"cannot list {error.filename} ({error.strerror}): check its permissions")

    for here, folders, files in os.walk(root, onerror=refuse, followlinks=True):
        stat = os.stat(here)
        if (stat.st_dev, stat.st_ino) in seen:
            folders.clear()
            continue
        seen.add((stat.st_dev, stat.st_ino))
        for file in files:
            full = Path(here, file)
            name = full.relative_to(root).as_posix()
            if is_picture(name, under):
                try:
                    stat = full.stat()
                    entries.append((name, stat.st_size, stat.st_mtime_ns))
                except OSError:  # a dangling link: listed here, reported when it is opened
                    entries.append((name, -1, 0))
    done = _checked(entries, root, under)
    classes = classes_of(done, under, root) if labels else None
    return Pictures(what="folder", path=root, entries=done, reader=_folder_reader, under=under, classes=classes)


@contextmanager
def _folder_reader(root: Path) -> Iterator[Opener]:
    yield lambda name: Image.open(root / name)


def zip_file(path: str | Path, *, under: str = "", labels: bool = False) -> Pictures:
    """All pictures in a zip, read in place; `under` and `labels` as for a folder."""
    path = existing(path, "a zip of images")
    with open_zip(path) as archive:
        entries = [
            (info.filename, info.file_size, info.CRC)
            for info in archive.infolist()
            if not info.is_dir() and is_picture(info.filename, under)
        ]
    done = _checked(entries, path, under)
    classes = classes_of(done, under, path) if labels else None
    return Pictures(what="zip", path=path, entries=done, reader=_zip_reader, under=under, classes=classes)


def open_zip(path: Path) -> zipfile.ZipFile:
    """The archive's directory; a truncated file is a `ValueError`."""
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise ValueError(
            f"cannot read {path} as a zip ({error}): truncated or no zip; fetch it again and compare its size"
        ) from error


@contextmanager
def _zip_reader(path: Path) -> Iterator[Opener]:
    with open_zip(path) as archive:
        yield lambda name: open_image(archive.read(name))
