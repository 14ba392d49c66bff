"""Records: what a folder or a file holds, as JSON beside it, and whether a command may continue it.

    SAMPLES = RecordKind("anisodiff samples", version=2, shape=fields(seeds=text))

    new = SAMPLES.new(values)                     plain values, with format, version and the package's version
    held = SAMPLES.read(path)                     None: no record there; a malformed one is one ValueError line
    differences(held, new, may_change=("device",), may_grow=("pictures",))
                                                  ["steps was 50, now 25"]; empty: the command continues the work
    write_json(path, merged(held, new, ("pictures",)))

`may_change` names keys that do not matter. `may_grow` names tables (mappings) that may gain entries: an entry of both
records must be equal, and `merged` keeps those of both. Nested mappings are compared key by key; the key of an
inner value is ``outer.inner``.
"""

import itertools
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from anisodiff.io import schema
from anisodiff.io.archives import read_regular
from anisodiff.io.atomic import replacing
from anisodiff.notation import NOT_YAML, read_yaml
from anisodiff.version import __version__

_LONGEST = 200
_SHA256 = re.compile("[0-9a-f]{64}")
LARGEST_CONFIG = 1 << 18
"""Bytes of a config that a person writes; YAML takes seconds for more."""
DEEPEST, MOST_VALUES = 40, 5_000_000
"""Of a file: levels of nesting, and values with every alias of YAML counted as often as it stands for one."""


@dataclass(frozen=True)
class RecordKind:
    """One format of records: its name ("anisodiff NOUN"), its version, and the shape that its values must have."""

    format: str
    version: int
    shape: schema.Shape = schema.anything

    @property
    def noun(self) -> str:
        return self.format.removeprefix("anisodiff ")

    def new(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """A record of ``values``, in the form in which it will be read back (lists for tuples)."""
        header = {"format": self.format, "version": self.version, "anisodiff": __version__}
        record: dict[str, Any] = plain({**header, **values})
        return record

    def read(self, path: Path) -> dict[str, Any] | None:
        """The record in a file; None where there is no file."""
        if not path.is_file():
            return None
        found = read_json(path)
        if found.get("format") != self.format:
            raise ValueError(f"{path} is no record of {self.noun}: expected the format {self.format!r}")
        if found.get("version") != self.version:
            raise ValueError(f"{path} has {self.noun} version {found.get('version')}, expected {self.version}")
        return schema.require(self.shape, found, path)

    def check_folder(self, folder: Path, name: str) -> None:
        """Refuse a place that is neither new, nor empty, nor a folder with such a record, the file ``name``."""
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file: choose another --out, a folder")
        foreign = folder.is_dir() and any(not entry.name.startswith(".") for entry in folder.iterdir())
        if foreign and not (folder / name).is_file():
            raise ValueError(f"{folder} holds files that are not {self.noun} ({name} is missing): choose a new --out")


def differences(
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    *,
    may_change: Collection[str] = (),
    may_grow: Collection[str] = (),
) -> list[str]:
    """What keeps the work of ``old`` from being continued as ``new``, each difference as "KEY was X, now Y"."""
    found = []
    for key in {**old, **new}:
        before, now = old.get(key), new.get(key)
        if key in may_change or before == now:
            continue
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            # a dotted name in may_change names an inner key
            inner = [name.removeprefix(f"{key}.") for name in may_change if name.startswith(f"{key}.")]
            if key in may_grow:
                inner += set(before) ^ set(now)
            found += [f"{key}.{line}" for line in differences(before, now, may_change=inner)]
        else:
            found.append(f"{key} was {_short(before)}, now {_short(now)}")
    return found


def merged(old: Mapping[str, Any] | None, new: Mapping[str, Any], may_grow: Collection[str]) -> dict[str, Any]:
    """``new``, with the additional entries of the growing tables of ``old``."""
    return {**new, **({} if old is None else {key: {**old.get(key, {}), **new[key]} for key in may_grow})}


def plain(values: Any) -> Any:
    """Values as they are after writing and reading."""
    return json.loads(json.dumps(values))


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write plain values; the file is complete or absent."""
    with replacing(path) as temporary:
        temporary.write_bytes(json_text(values))


def json_text(values: Any) -> bytes:
    """UTF-8; where a path is none, all beyond ASCII is escaped, so that it reads back to the same path."""
    try:
        return json.dumps(values, indent=1, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(values, indent=1).encode("utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a mapping; anything else is a ValueError of one line."""
    try:
        return parse_json(read_regular(path), path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None


def parse_json(text: bytes, path: Path) -> dict[str, Any]:
    """The mapping in the contents of ``path``; anything else is a ValueError of one line."""
    if text.count(b",") >= MOST_VALUES:  # before values take thirty times the memory of their text
        raise ValueError(f"cannot read {path}: more than {MOST_VALUES:,} values")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"cannot read {path}: no valid JSON") from None
    _check_depth(values, f"cannot read {path}")
    if not isinstance(values, dict):
        raise ValueError(f"cannot read {path}: expected keys and values, got {type(values).__name__}")
    return values


def _check_depth(values: Any, where: str) -> None:
    """Refuse what is nested too deep, or grows out of few bytes: an alias of aliases doubles at every level."""
    level, count = [values], 0
    for _ in range(DEEPEST):
        inner = (
            value.values() if isinstance(value, dict) else value for value in level if isinstance(value, dict | list)
        )
        level = list(itertools.islice(itertools.chain.from_iterable(inner), MOST_VALUES))
        count += len(level)
        if not level:
            return
        if count >= MOST_VALUES:
            raise ValueError(f"{where}: more than {MOST_VALUES:,} values")
    raise ValueError(f"{where}: nested deeper than {DEEPEST} levels")


def _short(value: Any) -> str:
    if isinstance(value, str) and _SHA256.fullmatch(value):
        return f"{value[:8]}…"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]}…"


def read_config(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file. Whatever is wrong with the file is one ValueError of one line."""
    path = Path(path)
    try:
        text = read_regular(path, LARGEST_CONFIG).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"cannot read config {path}: not a text file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).removeprefix(f"{path} ")
        raise ValueError(f"cannot read config {path}: {reason}") from None
    try:
        content = read_yaml(text)
    except (*NOT_YAML, RecursionError) as error:
        where = str(error).splitlines()[0] if str(error) else type(error).__name__
        if not isinstance(error, yaml.YAMLError | RecursionError):  # the constructor of a tag, such as !!float
            where = "a tag (!!…) does not fit its value"
        elif isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
            where = f"{error.problem or where}, line {error.problem_mark.line + 1}"
        raise ValueError(f"config {path} is not valid YAML: {where}") from None
    _check_depth(content, f"cannot read config {path}")
    if not isinstance(content, dict):
        raise ValueError(f"config {path}: expected keys and values, got {type(content).__name__}")
    return content
