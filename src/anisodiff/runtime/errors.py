"""Errors of the user: one line on standard error and exit code 2, for the command and for modules that are run."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def in_one_line() -> Iterator[None]:
    """Turn ValueError, OSError and MemoryError into one line and exit code 2."""
    try:
        yield
    except (ValueError, OSError, MemoryError) as error:
        print(f"anisodiff: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        sys.exit(2)
