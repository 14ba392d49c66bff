"""Pickles as data. A pickle is a program: it names callables and calls them.

`load` knows the names in ``admitted`` and gives each an inert stand-in; every other name is refused. So a pickle
can build numbers, text, bytes, lists, dicts, and what the stand-ins build. Its instructions are counted before any is
run: a length beyond the end is refused, and so are more than `MOST`, of which each may make an object. Keys are short
text or bytes: to hash a tuple that holds the one before twice, 60 times over, would have no end. Python's own reader
looks at keys and keeps its memo in a dict; that in C makes a memo of 8 GB for a number in 12 bytes.
"""

import io
import pickle
import pickletools
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from anisodiff.io.archives import one_line

Admitted = Callable[[str, str], Any]
"""(module, name) → the stand-in; KeyError: refused."""
MOST, LONGEST_KEY = 1 << 17, 200
"""Instructions: a batch of CIFAR-10 has 30,000 to 90,000, the published weights of Inception 13,000."""
_REFUSED = ("EXT1", "EXT2", "EXT4", "EMPTY_SET", "FROZENSET", "DICT")


def _refused(_: object) -> NoReturn:
    raise pickle.UnpicklingError("it asks for an outside object, which is refused")


class Fields(dict[Any, Any]):
    """A dict of a pickle, which looks at a key before it is hashed."""

    def __init__(self) -> None:
        super().__init__()

    def __setitem__(self, key: Any, value: Any) -> None:
        if not isinstance(key, str | bytes) or len(key) > LONGEST_KEY:
            raise pickle.UnpicklingError("a key that is no name")
        super().__setitem__(key, value)


class StandIn:
    """What a pickle may give a state, with ``__setstate__``; of anything else it would set attributes."""

    def __setstate__(self, state: Any) -> None:
        raise NotImplementedError


def _empty_dict(reader: Any) -> None:
    reader.append(Fields())


def _build(reader: Any) -> None:
    if not isinstance(reader.stack[-2], StandIn):
        raise pickle.UnpicklingError("a state of what has none")
    pickle._Unpickler.dispatch[pickle.BUILD[0]](reader)


class _Reader(pickle._Unpickler):
    dispatch: ClassVar = {**pickle._Unpickler.dispatch, pickle.EMPTY_DICT[0]: _empty_dict, pickle.BUILD[0]: _build}

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
        for count, (code, _, _) in enumerate(pickletools.genops(data)):
            if count == MOST or code.name in _REFUSED:
                why = f"more than {MOST:,} instructions" if count == MOST else f"it uses {code.name}"
                raise ValueError(f"{why}, which is refused")
        return _Reader(data, admitted, outside, encoding).load()
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle makes the reader raise almost any type
        raise ValueError(f"refused pickle: {one_line(error)}") from error
