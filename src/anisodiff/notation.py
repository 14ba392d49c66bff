"""One text notation for the small objects of a config: ``kind(argument, key=value)``.

``geometric(0.5, 64)``, ``exponential(0.025, k=0.5)``, ``tamed(dt=0.01)``, ``infinite``, ``0.3``. YAML files, the
command line, captions and identities of processes use it. `read` of what `write` returns is an equal object.
"""

import dataclasses
import difflib
import math
import numbers
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

_CALL = re.compile(r"^\s*([A-Za-z][\w-]*)\s*(?:\((.*)\))?\s*$", re.DOTALL)
SYMBOLS = {
    "alpha1": "diffusivity", "α1": "diffusivity", "alpha2": "intensity", "α2": "intensity",
    "lambda1": "drift_anisotropy", "λ1": "drift_anisotropy", "lambda2": "noise_anisotropy", "λ2": "noise_anisotropy",
    "lambda": "drift_anisotropy", "λ": "drift_anisotropy", "ell": "correlation_length", "ℓ": "correlation_length",
}  # fmt: skip
"""The paper's symbols, as the output prints them, for keys of a process."""
_DIGITS = 200
_LONGEST, _CUT = 160, 110
"""Letters of a list of names that is shown whole, and of the part that is shown of a longer one."""


def close_to(word: str, valid: Iterable[str]) -> str:
    """For an error message: the valid name closest to ``word`` as a question; empty if none is close."""
    close = difflib.get_close_matches(word, list(valid), n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def nearest(word: str, valid: Iterable[str], other: str = "") -> str:
    """For an error message: the valid name closest to ``word``, or the list of valid names, cut if it is long.

    ``other``: what else is valid.
    """
    valid = list(valid)
    if close := close_to(word, valid):
        return close
    shown = len(valid)
    while shown > 1 and len(", ".join(valid)) > _LONGEST and len(", ".join(valid[:shown])) > _CUT:
        shown -= 1
    cut = "" if shown == len(valid) else f", … ({len(valid)} in all)"
    return f"valid: {', '.join(valid[:shown])}{cut}{', or ' * bool(other)}{other}"


def alternatives(words: Iterable[str]) -> str:
    """For a message: ``a``, ``a or b``, ``a, b or c``."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def counted(n: int, word: str, spec: str = "") -> str:
    """``1 image``, ``2 images``; ``spec``: format of the number."""
    return f"{n:{spec}} {word}{'s' * (n != 1)}"


def number(value: Any, what: str) -> float:
    """``value`` as a float; also text such as ``3e-4``, which is not a number in YAML 1.1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real | str):
        raise ValueError(f"{what}: expected a number, got {value!r}")
    try:
        result = float(value)
    except (ValueError, OverflowError):
        shown = repr(value)
        shown = shown if len(shown) < _LONGEST else f"{shown[:40]}…"
        raise ValueError(f"{what}: expected a number, got {shown}") from None
    if math.isnan(result):
        raise ValueError(f"{what}: expected a number, got nan")
    return result


def in_range(value: Any, what: str, low: float, high: float = math.inf, *, whole: bool = False) -> Any:
    """``value`` as a number in [low, high], an int below 2^53 if ``whole``; else a ValueError."""
    found = number(value, what)
    too_large = found > high or (whole and found >= 2**53)
    if found < low or too_large or (whole and found != int(found)):
        got = plain(found) if isinstance(value, float) else repr(value)
        kind = "a whole number" if whole else "a number"
        if math.isfinite(high) or too_large:
            raise ValueError(f"{what}: got {got}, expected {kind} from {low:g} to {_bound(high)}")
        raise ValueError(f"{what}: got {got}, expected {kind}, {low:g} or more")
    return int(found) if whole else found


def whole(value: Any, what: str, low: int) -> int:
    """``value`` as a whole number from ``low`` on, for arguments in Python: text is refused."""
    if isinstance(value, str):
        raise ValueError(f"{what}: got {value!r}, expected a whole number, {low} or more")
    return int(in_range(value, what, low, whole=True))


def _bound(high: float) -> str:
    return "2^53 - 1" if math.isinf(high) else f"{high:g}" if float(f"{high:g}") == high else plain(high)


def check_number(
    item: Any, name: str, low: float, high: float = math.inf, *, whole: bool = False, what: str = ""
) -> None:
    """Convert the field ``name`` of a frozen dataclass by `in_range`."""
    object.__setattr__(item, name, in_range(getattr(item, name), what or name, low, high, whole=whole))


