"""What a file of ours must hold: keys, types, bounds. Anything else is one line with the place and what was expected.

    RUN = fields(seed=whole(0), text=text, of=optional(text))
    STUDY = fields(kind=text, runs=table(RUN))
    require(STUDY, values, "study.json")          # ValueError: study.json is damaged: runs.ve.seed: got 'x', …

A shape is a function of a value and its place, such as ``runs.ve.seed``; it raises where the value has another shape.
Keys that a shape does not name are admitted: a later version may have more. `of` is the shape of a dataclass.
"""

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

Shape = Callable[[Any, str], None]
T = TypeVar("T")
MOST = 2**53
"""Whole numbers beyond are not exact as floats."""


class Malformed(ValueError):
    """A value of another shape than expected."""


def _refuse(value: Any, where: str, expected: str) -> NoReturn:
    shown = repr(value) if value is None or isinstance(value, str | int | float) else type(value).__name__
    raise Malformed(f"{where}: got {shown[:60]}, expected {expected}")


def anything(value: Any, where: str) -> None:
    """Any value."""


def text(value: Any, where: str) -> None:
    """Text."""
    if not isinstance(value, str):
        _refuse(value, where, "text")


def flag(value: Any, where: str) -> None:
    """True or false."""
    if not isinstance(value, bool):
        _refuse(value, where, "true or false")


def whole(low: int = -MOST, high: int = MOST) -> Shape:
    """A whole number from ``low`` to ``high``."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            _refuse(value, where, f"a whole number from {low} to {high}")

    return check


def number(value: Any, where: str) -> None:
    """A number; NaN and infinity count, as a diverged metric may be either."""
    if not isinstance(value, int | float) or isinstance(value, bool) or (abs(value) > MOST and not _float(value)):
        _refuse(value, where, "a number")


def _float(value: Any) -> bool:
    try:
        return math.isfinite(float(value)) or isinstance(value, float)
    except OverflowError:
        return False


def optional(shape: Shape) -> Shape:
    """The shape, null, or in `fields` no such key."""

    def check(value: Any, where: str) -> None:
        if value is not None:
            shape(value, where)

    check.optional = True  # type: ignore[attr-defined]
    return check


def either(*shapes: Shape) -> Shape:
    """One of the shapes; of the errors the last is said."""

    def check(value: Any, where: str) -> None:
        for shape in shapes[:-1]:
            try:
                return shape(value, where)
            except Malformed:
                continue
        return shapes[-1](value, where)

    return check


def rows(shape: Shape, count: int | None = None) -> Shape:
    """A list of values of one shape; ``count`` of them, where given."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, list | tuple) or count not in (None, len(value)):
            _refuse(value, where, "a list" if count is None else f"a list of {count}")
        for index, inner in enumerate(value):
            shape(inner, f"{where}[{index}]")

    return check


def table(shape: Shape) -> Shape:
    """Keys of any name, with values of one shape."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            _refuse(value, where, "keys and values")
        for key, inner in value.items():
            shape(inner, f"{where}.{key}" if where else str(key))

    return check


def fields(**shapes: Shape) -> Shape:
    """These keys, each with its own shape."""

    def check(value: Any, where: str) -> None:
        if not isinstance(value, Mapping):
            _refuse(value, where, "keys and values")
        for key, shape in shapes.items():
            place = f"{where}.{key}" if where else key
            if key in value:
                shape(value[key], place)
            elif not getattr(shape, "optional", False):
                raise Malformed(f"{place}: got nothing, expected a value")

    return check


def of(kind: type) -> Shape:
    """The shape of a dataclass, or of the type of one of its fields."""
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        known = {f.name: _as_field(of(hints[f.name]), f) for f in dataclasses.fields(kind)}
        shape = fields(**known)

        def check(value: Any, where: str) -> None:
            shape(value, where)
            if unknown := set(value) - set(known):
                raise Malformed(f"{where}{'.' if where else ''}{min(map(str, unknown))}: unknown key")

        return check
    if get_origin(kind) in (Union, types.UnionType):
        (inner,) = (one for one in get_args(kind) if one is not types.NoneType)
        return optional(of(inner))
    if get_origin(kind) is tuple:
        return rows(of(get_args(kind)[0]))
    return {str: text, bool: flag, int: whole(), float: number}[kind]


def _as_field(shape: Shape, field: "dataclasses.Field[Any]") -> Shape:
    """A key without a default must be there, even where it may be null."""

    def check(value: Any, where: str) -> None:
        shape(value, where)

    has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    check.optional = has_default  # type: ignore[attr-defined]
    return check


def require(shape: Shape, values: T, path: Path | str) -> T:
    """The values, if they have the shape; a ValueError with the path where they have not."""
    try:
        shape(values, "")
    except Malformed as error:
        raise ValueError(f"{path} is damaged: {str(error).removeprefix(': ')}") from None
    return values
