"""A folder that is complete or absent: written under a hidden name, renamed at the end."""

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anisodiff.data.dataset import VERSION, read_meta
from anisodiff.io.atomic import locked, sync_folder

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
STALE = 60.0  # seconds an unlocked hidden folder must be old: another process may be about to lock it


def already(out: Path, identity: dict[str, Any], overwrite: bool) -> bool:
    """Whether the target is there and the same; `ValueError` where it is in the way."""
    meta = read_meta(out)
    if meta is not None and meta.get("identity") == identity and meta.get("version") == VERSION:
        return True
    if meta is not None and not overwrite:
        raise ValueError(
            f"{out} holds another dataset ({meta.get('source')}): choose another folder, or overwrite it"
        )
    if meta is None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists and is no prepared dataset: expected a new or empty folder; choose another")
    return False


@contextmanager
def disk_named(out: Path) -> Iterator[None]:
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
def partial(out: Path) -> Iterator[Path]:
    """A hidden folder beside the target, removed afterwards in any case; leftovers of killed processes go as well.

    Its lock lies beside it (NAME.lock), not in it: it is renamed into place while the lock is held.
    """
    prefix = f".{out.name}.partial-"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        left = {path.name.removesuffix(".lock") for path in out.parent.iterdir() if path.name.startswith(prefix)}
        for old in (out.parent / name for name in left):
            with locked(_lock_of(old)) as free:
                if free and old.is_dir() and time.time() - old.stat().st_mtime > STALE:
                    shutil.rmtree(old, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=out.parent))
    except OSError as error:
        raise ValueError(f"cannot write below {out.parent} ({error.strerror}): choose another folder") from error
    try:
        with locked(_lock_of(folder), wait=10.0):  # a process that tidies up may hold it for a moment
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def publish(folder: Path, out: Path, identity: dict[str, Any]) -> None:
    """Rename into place; a replaced dataset is moved away first, another process's equal one is kept."""
    os.chmod(folder, 0o755)  # mkdtemp makes it private
    retired = folder.with_name(folder.name + "-old")
    if already(out, identity, overwrite=True):
        return
    if read_meta(out) is not None:
        os.rename(out, retired)
    try:
        os.rename(folder, out)
    except OSError as error:
        if already(out, identity, overwrite=True):  # made by another process a moment ago
            return
        if retired.exists():
            os.rename(retired, out)
        raise OSError(error.errno, f"cannot put the dataset at {out}: {error.strerror}") from error
    sync_folder(out.parent)
    shutil.rmtree(retired, ignore_errors=True)
