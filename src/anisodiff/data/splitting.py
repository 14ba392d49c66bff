"""A part of a source kept aside: chosen at random, the same part every time, and never trained on."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anisodiff.data.arrays import array_file
from anisodiff.data.dataset import META, Dataset, is_dataset, open_dataset, read_meta
from anisodiff.data.loader import key, permute
from anisodiff.data.preparing import check_place, prepare
from anisodiff.data.source import Source
from anisodiff.io.picture_files import Item
from anisodiff.io.records import plain
from anisodiff.io.schema import require
from anisodiff.notation import counted
from anisodiff.runtime.progress import Progress, no_progress

TRAINED, HELD_OUT = "data", "heldout"
"""Folders of the two parts, below the folder of a run."""
_REMEDY = "choose another folder, or omit --data to continue the run"
_STREAM = 4  # of the data's keys: which images are kept aside
_AMOUNT = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(%?)\s*$")


@dataclass(frozen=True, kw_only=True)
class Part(Source):
    """The items of ``source`` that are held out, or all others; ``count`` of them are held out."""

    source: Source
    count: int
    held_out: bool
    shape: tuple[int, int, int] | None = None
    crop: int | None = None
    classes: tuple[str, ...] | None = None

    def describe(self) -> str:
        return f"{self.source.describe()}, {self.count} held out"

    def identity(self) -> dict[str, object]:
        return {**self.source.identity(), "held_out": self.count, "part": HELD_OUT if self.held_out else TRAINED}

    def check_outside(self, output: Path) -> None:
        self.source.check_outside(output)

    def __len__(self) -> int:
        return self.count if self.held_out else len(self.source) - self.count

    def items(self) -> Iterator[Item]:
        aside = held_out(len(self.source), self.count)
        for number, item in enumerate(self.source.items()):
            if (number in aside) == self.held_out:
                yield item


def held_out(total: int, count: int) -> frozenset[int]:
    """Which ``count`` of ``total`` images are kept aside: a function of the two numbers alone."""
    places = np.arange(count, dtype=np.int64)
    return frozenset(permute(places, total, key(0, _STREAM)).tolist())


def held_out_count(text: str, total: int) -> int:
    """How many of ``total`` images ``10%`` or ``500`` are."""
    match = _AMOUNT.match(text)
    if match is None or not (match[2] or match[1].isdecimal()):
        raise ValueError(f"holdout: got {text!r}, expected a share such as 10%, or a number of images such as 500")
    count = round(float(match[1]) / 100 * total) if match[2] else int(match[1])
    if not 1 < count < total:
        what = f"{text!r}, which is {count or 'none'} of {total} images"
        if count >= total and not match[2]:
            what = f"{count}, but there are {counted(total, 'image')}"
        raise ValueError(f"holdout: got {what}; expected at least 2, and less than all")
    return count


def aside_of(text: str | None, folder: Path, total: int) -> int | None:
    """How many of ``total`` images the run in ``folder`` keeps aside: as ``text`` asks, or as before."""
    if text is not None:
        return held_out_count(text, total)
    meta = read_meta(folder / HELD_OUT)
    count = None if meta is None else require(META, meta, folder / HELD_OUT)["identity"]["source"].get("held_out")
    return count if isinstance(count, int) else None


def is_cut(data: Path, folder: Path, text: str | None) -> bool:
    """Whether the prepared dataset ``data`` is cut in two for the run in ``folder``: as asked, or as before."""
    own = folder / TRAINED
    return text is not None or (is_dataset(folder / HELD_OUT) and is_dataset(own) and data.resolve() != own.resolve())


def source_of(data: Path, folder: Path) -> Source:
    """A prepared dataset as a source with labels and classes, to be cut in two for the run in ``folder``."""
    if data.resolve() == (folder / TRAINED).resolve():
        raise ValueError(f"holdout: {data} are the images of the run itself; keep a part aside in a new run")
    dataset = open_dataset(data)
    images = array_file(data / "images.npy", layout="NCHW")
    classes = dataset.meta.get("classes")
    return replace(images, labels=dataset.labels, classes=None if classes is None else tuple(classes))


@dataclass(frozen=True, kw_only=True)
class RunImages:
    """The prepared images of a run: those to train on, those held out, and what there is to say of them."""

    data: Dataset
    heldout: Dataset | None
    messages: tuple[str, ...]


def _parts(source: Source, folder: Path, holdout: str | None) -> dict[Path, Source]:
    """What to prepare in which folder of a run: the images to train on first, then those held out, if any."""
    count = aside_of(holdout, folder, len(source))
    if count is None:
        return {folder / TRAINED: source}
    if (meta := read_meta(folder / TRAINED)) is not None:
        before = dict(require(META, meta, folder / TRAINED)["identity"]["source"])
        kept = before.pop("held_out", 0)
        before.pop("part", None)
        if kept != count and before == plain(source.identity()):
            raise ValueError(
                f"{folder} kept {kept} of {counted(len(source), 'image')} aside, --holdout {holdout} is {count}; "
                "omit --holdout to continue the run, or choose another folder"
            )
    keys: dict[str, Any] = {"shape": source.shape, "crop": source.crop, "classes": source.classes}
    return {
        folder / name: Part(source=source, count=count, held_out=name == HELD_OUT, **keys)
        for name in (TRAINED, HELD_OUT)
    }


def check_run(source: Source, folder: Path, holdout: str | None, *, size: tuple[int, int], channels: int) -> None:
    """Refuse a folder that `prepare_run` would refuse for these images; nothing is written."""
    for place, part in _parts(source, folder, holdout).items():
        check_place(part, place, size=size, channels=channels, remedy=_REMEDY)


def prepare_run(
    source: Source, folder: Path, holdout: str | None, *, size: tuple[int, int], channels: int,
    progress: Progress = no_progress,
) -> RunImages:  # fmt: skip
    """Prepare ``source`` into ``folder``/data; what ``holdout`` asks for, or was held out before, into /heldout."""
    done, made = 0, []
    for place, part in _parts(source, folder, holdout).items():
        tick = partial(lambda before, now, _: progress(before + now, len(source)), done)
        made.append(prepare(part, place, size=size, channels=channels, progress=tick, remedy=_REMEDY))
        done += len(part)
    trained, *aside = made
    if not aside:
        return RunImages(data=trained.dataset, heldout=None, messages=(trained.message,))
    heldout = aside[0].dataset
    said = f"kept aside: {len(heldout)} images in {folder / HELD_OUT}, never trained on"
    return RunImages(data=trained.dataset, heldout=heldout, messages=(trained.message, said))
