"""A run's own description, ``config.yaml`` in its folder: the config, and where its images lie.

    size: [64, 64]          every key of `TrainConfig`
    …
    data: data              a prepared dataset; relative paths start from the folder of the file
    heldout: heldout        images kept aside with --holdout, if any
    from: ../ve             the weights the run began with, if any
    holdout: 10%            in a file for --config: how many images to keep aside

It is written before the first step, so that `train -o RUN` continues and `evaluate RUN` measures whatever happened
since; `train --config FILE` reads the same keys, or those of a process alone, as `forward --config` does. What such
a file leaves out is picked, as without a file.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from anisodiff.data import is_dataset
from anisodiff.data.splitting import HELD_OUT, TRAINED
from anisodiff.io.atomic import replacing
from anisodiff.io.checkpoint import RUN, newest
from anisodiff.io.records import read_config
from anisodiff.pretrained import shipped
from anisodiff.registry import DEFAULT_PROCESS, process_keys
from anisodiff.training.config import FIELDS, TrainConfig, completed

NAME = RUN
_PATHS = {"data": "data", "heldout": "heldout", "from": "start"}
"""Key in the file → field of `RunDescription`."""


@dataclass(frozen=True, kw_only=True)
class RunDescription:
    """What a run is made of."""

    config: TrainConfig
    data: Path | None = None
    heldout: Path | None = None
    start: Path | None = None
    holdout: str | None = None
    given: tuple[str, ...] = FIELDS
    """Keys of the config that the file has; all others are at their defaults."""

    @property
    def changes(self) -> dict[str, Any] | None:
        """The keys of a file that leaves some out; None: the config is complete."""
        left_out = set(FIELDS) - set(self.given)
        return {key: value for key, value in self.config.to_dict().items() if key in self.given} if left_out else None

    def to_dict(self, folder: Path | None = None) -> dict[str, Any]:
        """Plain values; paths at or below ``folder`` relative to it, all others absolute."""
        paths = {key: getattr(self, name) for key, name in _PATHS.items()}
        paths["from"] = None if self.start is None else shipped(self.start) or self.start
        holdout = {} if self.holdout is None else {"holdout": self.holdout}
        found = {key: _relative(path, folder) for key, path in paths.items() if path is not None}
        return self.config.to_dict() | found | holdout


def describe_run(values: Mapping[str, Any], folder: Path) -> RunDescription:
    """The inverse of `RunDescription.to_dict`; every key may be missing."""
    paths: dict[str, Path] = {}
    for key, name in _PATHS.items():
        if (text := values.get(key)) is None:
            continue
        if not isinstance(text, str):
            raise ValueError(f"{key}: got {text!r}, expected a path")
        paths[name] = Path(os.path.normpath(folder / text))
    keys = {key: value for key, value in values.items() if key not in _PATHS and key != "holdout"}
    if keys and keys.keys() <= {"preset", *process_keys()}:
        keys = {"process": keys}
    if isinstance(keys.get("process"), Mapping):
        keys["process"] = {"preset": DEFAULT_PROCESS, **keys["process"]}
    holdout = None if values.get("holdout") is None else str(values["holdout"])
    return RunDescription(config=TrainConfig.from_dict(keys), holdout=holdout, given=tuple(keys), **paths)


def write_run(folder: Path, run: RunDescription) -> None:
    """Write ``folder/config.yaml``, whole or not at all."""
    with replacing(folder / NAME) as temporary:
        temporary.write_text(
            yaml.safe_dump(run.to_dict(folder), sort_keys=False, allow_unicode=True), encoding="utf-8"
        )


def read_run(path: Path) -> RunDescription:
    """Read a run's folder, or a file of the same keys; where a run has lost its file, what its checkpoint says."""
    file = path / NAME if path.is_dir() else path
    if path.is_dir() and not file.is_file() and (saved := newest(path)) is not None:
        data, heldout = (path / name if is_dataset(path / name) else None for name in (TRAINED, HELD_OUT))
        config = TrainConfig.from_dict(completed(saved.meta["config"]))
        return RunDescription(config=config, data=data, heldout=heldout)
    if not file.is_file():
        raise ValueError(f"{path} holds no run: expected {file}, which `anisodiff train` writes")
    try:
        return describe_run(read_config(file), file.parent)
    except ValueError as error:
        text = str(error)
        raise ValueError(text if str(file) in text else f"{file}: {text}") from error


def folder_of_run(model: Path) -> Path:
    """The folder of a run, given by itself or by a checkpoint in it."""
    return model.parent.parent if model.parent.name == "checkpoints" else model


def images_of(path: Path) -> tuple[Path | None, Path | None]:
    """The prepared images of the run of a model and those held out, where it says which and they are there."""
    try:
        run = read_run(folder_of_run(path))
    except ValueError:
        return None, None
    data, heldout = (place if place is not None and is_dataset(place) else None for place in (run.data, run.heldout))
    return data, heldout


def update_run(
    folder: Path, config: TrainConfig, data: Path, *, start: str | Path | None = None, begun: bool = False
) -> None:
    """Write what is trained now; the held-out part of the same images stays, and the start of a run that goes on."""
    try:
        old = read_run(folder)
    except ValueError:  # there is none, or a damaged one
        old = RunDescription(config=config)
    same = begun or (old.data is not None and old.data.resolve() == data.resolve())
    own = data.resolve() == (folder / TRAINED).resolve() and is_dataset(folder / HELD_OUT)
    heldout = folder / HELD_OUT if own else old.heldout if same else None
    first = None if start is None else Path(start)
    write_run(folder, RunDescription(config=config, data=data, heldout=heldout, start=old.start if begun else first))


def _relative(path: Path, folder: Path | None) -> str:
    if folder is not None and path.resolve().is_relative_to(folder.resolve()):
        return str(path.resolve().relative_to(folder.resolve()))
    return str(path.resolve())
