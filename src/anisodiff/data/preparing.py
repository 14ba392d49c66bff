"""Source → prepared dataset, one image in memory at a time; there is either a finished folder or none.

Everything is written into a hidden folder beside the target and renamed at the end. Plain writes, not a
writable memory map: on a full disk a write raises, a map kills the process.
"""

import contextlib
import errno
import hashlib
import math
import os
import secrets
import shutil
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from anisodiff.data.dataset import (
    FORMAT,
    MOST_CLASSES,
    VERSION,
    Dataset,
    class_names,
    is_blurred,
    labels_code,
    open_dataset,
    read_meta,
    shape_line,
)  # fmt: skip
from anisodiff.data.guessing import guess
from anisodiff.data.named import open_source
from anisodiff.data.source import Source
from anisodiff.io.atomic import leaving_nothing, locked, sync_folder
from anisodiff.io.images import Fit
from anisodiff.io.picture_files import Item, Skipped, legible
from anisodiff.io.records import json_text, plain
from anisodiff.runtime.progress import Progress

HEADER = 128  # bytes, fixed, so that the final count can be written over the first one
_REMEDY = "choose another --output, or replace it with --overwrite"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
    max_skipped: int | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    remedy: str = _REMEDY,
) -> Prepared:
    """Decode, fit (see `io.images`) and store all images of a source.

    `size` (side, or H and W) and `channels` are guessed where not given. Unreadable images are listed in
    meta.json and left out; more than `max_skipped` (10 or 1%, whichever is more) of them is an error. The
    same inputs again do nothing. ``remedy``: what to advise where ``out_dir`` holds another dataset.
    """
    source = source if isinstance(source, Source) else open_source(source)
    why = ""
    if size is None or channels is None:
        picked = guess(source)
        why = f"; picked {picked.words(size=size is None, channels=channels is None)}"
        size = picked.size if size is None else size
        channels = picked.channels if channels is None else channels
    fit = Fit(size=(size, size) if isinstance(size, int) else size, channels=channels, crop=source.crop)
    identity = _identity(source, fit)
    out = Path(os.path.abspath(out_dir))
    made = not _already(out, identity, overwrite, remedy)
    if made:
        skipped = Skipped(source.describe(), len(source), max_skipped, "repair or remove them, or raise max_skipped")
        with leaving_nothing(out), _partial(out) as folder, _disk_named(out):
            made = not _already(out, identity, overwrite, remedy)  # another process may have been faster
            if made:
                meta = _write(source, fit, folder, skipped, progress)
                meta |= {"source": legible(source.describe()), "classes": source.classes, "identity": identity}
                with (folder / "meta.json").open("wb") as file:
                    file.write(json_text(meta))
                    _sync(file)
                _publish(folder, out)
    dataset = open_dataset(out)
    done = f"prepared {dataset.describe()}{why}" if made else f"already prepared, nothing to do: {dataset.describe()}"
    return Prepared(dataset=dataset, made=made, message=done)


def check_place(source: Source, out_dir: Path, *, size: tuple[int, int], channels: int, remedy: str) -> None:
    """Refuse a folder that `prepare` would refuse for these images; nothing is written."""
    fit = Fit(size=size, channels=channels, crop=source.crop)
    _already(Path(os.path.abspath(out_dir)), _identity(source, fit), overwrite=False, remedy=remedy)


def _identity(source: Source, fit: Fit) -> dict[str, Any]:
    """What a dataset is made of, as meta.json keeps it; how pictures are resized was a choice once."""
    rule = {**asdict(fit), "resize": True, "resample": "lanczos"}
    found: dict[str, Any] = plain({"source": source.identity(), "fit": rule})
    return found


