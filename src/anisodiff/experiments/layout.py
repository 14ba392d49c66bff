"""Where a study keeps its things, so that the state of the work is what lies on the disk:

OUT/results/     small, all that the page needs: settings, numbers, sheets, figures. This is what to carry away
  study.json     what the study is; a command that means another one is refused
  RUN/train.json           how the training ended       RUN/TAG/… where a run is measured at several budgets
  NAME/COLUMN.json, .npz   one column of numbers with its protocol, and its first images
OUT/work/        large, may be lost once its results are there
  RUN/run/                 the trainer's folder         RUN/track/K/   averaged weights on the way
  NAME/COLUMN/             samples, one file a batch
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anisodiff
from anisodiff.io.atomic import replacing
from anisodiff.io.records import read_json as get_json
from anisodiff.training.config import completed

FORMAT, VERSION = "anisodiff study", 1


def save_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write plain values, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any] | None:
    """What was saved; None where there is nothing."""
    return get_json(path) if path.is_file() else None


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folders of one contender with one seed."""

    out: Path
    name: str
    run_name: str
    """Contenders that train alike share a run, which has the name of the first."""
    tag: str = ""
    """Where a run is measured at several budgets: at which."""

    @property
    def results(self) -> Path:
        """Numbers of this contender."""
        return self.out / "results" / self.name / self.tag

    @property
    def trained(self) -> Path:
        """How its training ended."""
        return self.out / "results" / self.run_name / self.tag / "train.json"

    @property
    def work(self) -> Path:
        """Samples of this contender."""
        return self.out / "work" / self.name / self.tag

    @property
    def run(self) -> Path:
        """The trainer's folder."""
        return self.out / "work" / self.run_name / "run"

    @property
    def weights(self) -> Path:
        """Half-precision weights to carry away, where they are kept."""
        return self.out / "results" / self.run_name / self.tag / "weights"

    @property
    def fresh(self) -> Path:
        """First records of the log after every start."""
        return self.out / "work" / self.run_name / "fresh.json"

    def track(self, number: int) -> Path:
        """Averaged weights on the way."""
        return self.out / "work" / self.run_name / "track" / str(number)


def place_of_study(out: Path) -> Path:
    """The file that says what a study is."""
    return out / "results" / "study.json"


def check_out(out: Path) -> None:
    """Refuse a place that holds something else; asked before anything is written there."""
    strange = out.is_dir() and any(not p.name.startswith(".") and p.name != "work" for p in out.iterdir())
    if not place_of_study(out).is_file() and (strange or (out.exists() and not out.is_dir())):
        raise ValueError(f"{out} holds something that is no study: choose a new folder with --out")


def open_study(
    out: Path, kind: str, fixed: Mapping[str, Any], contenders: Mapping[str, Any], *, command: str = ""
) -> dict[str, Any]:
    """Begin the study ``fixed`` in ``out``, or continue it; another one is refused in one line.

    Contenders may be added; one of the same name must be the same, unless nothing of it was done yet. A value of
    None in ``fixed`` is not known yet.
    """
    path = place_of_study(out)
    check_out(out)
    held = read_json(path)
    # lists for tuples, as they will be read back
    new: dict[str, Any] = json.loads(json.dumps({"fixed": dict(fixed), "contenders": dict(contenders)}))
    if held is None:
        held = {"fixed": {}, "contenders": {}}
    elif held.get("format") != FORMAT or held.get("version") != VERSION or held.get("kind") != kind:
        raise ValueError(f"{path} is of no {kind} of this version: choose another --out")
    wrong = [
        f"{key} was {_short(held['fixed'][key])}, now {_short(value)}"
        for key, value in new["fixed"].items()
        if value is not None and held["fixed"].get(key) not in (None, value)
    ]
    begun = _begun(out, held["contenders"])
    for name, value in new["contenders"].items():
        wrong += _differences(name, begun.get(name) or _sibling(begun, value), value)
    if wrong:
        raise ValueError(f"{out} holds another study: {'; '.join(wrong)}; choose another --out")
    known = {key: value for key, value in new["fixed"].items() if value is not None}
    values = {
        "format": FORMAT, "version": VERSION, "kind": kind, "anisodiff": anisodiff.__version__,
        "fixed": {**held["fixed"], **known}, "contenders": {**held["contenders"], **new["contenders"]},
        "command": command or held.get("command", ""),
    }  # fmt: skip
    if values != held:
        save_json(path, values)
    return values


def read_study(out: Path, kind: str) -> dict[str, Any]:
    """What was begun in ``out``."""
    held = read_json(place_of_study(out))
    if held is None or held.get("kind") != kind:
        raise ValueError(f"{out} holds no {kind}: name the contenders, or the right folder with --out")
    return held


def _begun(out: Path, held: Mapping[str, Any]) -> dict[str, Any]:
    """Those of which something was done, be it with another seed, or of the run that they share with another."""

    def filled(name: str) -> bool:
        folders = [out / part / name for part in ("results", "work")]
        return any(folder.is_dir() and any(folder.iterdir()) for folder in folders)

    done = {one.get("contender", name) for name, one in held.items() if filled(name) or filled(one.get("run", name))}
    return {name: one for name, one in held.items() if one.get("contender", name) in done}


def _sibling(begun: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any] | None:
    """The same contender with another seed, as if it had this one: seeds of one row are of one config."""
    called, config = new.get("contender"), new.get("config")
    same = [one for one in begun.values() if "config" in one and one.get("contender") == called]
    if called is None or config is None or not same:  # checkpoints have no seeds
        return None
    first = same[0]
    return {
        **first, "seed": new["seed"], "run": new["run"], "config": {**first["config"], "seed": config.get("seed")}
    }  # fmt: skip


def _differences(name: str, old: Any, new: Any) -> list[str]:
    """Of two descriptions of one contender, key by key.

    A setting that an older version did not have yet was at its default. A checkpoint is known by the code of its
    weights and may lie elsewhere now, and of which run it is a point changes no number; of one to begin with that
    is gone the name remains.
    """
    if old is None or old == new:
        return []
    free = ("text", "of") if "checkpoint" in old or old.get("start") else ()
    if old.get("start_model") is None or new.get("start_model") is None:
        free = (*free, "start_model")
    if isinstance(old.get("config"), dict) and isinstance(new.get("config"), dict):
        known = {*old["config"], *new["config"]}
        old = {**old, "config": {k: v for k, v in completed(old["config"]).items() if k in known}}
    keys = [k for k in {**old, **new} if k not in free and not _same(k, old.get(k), new.get(k))]
    if "config" in keys and isinstance(old["config"], dict) and isinstance(new["config"], dict):
        inner = [k for k in {**old["config"], **new["config"]} if old["config"].get(k) != new["config"].get(k)]
        old, new = {**old, **old["config"]}, {**new, **new["config"]}
        keys = [key for key in keys if key not in ("config", "text")] + inner
    return [f"{name}: {key} was {_short(old.get(key))}, now {_short(new.get(key))}" for key in keys]


def _same(key: str, old: Any, new: Any) -> bool:
    if key == "start" and isinstance(old, str) and isinstance(new, str):
        own = Path(new).parts[0] == "work"  # of the study itself: its place is its name
        return Path(old).as_posix().endswith(new) if own else Path(old).name == Path(new).name
    return bool(old == new)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:56]}…"
