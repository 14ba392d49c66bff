"""NumPy arrays inside a pickle, as data: their bytes and shape are read, and NumPy's own reader is never called.

A pickle can then build dicts, lists, numbers, text, and arrays of the admitted element types; every other name is
refused (`io.pickles`).
"""

import math
import pickle
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisodiff.io import pickles
from anisodiff.notation import alternatives


class _DType(pickles.StandIn):
    """Stand-in for numpy.dtype: remembers its code; its state, with the order of the bytes, comes later."""

    order: object = "|"

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.code = code[:8].decode("latin1") if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        self.order = state[1] if isinstance(state, tuple) and len(state) > 1 else "?"
        if isinstance(self.order, bytes):
            self.order = self.order[:8].decode("latin1")


class PickledArray(pickles.StandIn):
    """Stand-in for numpy.ndarray: its values, which are a view of the bytes of the pickle."""

    values: NDArray[Any]
    codes: Collection[str] = ()

    def __setstate__(self, state: object) -> None:
        if not (isinstance(state, tuple) and len(state) == 5):
            raise pickle.UnpicklingError("an array in an unknown layout")
        _, shape, dtype, fortran, data = state
        known = isinstance(dtype, _DType) and dtype.code in self.codes and dtype.order in ("|", "<")
        if not (known and isinstance(data, bytes) and isinstance(shape, tuple) and len(shape) <= 8):
            raise pickle.UnpicklingError(f"an array that is not plain {alternatives(self.codes)}")
        kind = np.dtype(dtype.code).newbyteorder("<")
        if not (all(isinstance(n, int) and n >= 0 for n in shape) and math.prod(shape) * kind.itemsize == len(data)):
            raise pickle.UnpicklingError("an array whose shape does not fit its bytes")
        self.values = np.frombuffer(data, kind).reshape(shape, order="F" if fortran else "C")


class _NdarrayName:
    """Stand-in for the class numpy.ndarray where it is only an argument of the constructor."""


def load_arrays(data: bytes, codes: Collection[str], *, encoding: str = "ASCII") -> Any:
    """What a pickle builds of plain values and arrays, as `PickledArray`, of the element types ``codes`` (``u1``)."""

    def array(*_: object) -> PickledArray:
        made = PickledArray()
        made.codes = codes
        return made

    left = len(data)

    def encode(text: str, _: str = "latin1") -> bytes:
        nonlocal left
        if (left := left - len(text)) < 0:
            raise pickle.UnpicklingError("it copies one text again and again")
        return text.encode("latin1")

    admitted: dict[tuple[str, str], object] = {
        ("numpy.core.multiarray", "_reconstruct"): array,
        ("numpy._core.multiarray", "_reconstruct"): array,
        ("numpy", "ndarray"): _NdarrayName,
        ("numpy", "dtype"): _DType,
        ("_codecs", "encode"): encode,
    }
    return pickles.load(data, lambda module, name: admitted[module, name], encoding=encoding)