def _write(source: Source, fit: Fit, folder: Path, skipped: Skipped, progress: Progress | None) -> dict[str, Any]:
    """Images and labels; returns what meta.json says about them."""
    total, labels, small = len(source), list[int | None](), list[tuple[int, int]]()
    code = hashlib.sha256()

    def fitted(image: Image.Image) -> NDArray[np.uint8]:
        pixels = fit(image)
        if image.height < fit.size[0] or image.width < fit.size[1]:
            small.append(image.size)
        return pixels

    row_bytes = fit.channels * fit.size[0] * fit.size[1]
    if (free := shutil.disk_usage(folder).free) < total * row_bytes:
        raise OSError(errno.ENOSPC, f"{free / 1e9:.2f} GB free, {total * row_bytes / 1e9:.2f} GB needed")
    with (folder / "images.npy").open("wb", buffering=4 << 20) as file:
        file.write(npy_header((total, fit.channels, *fit.size)))
        for item, pixels in skipped.read(_counted(source, total, progress), fitted):
            labels.append(item.label)
            data = pixels.tobytes()
            code.update(data)
            file.write(data)
        shape = (len(labels), fit.channels, *fit.size)
        file.seek(0)
        file.write(npy_header(shape))
        _sync(file)
    code.update(shape_line(shape))
    most = len(source.classes or ()) or MOST_CLASSES
    known = [label for label in labels if label is not None and 0 <= label < most]  # others stand for no class
    labels_kept: dict[str, Any] = {"labels": len(known) == len(labels)}
    if labels_kept["labels"]:
        labels_kept["labels_fingerprint"] = labels_code(np.array(known), class_names(source.classes, max(known)))
        with (folder / "labels.npy").open("wb") as file:
            np.save(file, np.array(known, np.int64), allow_pickle=False)
            _sync(file)
    return {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": code.hexdigest(),
        "shape": list(shape),
        **labels_kept,
        "seen": total,
        "enlarged": _enlarged(small, fit.size) if small else None,
        "skipped": [{"name": name, "reason": reason} for name, reason in skipped.reasons.items()],
    }


def _enlarged(small: list[tuple[int, int]], size: tuple[int, int]) -> dict[str, Any]:
    """What meta.json says of pictures that were enlarged, given by width and height."""
    blurred = sum(is_blurred(height, width, size) for width, height in small)
    return {"count": len(small), "more_than_twofold": blurred, "smallest": list(min(small, key=math.prod))}


def _counted(source: Source, total: int, progress: Progress | None) -> Iterator[Item]:
    for done, item in enumerate(source.items(), 1):
        yield item
        if progress is not None:
            progress(done, total)


def npy_header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    """The NumPy format's header (version 1.0), always 128 bytes long."""
    text = repr({"descr": dtype, "fortran_order": False, "shape": tuple(int(n) for n in shape)})
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", HEADER - 10) + text.ljust(HEADER - 11).encode() + b"\n"


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _already(out: Path, identity: dict[str, Any], overwrite: bool, remedy: str) -> bool:
    """Whether the target is there and the same; `ValueError` where it is in the way."""
    meta = read_meta(out)
    if meta is not None and meta.get("identity") == identity and meta.get("version") == VERSION:
        return True
    if meta is not None and not overwrite:
        raise ValueError(f"{out} holds another dataset ({meta.get('source')}): {remedy}")
    if meta is None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is no prepared dataset: expected a new or empty folder; choose another")
    return False


@contextmanager
def _disk_named(out: Path) -> Iterator[None]:
    """A full disk or a quota, in one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise OSError(
            error.errno,
            f"cannot write {out}: {error.strerror}; nothing was kept, make room or choose another disk",
        ) from error


@contextmanager
def _partial(out: Path) -> Iterator[Path]:
    """A hidden folder beside the target, removed afterwards in any case, as is what killed processes have left.

    One process at a time has it: of several that are to prepare the same images the others wait, and then find them.
    """
    prefix = f".{out.name}.partial-"
    with contextlib.ExitStack() as held:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            held.enter_context(locked(out.with_name(f".{out.name}.lock"), wait=float("inf")))
            for left in [path for path in out.parent.iterdir() if path.name.startswith(prefix)]:
                shutil.rmtree(left, ignore_errors=True)
            folder = out.parent / f"{prefix}{secrets.token_hex(4)}"
            folder.mkdir()
        except OSError as error:
            raise ValueError(f"cannot write below {out.parent} ({error.strerror}): choose another folder") from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _publish(folder: Path, out: Path) -> None:
    """Rename into place; a replaced dataset is moved away first."""
    retired = folder.with_name(folder.name + "-old")
    if read_meta(out) is not None:
        os.rename(out, retired)
    try:
        if out.is_dir() and not any(out.iterdir()):
            out.rmdir()  # Windows renames onto nothing
        os.rename(folder, out)
    except OSError as error:
        if retired.exists():
            os.rename(retired, out)
        raise OSError(error.errno, f"cannot put the dataset at {out}: {error.strerror}") from error
    sync_folder(out.parent)
    shutil.rmtree(retired, ignore_errors=True)
