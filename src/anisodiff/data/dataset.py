"""A prepared dataset on disk: images.npy (uint8 [N,C,H,W]), labels.npy where known, meta.json, verified.json.

fingerprint = sha256(all pixel bytes in order ‖ "uint8 [N, C, H, W]"): equal fingerprints mean equal training
images. Labels have one of their own, so that images keep theirs whether they are labeled or not:
labels_fingerprint = sha256(labels as int64, little-endian ‖ JSON list of the classes' names).
"""

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisodiff.io.archives import one_line
from anisodiff.io.arrays import map_array
from anisodiff.io.records import RecordKind, read_json, write_json
from anisodiff.io.schema import anything, fields, flag, optional, require, rows, table, text, whole
from anisodiff.notation import counted
from anisodiff.runtime.progress import Progress

FORMAT, VERSION = "anisodiff dataset", 1
MOST_CLASSES = 1 << 16
REMEDY = "prepare it again"
ENLARGED = fields(count=whole(1), more_than_twofold=optional(whole(0)), smallest=rows(whole(1), count=2))
"""Pictures that were smaller than the dataset's images, and width and height of the smallest."""
META = fields(
    fingerprint=text, shape=rows(whole(1), count=4), labels=flag, source=text, classes=optional(rows(text)),
    skipped=rows(fields(name=text, reason=text)), enlarged=optional(ENLARGED),
    identity=fields(source=table(anything), fit=optional(fields(crop=optional(whole(1, 1 << 16))))),
    labels_fingerprint=optional(text),
)  # fmt: skip
VERIFIED = RecordKind("anisodiff verified array", 1, fields(fingerprint=text, size=whole(0), times=rows(text)))
"""Of verified.json: the array's file as it was when it was last read in full."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Images in a memory map, read only: opening costs nothing, and nothing is read before it is used."""

    path: Path
    images: NDArray[np.uint8]
    labels: NDArray[np.int64] | None
    fingerprint: str
    meta: dict[str, Any]

    def __len__(self) -> int:
        return int(self.images.shape[0])

    @property
    def channels(self) -> int:
        return int(self.images.shape[1])

    @property
    def size(self) -> tuple[int, int]:
        """(H, W)."""
        return int(self.images.shape[2]), int(self.images.shape[3])

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by label; their numbers where they have none, nothing without labels."""
        if self.labels is None:
            return ()
        return class_names(self.meta.get("classes"), int(self.labels.max()))

    @property
    def labels_fingerprint(self) -> str | None:
        return None if self.labels is None else labels_code(self.labels, self.classes)

    def first(self, count: int) -> Tensor:
        """The first ``count`` images (or all), float32 [N, C, H, W] in [0, 1]."""
        return torch.from_numpy(np.array(self.images[:count])).float() / 255

    def describe(self) -> str:
        h, w = self.size
        skipped = self.meta["skipped"]
        first = f" ({skipped[0]['name']}{', …' * (len(skipped) > 1)})" if skipped else ""
        left_out = f", {len(skipped)} unreadable left out{first}" if skipped else ""
        what = f"{counted(len(self), 'image')} {self.channels}×{h}×{w} from {self.meta['source']}"
        if small := self.meta.get("enlarged"):
            width, height = small["smallest"]
            left_out += f", {small['count']} enlarged (the smallest from {height}×{width})"
        return what + left_out

    def blurred(self) -> list[str]:
        """A line about pictures that were enlarged by more than a factor of two, if there are any."""
        small = self.meta.get("enlarged") or {}
        return blurred_line(small.get("more_than_twofold") or 0, counted(len(self), "image"), small.get("smallest"))


def is_blurred(height: int, width: int, size: tuple[int, int]) -> bool:
    """Whether a picture is enlarged by more than a factor of two to fill ``size``, (H, W)."""
    return size[0] > 2 * height or size[1] > 2 * width


def blurred_line(count: int, of: str, smallest: Sequence[int] | None) -> list[str]:
    """What to say of ``count`` pictures that `is_blurred`; ``smallest``: width and height."""
    if not count or smallest is None:
        return []
    return [
        f"{count} of {of} {'is' if count == 1 else 'are'} enlarged by more than a factor of two, the smallest from "
        f"{smallest[1]}×{smallest[0]}, and so blurred: remove such pictures, or choose a smaller size"
    ]


def shape_line(shape: tuple[int, ...], dtype: str = "uint8") -> bytes:
    """What the fingerprint says about the array besides its bytes."""
    return f"{dtype} {[int(n) for n in shape]}".encode()


def class_names(names: Sequence[str] | None, largest: int) -> tuple[str, ...]:
    """The names of the classes of a set, or their numbers up to the ``largest`` label."""
    return tuple(names) if names else tuple(map(str, range(largest + 1)))


def labels_code(labels: NDArray[np.int64], classes: Sequence[str]) -> str:
    """The fingerprint of labels and the names of their classes."""
    return hashlib.sha256(labels.astype("<i8").tobytes() + json.dumps(list(classes)).encode()).hexdigest()


def read_meta(path: Path) -> dict[str, Any] | None:
    """The meta.json of a finished dataset; None where there is none."""
    try:
        meta = read_json(path / "meta.json")
    except ValueError:
        return None
    return meta if meta.get("format") == FORMAT else None


def is_dataset(path: str | Path) -> bool:
    """Whether a folder is a prepared dataset (of any version)."""
    return read_meta(Path(path)) is not None


def load_array(file: Path, remedy: str = REMEDY) -> NDArray[Any]:
    """A memory map of an array that is part of a dataset."""
    try:
        return map_array(file)
    except (OSError, ValueError, OverflowError) as error:
        why = one_line(error)
        raise ValueError(f"cannot read {file} ({why}): it is missing, truncated or damaged; {remedy}") from error


def open_dataset(path: str | Path, *, verify: bool = False) -> Dataset:
    """A prepared dataset, checked against its meta.json; with `verify` down to the last pixel."""
    path = Path(path)
    meta = read_meta(path)
    if meta is None:
        raise ValueError(
            f"{path} is no prepared dataset: expected images.npy and meta.json; run 'anisodiff data prepare'"
        )
    if meta.get("version") != VERSION:
        raise ValueError(f"{path} has dataset version {meta.get('version')}, expected {VERSION}; {REMEDY}")
    require(META, meta, path / "meta.json")
    images = load_array(path / "images.npy")
    shape = tuple(meta["shape"])
    if images.dtype != np.uint8 or images.shape != shape:
        raise ValueError(
            f"{path}: images.npy is {images.dtype} {[*images.shape]}, expected uint8 {[*shape]}; {REMEDY}"
        )
    labels = load_array(path / "labels.npy").astype(np.int64) if meta["labels"] else None
    if labels is not None and labels.shape != shape[:1]:
        raise ValueError(f"{path}/labels.npy has shape {list(labels.shape)}, expected [{shape[0]}]; {REMEDY}")
    if labels is not None:
        most = len(meta.get("classes") or ()) or MOST_CLASSES
        if labels.min() < 0 or labels.max() >= most:
            raise ValueError(
                f"{path}/labels.npy: labels from {labels.min()} to {labels.max()}, expected 0 to {most - 1}; {REMEDY}"
            )
    found = Dataset(path=path, images=images, labels=labels, fingerprint=meta["fingerprint"], meta=meta)
    if verify:
        verify_images(found)
    return found


def verify_images(dataset: Dataset, progress: Progress | None = None) -> None:
    """Refuse a dataset whose pixels are not those that its fingerprint was computed of."""
    expected = dataset.fingerprint
    code = verified(dataset.path / "images.npy", dataset.images, expected, progress)
    if code != expected:
        raise ValueError(
            f"{dataset.path} has fingerprint {code[:12]}, expected {expected[:12]}: damaged or changed; {REMEDY}"
        )
    if dataset.meta.get("labels_fingerprint") not in (None, dataset.labels_fingerprint):
        raise ValueError(f"{dataset.path}/labels.npy is not what was written: damaged or changed; {REMEDY}")


def verified(file: Path, array: NDArray[Any], expected: str, progress: Progress | None = None) -> str:
    """The fingerprint of the ``array`` in ``file``.

    The array is read in full once, which may take an hour, and again after the file was changed or copied:
    verified.json beside it keeps the fingerprint with the file's size and times.
    """
    if not isinstance(array, np.memmap):
        return fingerprint(array, progress)
    record, state = file.with_name("verified.json"), file.stat()
    times = [str(state.st_mtime_ns), str(state.st_ctime_ns)]
    now = VERIFIED.new({"fingerprint": expected, "size": state.st_size, "times": times})
    with contextlib.suppress(ValueError):  # a record that cannot be read is written anew
        if VERIFIED.read(record) == now:
            return expected
    code = fingerprint(array, progress)
    if code == expected:
        with contextlib.suppress(ValueError):  # a dataset may lie where this user cannot write
            write_json(record, now)
    return code


def fingerprint(images: NDArray[Any], progress: Progress | None = None) -> str:
    """The fingerprint of an array [N, …], read in blocks."""
    total = hashlib.sha256()
    rows = max(1, (16 << 20) // max(1, images[:1].nbytes))
    for i in range(0, len(images), rows):
        total.update(images[i : i + rows].tobytes())
        if progress is not None:
            progress(min(i + rows, len(images)), len(images))
    total.update(shape_line(images.shape, images.dtype.name))
    return total.hexdigest()
