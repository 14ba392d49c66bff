"""Files that are whole or absent: a cache folder, arrays with a checksum.

Arrays carry the key they were stored for and a sha256 of their content; whatever fails a check is treated as absent
and computed again.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anisodiff.io.arrays import read_npz
from anisodiff.io.atomic import atomic

Say = Callable[[str], None]


def silent(message: str) -> None:
    """Say nothing."""


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/anisodiff``, or ``~/.cache/anisodiff``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "anisodiff"


def _digest(key: str, arrays: Mapping[str, np.ndarray]) -> str:
    total = hashlib.sha256(key.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        total.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        total.update(array.reshape(-1).view(np.uint8).data)
    return total.hexdigest()


def store_arrays(path: Path, key: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write ``arrays`` to ``path`` as npz with ``key`` and checksum, atomically."""
    contents: dict[str, Any] = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    contents["__key__"] = np.array(key)
    contents["__sha256__"] = np.array(_digest(key, arrays))
    with atomic(path, suffix=".part") as temporary, temporary.open("wb") as stream:
        np.savez(stream, **contents)


def load_arrays(path: Path, key: str, *, say: Say = silent) -> dict[str, np.ndarray] | None:
    """The arrays stored for ``key``, or ``None`` where the file is absent, damaged or of another key."""
    if not path.exists():
        return None
    try:
        arrays = read_npz(path)
        found, checksum = str(arrays.pop("__key__")), str(arrays.pop("__sha256__"))
    except (OSError, ValueError, KeyError) as error:
        say(f"cache file {path} is damaged ({type(error).__name__}: {error}); computing again")
        return None
    if found != key or checksum != _digest(key, arrays):
        say(f"cache file {path} fails its checksum; computing again")
        return None
    return arrays


def read_key(path: Path) -> str | None:
    """The key a file of :func:`store_arrays` was stored under, or ``None`` where there is no such thing."""
    try:
        return str(read_npz(path, "__key__")["__key__"])
    except (OSError, ValueError):
        return None
