"""Errors of the user: one line on standard error and exit code 2, for the command and for modules that are run."""

import functools
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


@contextmanager
def in_one_line() -> Iterator[None]:
    """Turn ValueError, OSError and lack of memory into a line, and warnings into one each."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = functools.partial(_show, set())
            yield
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "Symlink loop" not in str(error):  # pathlib's, before Python 3.13
            raise
        print(f"anisodiff: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        sys.exit(2)


def _show(
    shown: set[str], message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    """Without the place in our code, and once; of several processes the first one speaks."""
    text = " ".join(str(message).split())
    if os.environ.get("RANK", "0") == "0" and text not in shown:
        print(f"anisodiff: warning: {text}", file=sys.stderr)
    shown.add(text)
