"""Reading zip archives, npz among them: whatever is wrong with one is a ValueError of one line that names it."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def one_line(error: Exception, longest: int = 200) -> str:
    """What an error says, on one line; its class where it says nothing.

    TorchScript begins with its own traceback: there the last line says what went wrong.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and "TorchScript interpreter" in lines[0]:
        lines = [lines[-1].removeprefix("RuntimeError: ")]
    return " ".join(lines)[:longest] or type(error).__name__


@contextmanager
def opened(path: Path, kind: str) -> Iterator[zipfile.ZipFile]:
    """The archive at ``path``, ``kind`` says what ("a zip file"); damage found while it is read counts too."""
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path}: not {kind} ({error})") from error
    try:
        with archive:
            yield archive
    # an encrypted member and an unknown compression are RuntimeErrors of zipfile
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"{path}: damaged or unreadable ({one_line(error)})") from error