def check_choice(value: Any, valid: Iterable[str], what: str) -> None:
    """Raise a ValueError unless ``value`` is one of ``valid``."""
    if not isinstance(value, str) or value not in valid:
        raise ValueError(f"unknown {what} {value!r}; {nearest(str(value), valid)}")


NOT_YAML = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError)
"""What PyYAML raises for text that is no YAML: its explicit tags (``!!bool maybe``) raise what Python does."""


class _Loader(yaml.SafeLoader):
    """Without merge keys, whose copies of copies can grow beyond all memory."""

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, "merge keys (<<) are not read", key.start_mark)
        super().flatten_mapping(node)


def _number_of(self: _Loader, node: yaml.ScalarNode) -> Any:
    """A number of hundreds of digits is infinite: so its key refuses it, where Python would not even print it."""
    if len(node.value) > _DIGITS:
        return -math.inf if node.value.startswith("-") else math.inf
    return yaml.SafeLoader.yaml_constructors[node.tag](self, node)


for _kind in ("int", "float"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", _number_of)


def read_yaml(text: str) -> Any:
    """Plain values from YAML; `NOT_YAML` is raised for what is none."""
    return yaml.load(text, _Loader)


def setting(text: str) -> Any:
    """The VALUE of KEY=VALUE as YAML; text that is not YAML is returned unchanged."""
    try:
        return read_yaml(text) if text.strip() else ""
    except NOT_YAML:
        return text
    except RecursionError:
        raise ValueError(f"cannot read a value that begins with {text[:20]!r}: it is nested too deep") from None


def switch(value: Any, what: str) -> bool:
    """A bool from a bool, 0 or 1, or the words true and false."""
    result = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}.get(str(value).lower())
    if result is None:
        raise ValueError(f"{what}: expected true or false, got {value!r}")
    return result


def _literal(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text.strip("'\"")


def _example(kinds: Mapping[str, type]) -> str:
    """How to write the kind with the fewest arguments, at least one: ``constant(a=…)``."""
    forms = [(word, [f.name for f in dataclasses.fields(kind)]) for word, kind in kinds.items()]
    word, names = min((form for form in forms if form[1]), key=lambda form: len(form[1]), default=forms[0])
    return f"{word}({', '.join(f'{name}=…' for name in names)})" if names else word


def read(text: str, kinds: Mapping[str, type], what: str) -> Any:
    """The object that ``text`` describes; ``kinds`` maps a word to a frozen dataclass."""
    call = _CALL.match(text)
    if call is None:
        hint = nearest(text.partition("(")[0], kinds)
        raise ValueError(f"{what}: cannot read {text!r}; write it like {_example(kinds)}; {hint}")
    word, inside = call.group(1), call.group(2)
    check_choice(word, kinds, what)
    kind = kinds[word]
    names = [f.name for f in dataclasses.fields(kind)]
    given: dict[str, float | str] = {}
    parts = [p.strip() for p in inside.split(",")] if inside and inside.strip() else []
    for position, part in enumerate(parts):
        key, equals, value = part.partition("=")
        if not equals:
            if position >= len(names):
                raise ValueError(f"{what}: {word} takes {len(names)} values ({', '.join(names)}), got {len(parts)}")
            key, value = names[position], part
        key = key.strip()
        if key not in names:
            raise ValueError(f"{what}: {word} has no {key!r}; {nearest(key, names)}")
        if key in given:
            raise ValueError(f"{what}: {key!r} is given twice in {text!r}")
        given[key] = _literal(value.strip())
    missing = [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING and f.name not in given]
    if missing:
        raise ValueError(f"{what}: {word} also needs {', '.join(missing)}")
    try:
        return kind(**given)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def write(word: str, item: Any, *, brief: bool = False) -> str:
    """The text of ``item``, the inverse of `read`; the end points ``a`` and ``b`` are written without a name.

    ``brief``: for people, without the fields that have their default.
    """
    parts = []
    for f in dataclasses.fields(item):
        value = getattr(item, f.name)
        omitted = value == f.default and (brief or f.metadata.get("unless_default"))
        if f.metadata.get("identity", True) and not omitted:
            text = plain(value) if isinstance(value, float) else str(value)
            parts.append(text if f.name in ("a", "b") else f"{f.name}={text}")
    return f"{word}({', '.join(parts)})" if parts else word


def plain(value: float) -> str:
    """The shortest text that reads back to ``value``; whole numbers without a decimal point."""
    return str(int(value)) if math.isfinite(value) and value == int(value) and abs(value) < 1e15 else repr(value)
