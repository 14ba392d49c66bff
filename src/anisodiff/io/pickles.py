"""Pickles as data. A pickle is a program: it names callables and calls them.

`load` knows the names in ``admitted`` and gives each an inert stand-in; every other name is refused. So a pickle
can build numbers, text, bytes, lists, dicts, and what the stand-ins build. Its instructions are counted before any is
run: a length beyond the end, and a memo entry with a number beyond the size of the pickle, are refused. A pickle of
n bytes then takes memory in proportion to n, where 12 bytes could ask the reader for a memo of 8 GB.
"""

import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any, NoReturn

from anisodiff.io.archives import one_line

Admitted = Callable[[str, str], Any]
"""(module, name) → the stand-in; KeyError: refused."""


def _refused(_: object) -> NoReturn:
    raise pickle.UnpicklingError("it asks for an outside object, which is refused")


class _Reader(pickle.Unpickler):
    def __init__(self, data: bytes, admitted: Admitted, outside: Callable[[Any], Any], encoding: str) -> None:
        super().__init__(io.BytesIO(data), encoding=encoding)
        self._admitted, self._outside = admitted, outside

    def find_class(self, module: str, name: str) -> Any:
        try:
            return self._admitted(module, name)
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused") from None

    def persistent_load(self, pid: Any) -> Any:
        return self._outside(pid)


def load(
    data: bytes, admitted: Admitted, *, outside: Callable[[Any], Any] = _refused, encoding: str = "ASCII"
) -> Any:
    """What the pickle builds of admitted names; ``outside`` answers persistent ids. Anything else is a ValueError."""
    try:
        for code, argument, _ in pickletools.genops(data):
            if "PUT" in code.name and not 0 <= int(str(argument)) <= len(data):
                raise ValueError(f"memo entry {argument} in {len(data)} bytes")
            if code.name.startswith("EXT"):
                raise ValueError("it asks for an extension, which is refused")
        return _Reader(data, admitted, outside, encoding).load()
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle makes the reader raise almost any type
        raise ValueError(f"refused pickle: {one_line(error)}") from error
