"""The pictures of a folder or zip: which files count, in which order, and what happens to those that fail.

1. A file counts by its suffix (`SUFFIXES`, upper case too), at any depth. Hidden files and folders, ``__MACOSX``
   and AppleDouble files (``._NAME``) do not count. Links to folders are followed.
2. Pictures are sorted by their name relative to the folder or zip, with / between the parts.
3. A file that cannot be decoded is left out. One line gives the number of these files and names the first. More
   than ten of them, or than one in a hundred if that is more, are an error, and so is a set without any picture.
"""

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from PIL import Image

from anisodiff.io.archives import LARGEST_BLOB, existing, open_zip, read_member
from anisodiff.io.images import SUFFIXES, DecodeError, decode, open_image
from anisodiff.notation import counted

Entry = tuple[str, int, int]
"""Name, bytes, and a stamp that changes when the file does."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Item:
    """One image of a set: its name, its class where known, and a function that opens it (the header suffices)."""

    name: str
    open: Callable[[], Image.Image]
    label: int | None = None

    def decode(self) -> Image.Image:
        """The image upright, with its pixels read; `DecodeError` where that fails for any reason."""
        return decode(self.open)


@dataclass(frozen=True, kw_only=True)
class PictureFiles:
    """The pictures of the folder or zip at ``path``, sorted by name."""

    path: Path
    entries: tuple[Entry, ...]

    @property
    def kind(self) -> str:
        return "folder" if self.path.is_dir() else "zip"

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.entries]

    def __len__(self) -> int:
        return len(self.entries)

    def only(self, wanted: Callable[[str], bool]) -> "PictureFiles":
        """Those whose name is ``wanted``."""
        return PictureFiles(path=self.path, entries=tuple(entry for entry in self.entries if wanted(entry[0])))

    def items(self) -> Iterator[Item]:
        """All in order. An item is valid until the next one is asked for."""
        if self.path.is_dir():
            for name in self.names:
                yield Item(name=name, open=functools.partial(open_image, self.path / name))
            return
        with open_zip(self.path) as archive:
            for name in self.names:
                yield Item(name=name, open=lambda name=name: open_image(read_member(archive, name, LARGEST_BLOB)))  # type: ignore[misc]


_RUN = ("config.yaml", "log.jsonl")


def list_pictures(path: str | Path) -> PictureFiles:
    """The pictures of a folder or zip."""
    path = existing(path, "a folder or zip of images")
    if all((path / name).exists() for name in _RUN):
        raise ValueError(
            f"{path} is a run, and its pictures are grids of samples: give the images it was trained on, {path}/data "
            "where it has prepared them"
        )
    entries = sorted((_in_folder if path.is_dir() else _in_zip)(path))
    if not entries:
        raise ValueError(f"{path} holds no images: expected files such as .png, .jpg or .webp, at any depth")
    return PictureFiles(path=path, entries=tuple(entries))


def is_picture(name: str, under: str = "") -> bool:
    """By suffix and place, see the rules of this module."""
    path = PurePosixPath(name)
    return (
        path.suffix.lower() in SUFFIXES
        and not any(_hidden(part) for part in path.parts)
        and (not under or name.startswith(under.rstrip("/") + "/"))
    )


def _hidden(part: str) -> bool:
    return part.startswith(".") or part == "__MACOSX"


def _in_folder(root: Path) -> Iterator[Entry]:
    seen: set[tuple[int, int]] = set()  # links to folders are followed, but never in a circle

    def refuse(error: OSError) -> None:
        raise ValueError(f"cannot list {error.filename} ({error.strerror}): check its permissions")

    for here, folders, files in os.walk(root, onerror=refuse, followlinks=True):
        stat = os.stat(here)
        if (stat.st_dev, stat.st_ino) in seen:
            folders.clear()
            continue
        seen.add((stat.st_dev, stat.st_ino))
        folders[:] = sorted(folder for folder in folders if not _hidden(folder))
        for file in files:
            full = Path(here, file)
            name = full.relative_to(root).as_posix()
            if not is_picture(name):
                continue
            try:
                stat = full.stat()
                yield name, stat.st_size, stat.st_mtime_ns
            except OSError:  # a dangling link: listed here, reported when it is opened
                yield name, -1, 0


def _in_zip(path: Path) -> Iterator[Entry]:
    with open_zip(path) as archive:
        for info in archive.infolist():
            if not info.is_dir() and is_picture(info.filename):
                yield info.filename, info.file_size, info.CRC


class Skipped:
    """The images of a set of ``total`` that cannot be used, name → reason; more than ``limit`` are an error."""

    def __init__(
        self, where: str, total: int, limit: int | None = None, remedy: str = "repair or remove them"
    ) -> None:
        self.where, self.total, self.remedy = where, total, remedy
        self.limit = max(10, total // 100) if limit is None else limit
        self.reasons: dict[str, str] = {}
        self._reported = 0

    def __len__(self) -> int:
        return len(self.reasons)

    def read(self, items: Iterable[Item], convert: Callable[[Image.Image], T]) -> Iterator[tuple[Item, T]]:
        """Decode and convert the items; those that fail are left out and kept here."""
        found = False
        for item in items:
            try:
                result = convert(item.decode())
            except DecodeError as error:
                self.reasons[legible(item.name)] = legible(str(error))
                if len(self) > self.limit:
                    raise ValueError(
                        self._refusal(f"{counted(len(self), 'image')} cannot be used, expected at most {self.limit}")
                    ) from error
            else:
                found = True
                yield item, result
        if not found:
            raise ValueError(self._refusal("no image can be used"))

    def report(self) -> None:
        """Warn in one line, once for the same files."""
        if len(self) > self._reported:
            name, reason = next(iter(self.reasons.items()))
            warnings.warn(
                f"{self.where}: {len(self)} of {self.total} images cannot be used and are left out, "
                f"the first is {name} ({reason})",
                stacklevel=2,
            )
        self._reported = len(self)

    def _refusal(self, what: str) -> str:
        first = "; ".join(f"{name}: {reason}" for name, reason in list(self.reasons.items())[:3])
        more = f"; and {len(self) - 3} more" if len(self) > 3 else ""
        return f"{self.where}: {what} ({first}{more}); {self.remedy}"


def legible(text: str) -> str:
    """The names of files need not be UTF-8; what is written and printed must be."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
