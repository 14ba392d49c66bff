"""A prepared dataset on disk: images.npy (uint8 [N,C,H,W]), labels.npy where known, meta.json.

fingerprint = sha256(all pixel bytes in order ‖ "uint8 [N, C, H, W]"): equal fingerprints mean equal training
images. Labels have one of their own, so that images keep theirs whether they are labeled or not:
labels_fingerprint = sha256(labels as int64, little-endian ‖ JSON list of the classes' names).
"""

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
from anisodiff.io.records import read_json
from anisodiff.io.schema import anything, fields, flag, optional, require, rows, table, text, whole
from anisodiff.runtime.progress import Progress

FORMAT, VERSION = "anisodiff dataset", 1
MOST_CLASSES = 1 << 16
REMEDY = "prepare it again"
ENLARGED = fields(count=whole(1), smallest=rows(whole(1), count=2))
"""Pictures that were smaller than the dataset's images, and width and height of the smallest."""
META = fields(
    fingerprint=text, shape=rows(whole(1), count=4), labels=flag, source=text, classes=optional(rows(text)),
    skipped=rows(fields(name=text, reason=text)), enlarged=optional(ENLARGED),
    identity=fields(source=table(anything)),
    labels_fingerprint=optional(text),
)  # fmt: skip


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
        what = f"{len(self)} images {self.channels}×{h}×{w} from {self.meta['source']}"
        if small := self.meta.get("enlarged"):
            width, height = small["smallest"]
            left_out += f", {small['count']} enlarged (the smallest from {width}×{height})"
        return f"{what}{left_out} ({self.fingerprint[:12]})"


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
    code, expected = fingerprint(dataset.images, progress), dataset.fingerprint
    if code != expected:
        raise ValueError(
            f"{dataset.path} has fingerprint {code[:12]}, expected {expected[:12]}: damaged or changed; {REMEDY}"
        )
    if dataset.meta.get("labels_fingerprint") not in (None, dataset.labels_fingerprint):
        raise ValueError(f"{dataset.path}/labels.npy is not what was written: damaged or changed; {REMEDY}")


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
