"""Paths that must exist, and zip archives (npz among them): every error is one line that names the file."""

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


def existing(path: str | Path, what: str) -> Path:
    """The path, if it is a folder or a regular file; ``what`` was expected there."""
    path = Path(path)
    try:
        path.stat()
    except OSError as error:
        raise ValueError(
            f"cannot read {path} ({error.strerror}): expected {what}; check the path and its permissions"
        ) from error
    if not (path.is_dir() or path.is_file()):
        raise ValueError(f"{path} is neither a folder nor a regular file: expected {what}")
    return path


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive at ``path``; damage found while it is read counts too."""
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise ValueError(
            f"cannot read {path} as a zip ({error}): truncated or no zip; fetch it again and compare its size"
        ) from error
    try:
        with archive:
            yield archive
    # an encrypted member and an unknown compression are RuntimeErrors of zipfile
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"{path}: damaged or unreadable ({one_line(error)})") from error
