"""Source → prepared dataset, one image in memory at a time; there is either a finished folder or none.

Everything is written into a hidden folder beside the target and renamed at the end. Plain writes, not a
writable memory map: on a full disk a write raises, a map kills the process.
"""

import errno
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from anisodiff.data.dataset import FORMAT, VERSION, Dataset, open_dataset, shape_line
from anisodiff.data.guessing import guess
from anisodiff.data.named import open_source
from anisodiff.data.publishing import already, disk_named, partial, publish
from anisodiff.data.source import Source
from anisodiff.io.images import Fit, Resample
from anisodiff.io.picture_files import Item, Skipped, legible
from anisodiff.runtime.progress import Progress

HEADER = 128  # bytes, fixed, so that the final count can be written over the first one


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The dataset, whether this call made it, and what happened in words."""

    dataset: Dataset
    made: bool
    message: str


def prepare(
    source: Source | str | Path,
    out_dir: str | Path,
    *,
    size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    resize: bool = True,
    resample: Resample = "lanczos",
    max_skipped: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Prepared:
    """Decode, fit (see `io.images`) and store all images of a source.

    `size` (side, or H and W) and `channels` are guessed where not given. Unreadable images are listed in
    meta.json and left out; more than `max_skipped` (10 or 1 %, whichever is more) of them is an error. The
    same inputs again do nothing.
    """
    source = source if isinstance(source, Source) else open_source(source)
    why = ""
    if size is None or channels is None:
        picked = guess(source)
        why = f"; picked {picked.words(size=size is None, channels=channels is None)}"
        size = picked.size if size is None else size
        channels = picked.channels if channels is None else channels
    fit = Fit(
        size=(size, size) if isinstance(size, int) else size,
        channels=channels,
        crop=source.crop,
        resize=resize,
        resample=resample,
    )
    identity = json.loads(json.dumps({"source": source.identity(), "fit": asdict(fit)}))
    out = Path(os.path.abspath(out_dir))
    if already(out, identity, overwrite):
        dataset = open_dataset(out)
        return Prepared(dataset=dataset, made=False, message=f"already prepared, nothing to do: {dataset.describe()}")
    skipped = Skipped(source.describe(), len(source), max_skipped, "repair or remove them, or raise max_skipped")
    with partial(out) as folder:
        with disk_named(out):
            meta = _write(source, fit, folder, skipped, progress)
            meta |= {"source": legible(source.describe()), "classes": source.classes, "identity": identity}
            _write_text(folder / "meta.json", json.dumps(meta, indent=1, ensure_ascii=False))
        publish(folder, out, identity)
    dataset = open_dataset(out)
    return Prepared(dataset=dataset, made=True, message=f"prepared {dataset.describe()}{why}")


def _write(source: Source, fit: Fit, folder: Path, skipped: Skipped, progress: Progress | None) -> dict[str, Any]:
    """Images and labels; returns what meta.json says about them."""
    total, labels = len(source), list[int | None]()
    code = hashlib.sha256()
    row_bytes = fit.channels * fit.size[0] * fit.size[1]
    if (free := shutil.disk_usage(folder).free) < total * row_bytes:
        raise OSError(errno.ENOSPC, f"{free / 1e9:.2f} GB free, {total * row_bytes / 1e9:.2f} GB needed")
    with (folder / "images.npy").open("wb", buffering=4 << 20) as file:
        file.write(_header((total, fit.channels, *fit.size)))
        for item, pixels in skipped.read(_counted(source, total, progress), fit):
            labels.append(item.label)
            data = pixels.tobytes()
            code.update(data)
            file.write(data)
        shape = (len(labels), fit.channels, *fit.size)
        file.seek(0)
        file.write(_header(shape))
        _sync(file)
    code.update(shape_line(shape))
    known = [label for label in labels if label is not None]
    if len(known) == len(labels):
        with (folder / "labels.npy").open("wb") as file:
            np.save(file, np.array(known, np.int64), allow_pickle=False)
            _sync(file)
    return {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": code.hexdigest(),
        "shape": list(shape),
        "labels": len(known) == len(labels),
        "seen": total,
        "skipped": [{"name": name, "reason": reason} for name, reason in skipped.reasons.items()],
    }


def _counted(source: Source, total: int, progress: Progress | None) -> Iterator[Item]:
    for done, item in enumerate(source.items(), 1):
        yield item
        if progress is not None:
            progress(done, total)


def _header(shape: tuple[int, ...]) -> bytes:
    """The NumPy format's header (version 1.0), always 128 bytes long."""
    text = repr({"descr": "|u1", "fortran_order": False, "shape": tuple(int(n) for n in shape)})
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", HEADER - 10) + text.ljust(HEADER - 11).encode() + b"\n"


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _write_text(path: Path, text: str) -> None:
    with path.open("wb") as file:
        file.write(text.encode())
        _sync(file)
