"""Writing files so that a reader never meets half of one.

A file is written under a hidden name beside its place and renamed when it is complete. ``atomic`` is the writer;
``replacing`` is the same for a file that a user has named, whose mistakes are told in one line.
``without_folders`` is for words that are given away.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic(path: str | Path, *, suffix: str | None = None, parents: bool = True) -> Iterator[Path]:
    """A temporary path beside ``path``; it takes the place of ``path`` when the block ends well.

    suffix   of the temporary file; None: that of ``path``, for there are writers that go by it
    parents  whether a missing folder is made

    If the block fails, nothing is left behind and an older file at ``path`` stays as it was. A killed process leaves
    the hidden file as well.
    """
    path = Path(path)
    if parents:
        path.parent.mkdir(parents=True, exist_ok=True)
    ending = path.suffix if suffix is None else suffix
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{ending}")
    temporary.touch(exist_ok=False)  # with the permissions that any new file of this user has
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """As :func:`atomic`, for a file that a user has named: what the disk refuses is a ValueError with its path."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder; give a file name")
    try:
        with atomic(path) as temporary:
            yield temporary
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from None


def sync_folder(path: Path) -> None:
    """A rename or a new entry reaches the disk with its folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def without_folders(words: str) -> str:
    """``words`` with every path cut to its last part: a file that is given away tells nothing of its machine."""
    return re.sub(r"(?:[A-Za-z]:)?(?:[^\s/\\'\"=:;,]*[/\\])+(?=[^\s/\\])", "", words)
