"""A folder that is either finished or not there: written under a hidden name, renamed at the end."""

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from anisodiff.data.dataset import VERSION, read_meta
from anisodiff.io.atomic import sync_folder

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
    """A hidden folder beside the target, gone afterwards in any case; leftovers of killed runs go as well."""
    prefix = f".{out.name}.partial-"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for old in [path for path in out.parent.iterdir() if path.name.startswith(prefix)]:
            with suppress(FileNotFoundError), _locked(old) as free:  # another process may tidy up too
                if free and time.time() - old.stat().st_mtime > STALE:
                    shutil.rmtree(old, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=out.parent))
    except OSError as error:
        raise ValueError(f"cannot write below {out.parent} ({error.strerror}): choose another folder") from error
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold a folder's lock, which dies with the process; False where another process holds it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        yield free
    finally:
        os.close(handle)


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
