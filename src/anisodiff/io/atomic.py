"""Files that are complete or absent, and locks.

A file is written under a hidden name beside its place and renamed when it is complete. `atomic` is the writer;
`replacing` is the same for a file that a user has named, with errors of one line. `locked` holds a lock file, whose
lock dies with its process.
"""

import contextlib
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

LOCK = ".lock"
"""The lock file of a folder."""
_MARK = "-unfinished"
"""In the names of temporary files, so that no file of a user is taken for one."""


@contextlib.contextmanager
def atomic(path: str | Path, *, suffix: str | None = None, parents: bool = True) -> Iterator[Path]:
    """A temporary path beside ``path``; it replaces ``path`` when the block succeeds.

    suffix   of the temporary file; None: that of ``path``, by which some writers choose the format
    parents  whether to create a missing folder

    If the block fails, no file is left and an older file at ``path`` is unchanged. A killed process leaves the hidden
    file, too. A link stays and its target is replaced. What is no regular file, such as /dev/null or a pipe, is
    written into, never replaced; so is a stream of this process, such as /dev/stdout.
    """
    path = Path(path)
    ending = path.suffix if suffix is None else suffix
    if _descriptor(path) is not None or (_exists(path) and not path.is_file()):
        with tempfile.TemporaryDirectory() as folder:
            temporary = Path(folder, f"{path.stem}{ending}")
            yield temporary
            _write_into(path, temporary)
        return
    path = Path(os.path.realpath(path))
    if parents:
        path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{_MARK}{ending}")
    temporary.touch(exist_ok=False)  # with the permissions that any new file of this user has
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def clear_orphans(path: Path) -> None:
    """Remove what killed writers have left of the file ``path``, or of the files below the folder ``path``.

    Call it where no other process writes there. Folders that have a lock of their own are left alone.
    """
    path = Path(os.path.realpath(path))
    if path.is_dir():
        stem, suffix, folders = ".+", r"(\.\w+)?", _unlocked(path)
    else:
        stem, suffix, folders = re.escape(path.stem), re.escape(path.suffix), iter([path.parent])
    name = re.compile(rf"\.{stem}-[0-9a-f]{{8}}{re.escape(_MARK)}{suffix}")
    for folder in folders:
        for entry in list(folder.glob(".*")):
            if name.fullmatch(entry.name) and entry.is_file():
                with contextlib.suppress(OSError):  # Windows does not remove what is open
                    entry.unlink()


def _unlocked(folder: Path) -> Iterator[Path]:
    """``folder`` and those below it, but for locked ones and what is in them."""
    for root, below, _ in os.walk(folder):
        yield Path(root)
        below[:] = [name for name in below if not os.path.lexists(os.path.join(root, name, LOCK))]


def _exists(path: Path) -> bool:
    """Whether there is anything; links that lead in a circle are an OSError."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _descriptor(path: Path) -> int | None:
    """The number of an open stream of this process that ``path`` is a name of, also through links."""
    found = re.fullmatch(r"(?:/dev|/proc/(?:thread-)?self)/fd/([0-9]{1,6})", os.path.abspath(path))
    if found is not None:
        return int(found[1])
    for number in (1, 2):
        with contextlib.suppress(OSError):  # there is no such file, or the stream is closed
            if os.path.samestat(os.stat(path), os.fstat(number)):
                return number
    return None


def _write_into(path: Path, source: Path) -> None:
    """Copy into a device, pipe or open stream; a pipe that nobody reads is an OSError, and is not waited for."""
    number = _descriptor(path)
    if number is None:
        handle = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        if hasattr(os, "O_NONBLOCK"):
            os.set_blocking(handle, True)
    else:
        print(end="", flush=True)  # what was printed comes first
        handle = os.dup(number)  # opened anew, a file would be written from its beginning
    with source.open("rb") as read, os.fdopen(handle, "wb") as written:
        shutil.copyfileobj(read, written)


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """As `atomic`, for a file that a user has named: an error of the disk becomes a ValueError with the path."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder; give a file name")
    try:
        with leaving_nothing(path.parent), atomic(path) as temporary:
            yield temporary
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from None


@contextlib.contextmanager
def leaving_nothing(path: str | Path, *trivial: str) -> Iterator[None]:
    """If the block is refused (ValueError, OSError), folders made for ``path`` go, unless they hold a result.

    trivial   names of files that are no result: what a command notes of itself before it works
    """
    missing = [one for one in (Path(path), *Path(path).parents) if not os.path.lexists(one)]
    try:
        yield
    except (ValueError, OSError):
        if missing and missing[0].is_dir():
            held = [one for one in missing[0].rglob("*") if not one.is_dir() or one.is_symlink()]
            if all(one.name in trivial for one in held):
                shutil.rmtree(missing[0], ignore_errors=True)
        with contextlib.suppress(OSError):  # a folder above may hold the work of another command by now
            for one in missing:
                if os.path.lexists(one):
                    one.rmdir()
        raise


@contextlib.contextmanager
def locked(path: Path, wait: float = 0.0) -> Iterator[bool]:
    """Hold the lock file ``path``: True, or False where another process still holds it after ``wait`` seconds.

    The operating system frees the lock of a killed process; the empty file that is left then blocks nobody.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):  # Windows does not remove an open file: there the release does
            path.unlink()  # while it is held; filelock never grants the lock of a removed file
        lock.release()


def sync_folder(path: Path) -> None:
    """Write a rename or a new entry of a folder through to the disk, where folders can be opened (not on Windows)."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def without_folders(text: str) -> str:
    """``text`` with every path cut to its last part, for files that are published."""
    return re.sub(r"(?:[A-Za-z]:)?(?:[^\s/\\'\"=:;,]*[/\\])+(?=[^\s/\\])", "", text)
