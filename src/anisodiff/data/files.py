"""Folders and zips of picture files as sources, with classes where their folders name them."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from PIL import Image

from anisodiff.data.source import Source, digest
from anisodiff.io.images import DecodeError
from anisodiff.io.picture_files import Item, PictureFiles, list_pictures


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
        """E.g. 'folder photos, 120 files'."""
        where = f"{self.files.path} below {self.under}" if self.under else f"{self.files.path}"
        return f"{self.files.kind} {where}, {len(self)} files"

    def identity(self) -> dict[str, object]:
        """Names, sizes and stamps: moving the whole folder or zip changes nothing."""
        return {
            "kind": self.files.kind,
            "under": self.under,
            "labels": self.classes is not None,
            "listing": digest(self.files.entries),
        }

    def __len__(self) -> int:
        return len(self.files)

    def items(self) -> Iterator[Item]:
        index = {name: i for i, name in enumerate(self.classes or ())}
        for item in self.files.items():
            opener = functools.partial(_open_expected, item.open, self.expect)
            yield replace(item, open=opener, label=index[class_of(item.name, self.under)] if index else None)


def _open_expected(opener: Callable[[], Image.Image], expect: tuple[int, int] | None) -> Image.Image:
    image = opener()
    if expect is not None and image.size != expect:
        raise DecodeError(f"{image.width}×{image.height} pixels, expected {expect[0]}×{expect[1]}")
    return image


def class_of(name: str, under: str) -> str:
    """The first folder of a file's name below `under`; empty where it lies in none."""
    parts = PurePosixPath(name).relative_to(under).parts
    return parts[0] if len(parts) > 1 else ""


def classes_of(files: PictureFiles, under: str) -> tuple[str, ...]:
    """The class folders in sorted order; every picture must lie in one, and there must be two at least."""
    found = {class_of(name, under) for name, _, _ in files.entries}
    if "" in found:
        stray = next(name for name, _, _ in files.entries if not class_of(name, under))
        raise ValueError(f"{files.path}: {stray} lies in no class folder; expected CLASS/NAME, or leave labels out")
    if len(found) < 2:
        raise ValueError(f"{files.path}: got one class folder ({min(found)}), expected two or more; see under=")
    return tuple(sorted(found))


def pictures(path: str | Path, *, under: str = "", labels: bool = False) -> Pictures:
    """All pictures of a folder or zip; `under` keeps one subfolder, with `labels` the next one is the class."""
    files = list_pictures(path, under)
    return Pictures(files=files, under=under, classes=classes_of(files, under) if labels else None)
