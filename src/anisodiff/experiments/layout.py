"""The files of a study, which are the state of the work:

OUT/results/     small, all that the page needs: settings, numbers, sheets, figures. Carry this away
  study.json               the settings of the study; a command with other settings is refused
  TRAINING/train.json      how a training ended         TRAINING/TAG/… where it is measured at several budgets
  RUN/COLUMN.json, .npz    one column of numbers with its protocol, and its first images
OUT/work/        large, may be lost once its results are there
  TRAINING/run/            the trainer's folder         TRAINING/track/K/   EMA weights during training
  RUN/COLUMN/              samples, one file a batch
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anisodiff.io.atomic import replacing
from anisodiff.io.records import read_json as get_json
from anisodiff.version import __version__

FORMAT, VERSION = "anisodiff study", 2


def save_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write plain values, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any] | None:
    """The saved values; None where there is no file."""
    return get_json(path) if path.is_file() else None


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
        return self.out / "results" / self.training / self.tag / "weights"

    @property
    def fresh(self) -> Path:
        """Steps of the first log record after every start."""
        return self.out / "work" / self.training / "fresh.json"

    def track(self, number: int) -> Path:
        """EMA weights of one FID evaluation during training."""
        return self.out / "work" / self.training / "track" / str(number)


def place_of_study(out: Path) -> Path:
    """The file with the settings of a study."""
    return out / "results" / "study.json"


def check_out(out: Path) -> None:
    """Refuse a place that holds something else, before anything is written there."""
    strange = out.is_dir() and any(not p.name.startswith(".") and p.name != "work" for p in out.iterdir())
    if not place_of_study(out).is_file() and (strange or (out.exists() and not out.is_dir())):
        raise ValueError(f"{out} holds something that is no study: choose a new folder with --out")


def open_study(
    out: Path, kind: str, fixed: Mapping[str, Any], runs: Mapping[str, Any], *, command: str = ""
) -> dict[str, Any]:
    """Begin the study ``fixed`` in ``out``, or continue it; another one is refused in one line.

    Runs may be added; one of the same name must be the same, unless no work on it was done yet. A value of None in
    ``fixed`` is not known yet.
    """
    path = place_of_study(out)
    check_out(out)
    held = read_json(path)
    # lists for tuples, as they will be read back
    new: dict[str, Any] = json.loads(json.dumps({"fixed": dict(fixed), "runs": dict(runs)}))
    if held is None:
        held = {"fixed": {}, "runs": {}}
    elif held.get("format") != FORMAT or held.get("version") != VERSION or held.get("kind") != kind:
        raise ValueError(f"{path} is of no {kind} of this version: choose another --out")
    if wrong := differences(out, held, new):
        raise ValueError(f"{out} holds another study: {'; '.join(wrong)}; choose another --out")
    known = {key: value for key, value in new["fixed"].items() if value is not None}
    values = {
        "format": FORMAT, "version": VERSION, "kind": kind, "anisodiff": __version__,
        "fixed": {**held["fixed"], **known}, "runs": {**held["runs"], **new["runs"]},
        "command": command or held.get("command", ""),
    }  # fmt: skip
    if values != held:
        save_json(path, values)
    return values


def read_study(out: Path, kind: str) -> dict[str, Any]:
    """The settings of the study in ``out``."""
    held = read_json(place_of_study(out))
    if held is None or held.get("kind") != kind:
        raise ValueError(f"{out} holds no {kind}: name the runs, or the right folder with --out")
    return held


def differences(out: Path, held: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What keeps the study ``held`` in ``out`` from being continued as ``new``, each as "KEY was X, now Y"."""
    wrong = [
        f"{key} was {_short(held['fixed'][key])}, now {_short(value)}"
        for key, value in new["fixed"].items()
        if value is not None and held["fixed"].get(key) not in (None, value)
    ]
    begun = _begun(out, held["runs"])
    for name, value in new["runs"].items():
        wrong += _run_differences(name, begun.get(name) or _sibling(begun, value), value)
    return wrong


def _begun(out: Path, held: Mapping[str, Any]) -> dict[str, Any]:
    """Runs on which work was done, with any seed, or in the training that they share."""

    def filled(name: str) -> bool:
        folders = [out / part / name for part in ("results", "work")]
        return any(folder.is_dir() and any(folder.iterdir()) for folder in folders)

    done = {one.get("run", name) for name, one in held.items() if filled(name) or filled(one.get("training", name))}
    return {name: one for name, one in held.items() if one.get("run", name) in done}


def _sibling(begun: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same run with another seed, as if it had this one: all seeds of a run have one config."""
    name, config = new.get("run"), new.get("config")
    same = [one for one in begun.values() if "config" in one and one.get("run") == name]
    if name is None or config is None or not same:  # checkpoints have no seeds
        return None
    seeded = {**same[0]["config"], "seed": config.get("seed")}
    return {**same[0], "seed": new["seed"], "training": new["training"], "config": seeded}


def _run_differences(name: str, old: Any, new: Any) -> list[str]:
    """Of two descriptions of one run, key by key.

    A checkpoint is known by the sha256 of its weights and may lie elsewhere now; `of` changes no number. Of a
    checkpoint to begin with that is gone the name remains.
    """
    if old is None or old == new:
        return []
    if ("config" in old) != ("config" in new):
        return [f"{name}: run was {_short(old.get('text'))}, now {_short(new.get('text'))}"]
    free = ["text", "of"] if "checkpoint" in old or old.get("start") else []
    if old.get("start_model") is None or new.get("start_model") is None:
        free.append("start_model")
    if old.get("config") != new.get("config"):  # of equal words for another config the config says more
        free.append("text")
    old, new = ({**one, **one.get("config", {}), "config": None} for one in (old, new))
    keys = [key for key in {**old, **new} if key not in free and not _same(key, old.get(key), new.get(key))]
    return [f"{name}: {key} was {_short(old.get(key))}, now {_short(new.get(key))}" for key in keys]


def _same(key: str, old: Any, new: Any) -> bool:
    if key == "start" and isinstance(old, str) and isinstance(new, str):
        own = Path(new).parts[0] == "work"  # of the study itself: its place is its name
        return Path(old).as_posix().endswith(new) if own else Path(old).name == Path(new).name
    return bool(old == new)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:56]}…"
