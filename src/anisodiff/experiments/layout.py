"""The files of a study, from which it continues:

OUT/results/     small, all that the page needs: settings, numbers, sheets, figures. Copy this to keep it
  study.json               the record (`io.records`) of the study; a command with other settings is refused
  TRAINING/train.json      how a training ended         TRAINING/TAG/… where it is measured at several budgets
  RUN/COLUMN.json, .npz    one column of numbers with its protocol, and its first images
OUT/work/        large, may be deleted once its results are there
  TRAINING/run/            the trainer's folder         TRAINING/track/K/   EMA weights during training
  RUN/COLUMN/              samples, one file a batch
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisodiff.generation.protocol import seeds_shape
from anisodiff.io import records, schema
from anisodiff.io.atomic import replacing
from anisodiff.io.schema import Shape, anything, either, fields, number, of, optional, table, text, whole
from anisodiff.metrics.protocol import Report

_DESCRIBED = fields(
    run=text, training=text, text=text, seed=whole(0), of=optional(text), config=optional(table(anything)),
    checkpoint=optional(text), start=optional(text), point=optional(table(anything)),
)  # fmt: skip


def _run(value: Any, where: str) -> None:
    """A run: trained by a config, or a checkpoint."""
    _DESCRIBED(value, where)
    if value.get("config") is None:
        fields(checkpoint=text)(value, where)


STUDY = records.RecordKind(
    "anisodiff study", 3, shape=fields(kind=text, command=text, fixed=fields(n=whole(1)), runs=table(_run))
)
TRAINED = either(
    fields(failed=text), fields(images=whole(0), seconds=optional(number), steps=optional(whole(0)))
)  # fmt: skip
"""train.json."""
_SAMPLED = fields(sampler=text)


def _result(value: Any, where: str) -> None:
    """A column of numbers: why it failed, a report of samples, or distances of edits and during training."""
    fields(failed=optional(text), report=optional(of(Report)), sampling=optional(_SAMPLED))(value, where)
    if value.get("report") is not None:
        fields(sampling=_SAMPLED)(value, where)


RESULT: Shape = _result
MADE = fields(
    seeds=seeds_shape, nfe=optional(whole(0)), seed=whole(0), note=optional(text), leakage=optional(anything)
)
"""How samples are made."""


def read_json(path: Path, shape: Shape) -> dict[str, Any] | None:
    """The saved values; None where there is no file."""
    return schema.require(shape, records.read_json(path), path) if path.is_file() else None


LARGEST_SHOWN = 1 << 27
"""Bytes of a file of images for the page: 32 images of 1024×1024 have 100 million."""


def shown(images: NDArray[np.uint8], most: int) -> NDArray[np.uint8]:
    """The first images that the page shows: at most ``most``, and as many as a file may hold."""
    return images[: max(1, min(most, LARGEST_SHOWN // images[0].nbytes))]


def save_arrays(path: Path, *, compress: bool = False, **arrays: Any) -> None:
    """Write an npz; the file is complete or absent."""
    with replacing(path) as temporary:
        (np.savez_compressed if compress else np.savez)(temporary, **arrays)


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folders of one run with one seed."""

    out: Path
    name: str
    training: str
    """Runs that differ only in sampling share a training, which has the name of the first."""
    tag: str = ""
    """The budget, where a training is measured at several."""

    @property
    def results(self) -> Path:
        return self.out / "results" / self.name / self.tag

    @property
    def trained(self) -> Path:
        return self.out / "results" / self.training / self.tag / "train.json"

    @property
    def work(self) -> Path:
        return self.out / "work" / self.name / self.tag

    @property
    def run(self) -> Path:
        """The trainer's folder."""
        return self.out / "work" / self.training / "run"

    @property
    def weights(self) -> Path:
        """Half-precision weights, where they are kept."""
        return self.trained.parent / "weights"

    def track(self, number: int) -> Path:
        """EMA weights of one FID evaluation during training."""
        return self.run.parent / "track" / str(number)


