"""Read CIFAR-10's pickled batches without running anything that a pickle may ask for.

A pickle is a program: it names callables and calls them. This reader knows four names, and gives each an
inert stand-in of its own; every other name is refused. So a batch can build dicts, lists, numbers, text, and
byte arrays.
"""

import io
import math
import pickle
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray


class _DType:
    """Stand-in for numpy.dtype: remembers its code, ignores its state."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.code = code.decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        pass


class _Array:
    """Stand-in for numpy.ndarray: keeps bytes and shape of a uint8 array."""

    values: NDArray[np.uint8]

    def __setstate__(self, state: object) -> None:
        if not (isinstance(state, tuple) and len(state) == 5):
            raise pickle.UnpicklingError("an array in an unknown layout")
        _, shape, dtype, fortran, data = state
        data = data.encode("latin1") if isinstance(data, str) else data
        ok = isinstance(dtype, _DType) and dtype.code == "u1" and isinstance(data, bytes) and isinstance(shape, tuple)
        if not (ok and all(isinstance(n, int) and n >= 0 for n in shape) and math.prod(shape) == len(data)):
            raise pickle.UnpicklingError("an array that is not plain uint8")
        self.values = np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


def _array(*_: object) -> _Array:
    return _Array()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1")


class _NdarrayName:
    """Stand-in for the class numpy.ndarray where it is only an argument of the constructor."""


ADMITTED: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,
    ("numpy", "ndarray"): _NdarrayName,
    ("numpy", "dtype"): _DType,
    ("_codecs", "encode"): _encode,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        """One of the stand-ins."""
        try:
            return ADMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused") from None

    def persistent_load(self, pid: object) -> NoReturn:
        """Never needed by a batch."""
        raise pickle.UnpicklingError("it asks for an outside object, which is refused")


def read_batch(data: bytes) -> tuple[NDArray[np.uint8], list[int]]:
    """A pickled batch → pixels [n, 3072] and labels [n]; `ValueError` for anything else."""
    try:
        content = _Reader(io.BytesIO(data), encoding="bytes").load()
    except Exception as error:  # a damaged pickle makes the reader raise almost any type
        raise ValueError(f"no CIFAR-10 batch: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"no CIFAR-10 batch: a pickled {type(content).__name__}")
    fields = {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in content.items()}
    pixels, labels = fields.get("data"), fields.get("labels")
    values = getattr(pixels, "values", None) if isinstance(pixels, _Array) else None
    if values is None or values.ndim != 2 or values.shape[1] != 3072 or not isinstance(labels, list):
        raise ValueError(f"no CIFAR-10 batch: a dict with {', '.join(sorted(map(str, fields)))}")
    if len(labels) != len(values) or not all(isinstance(v, int) and 0 <= v <= 255 for v in labels):
        raise ValueError(f"no CIFAR-10 batch: {len(labels)} labels for {len(values)} images")
    return np.ascontiguousarray(values), labels