def _study_file(out: Path) -> Path:
    return out / "results" / "study.json"


def check_out(out: Path) -> None:
    """Refuse a folder of something else, before anything is written there."""
    foreign = out.is_dir() and any(not p.name.startswith(".") and p.name != "work" for p in out.iterdir())
    if not _study_file(out).is_file() and (foreign or (out.exists() and not out.is_dir())):
        raise ValueError(f"{out} holds something that is no study: choose a new folder with --out")


def read_study(out: Path, kind: str) -> dict[str, Any]:
    """The record of the study in ``out``."""
    held = STUDY.read(_study_file(out))
    if held is None or held["kind"] != kind:
        raise ValueError(f"{out} holds no {kind}: name the runs, or the right folder with --out")
    return held


def open_study(
    out: Path, kind: str, fixed: Mapping[str, Any], runs: Mapping[str, Any], *, command: str = "", dry: bool = False
) -> dict[str, Any]:
    """Start the study ``fixed`` in ``out``, or continue it; another one is refused in one line. ``dry``: only check.

    Runs may be added. A run may change until work on it is done. A value of None in ``fixed`` is not known yet.
    """
    check_out(out)
    started = _study_file(out).is_file()
    held: dict[str, Any] = read_study(out, kind) if started else {"fixed": {}, "runs": {}, "command": ""}
    known = {key: value for key, value in fixed.items() if value is not None}
    new = STUDY.new({"kind": kind, "fixed": known, "runs": runs, "command": command or held["command"]})
    if wrong := _differences(out, held, new):
        raise ValueError(f"{out} holds another study: {'; '.join(wrong)}; choose another --out")
    new = records.merged(held, new, ("fixed", "runs"))
    if new != held and not dry:
        records.write_json(_study_file(out), new)
    return new


_OF_NETWORK = {
    "compared_by was 'pixels', now 'features'": "--network was none, now a feature network",
    "compared_by was 'features', now 'pixels'": "--network was a feature network, now none",
}


def _differences(out: Path, held: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    both = {"fixed": held["fixed"]}, {"fixed": new["fixed"]}
    found = [line.removeprefix("fixed.") for line in records.differences(*both, may_grow=("fixed",))]
    found = [_OF_NETWORK.get(line, line) for line in found]
    begun = _begun(out, held["runs"])
    for name, run in new["runs"].items():
        if name in begun:
            found += [f"{name}: {line}" for line in _run_differences(begun[name], run)]
        elif same := [one for other, one in begun.items() if one.get("run", other) == run.get("run", name)]:
            # another seed of the same run: all seeds have one config
            found += [f"{name}: {line}" for line in _run_differences(same[0], run, ("seed", "training"))]
    return found


def _begun(out: Path, held: Mapping[str, Any]) -> dict[str, Any]:
    """Runs on which work was done, with any seed, or in the training that they share."""

    def filled(name: str) -> bool:
        folders = [out / part / name for part in ("results", "work")]
        return any(folder.is_dir() and any(folder.iterdir()) for folder in folders)

    done = {one.get("run", name) for name, one in held.items() if filled(name) or filled(one.get("training", name))}
    return {name: one for name, one in held.items() if one.get("run", name) in done}


def _run_differences(old: Mapping[str, Any], new: Mapping[str, Any], may_change: tuple[str, ...] = ()) -> list[str]:
    """Of two descriptions of one run, key by key.

    Weights are known by their sha256: a checkpoint may lie elsewhere now, and one to start from may be gone.
    """
    if ("config" in old) != ("config" in new):
        return records.differences({"run": old.get("text")}, {"run": new.get("text")})
    free = list(may_change)
    if "checkpoint" in old or old.get("start") or old.get("config") != new.get("config"):
        free += ["text", "of"]  # the other keys say more
    if old.get("start_model") is None or new.get("start_model") is None:
        free.append("start_model")
    old, new = ({**one, **one.get("config", {}), "config": None} for one in (old, new))
    return records.differences(old, new, may_change=free)
