"""The study itself: every contender trains, samples and is measured in the same way, one piece of work at a time.

What is done is seen from the files of `layout`; a study that was stopped anywhere goes on from there.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from anisodiff.data import Dataset
from anisodiff.experiments.budget import Budget, Deadline
from anisodiff.experiments.contender import FEWEST, Contender
from anisodiff.experiments.edits import Studio, Task
from anisodiff.experiments.layout import Place, read_json, save_json
from anisodiff.experiments.measuring import Yardstick
from anisodiff.experiments.scoring import Scorer
from anisodiff.experiments.training import Pace, measured_training, train_under
from anisodiff.generation import PRIORS
from anisodiff.io.checkpoint import find
from anisodiff.pretrained import shipped
from anisodiff.registry import build_sampler
from anisodiff.training import Plan, TrainConfig, newest
from anisodiff.training.config import FREE
from anisodiff.training.setup import check_data
from anisodiff.training.setup import describe as about_run
from anisodiff.training.start import load_start

STAGES = ("paint", "train", "sample", "evaluate", "page")
_VARIANTS = 6  # networks that stay compiled at a time: beyond eight, torch gives up compiling


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What is equal for all contenders."""

    budget: Budget
    n: int = 10_000
    steps: tuple[int, ...] = (50,)
    """Evaluations of the network; the most are those of the main table."""
    priors: tuple[str, ...] = ("gaussian",)
    seeds: tuple[int, ...] = (0,)
    """Of training: every contender runs once with each."""
    track: int = 0
    """Points of the curve over training time; 0: none."""
    track_n: int = 2500
    task: Task | None = None
    batch: int | None = None
    """Samples at a time; changes no sample."""
    keep_weights: bool = False
    compile: bool = False

    def __post_init__(self) -> None:
        for name, least in (("n", FEWEST), ("track", 0), ("track_n", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected {least} or more")
        if self.track and self.track_n > self.n:
            raise ValueError(f"track_n: got {self.track_n}, expected at most n = {self.n}")
        for name, known in (("priors", PRIORS), ("steps", None), ("seeds", None)):
            given = getattr(self, name)
            if not given or len(set(given)) < len(given) or (known and not set(given) <= set(known)):
                raise ValueError(f"{name}: got {list(given)}, expected different ones{_of(known)}, one at least")

    def fixed(self) -> dict[str, Any]:
        """What may not change while a study goes on; lists of steps, priors, seeds and contenders may grow."""
        return {
            "budget": str(self.budget), "n": self.n, "track": self.track,
            "track_n": self.track_n if self.track else None, "keep_weights": self.keep_weights,
            "edit": None if self.task is None else self.task.describe(),
        }  # fmt: skip


def _of(known: Sequence[str] | None) -> str:
    return "" if known is None else f" of {', '.join(known)}"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A contender with one seed, resolved."""

    contender: Contender
    config: TrainConfig | None
    """None for a checkpoint."""
    seed: int
    place: Place


def check(contenders: Sequence[Contender], configs: Sequence[TrainConfig | None], dataset: Dataset) -> None:
    """Refuse now what would fail after hours: contradictions, images of another size, samplers that do not fit."""
    points = dict[tuple[str, int], str]()
    for one, config in zip(contenders, configs):
        try:
            meta = {} if config is not None else find(one.base).meta
            resolved = config or TrainConfig.from_dict(meta["config"])
            if one.of is not None:
                images = int(meta["images"])
                if (other := points.setdefault((one.of, images), one.name)) != one.name:
                    raise ValueError(f"of: {other} is a point of {one.of} at {images} images, too; say another")
            made, wanted = ("×".join(map(str, (x.channels, *x.size))) for x in (resolved, dataset))
            if config is None and made != wanted:  # no recipe that could be set otherwise
                raise ValueError(f"it makes images of {made} (channels, height, width), --data has {wanted}")
            check_data(resolved, dataset)
            plan = Plan.of(resolved)
            if one.sampler != "auto":
                build_sampler(one.sampler, plan.process, plan.provided)
        except ValueError as error:
            raise ValueError(f"contender {one.text!r}: {error}") from None


def entries(
    contenders: Sequence[Contender], configs: Sequence[TrainConfig | None], terms: Terms, out: Path, tag: str = ""
) -> list[Entry]:
    """Contenders with their seeds; those that train alike share a run."""
    found, runs = list[Entry](), dict[str, str]()
    for one, config in zip(contenders, configs):
        for seed in terms.seeds if config is not None else terms.seeds[:1]:
            name = f"{one.name}-seed{seed}" if seed and config is not None else one.name
            seeded = None if config is None else config.changed({"seed": seed})
            key = one.base if seeded is None else f"{seeded} {one.start}"
            if name in [entry.place.name for entry in found]:  # two in one folder would share their numbers
                raise ValueError(f"two contenders would lie in the folder {name!r}; give one another with ;name=…")
            place = Place(out=out, name=name, run_name=runs.setdefault(key, name), tag=tag)
            found.append(Entry(contender=one, config=seeded, seed=seed, place=place))
    return found


def describe(found: Sequence[Entry]) -> dict[str, Any]:
    """Every contender in plain values: what must be the same for a study to go on."""
    described = {}
    for entry in found:
        one, config = entry.contender, entry.config
        start, text = None, one.text  # it will be published: of paths the last part alone
        if one.checkpoint:
            text = text.replace(one.base, Path(one.base).name, 1)
        if one.start is not None:
            start = Path(one.start).name
            if _foreign(entry) is None:  # a run of this very study is known by its place in it
                start = Path(one.start).resolve().relative_to(entry.place.out.resolve()).as_posix()
            text = text.replace(one.start, start, 1)
        values: dict[str, Any] = {
            "contender": one.name, "text": text, "seed": entry.seed, "sampler": one.sampler, "n": one.n,
            "start": start, "start_model": _code(_foreign(entry)),
            "run": entry.place.run_name,
        }  # fmt: skip
        if config is None:
            values |= {"checkpoint": _code(one.base), "of": one.of}
        else:
            values["config"] = {k: v for k, v in config.to_dict().items() if k not in FREE}
        described[entry.place.name] = values
    return described


def _foreign(entry: Entry) -> str | None:
    """What a contender begins with, unless it is made by this very study: then it is not there, or not the last."""
    start = entry.contender.start
    if start is None or Path(start).resolve().is_relative_to(entry.place.out.resolve()):
        return None
    return start


def _code(path: str | None) -> str | None:
    """The sha256 of a checkpoint's weights, or of a file with published ones; None where nothing is there."""
    if path is None or not (Path(path).exists() or shipped(path) is not None):
        return None
    if Path(path).is_file():
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return find(path).codes["model.safetensors"]


@dataclass(kw_only=True)
class Study:
    """The work of a study in this process."""

    terms: Terms
    dataset: Dataset
    device: torch.device
    yardstick: Callable[[], Yardstick]
    """Called when something is to be measured: loading a feature network takes time."""
    deadline: Deadline
    say: Callable[[str], None]
    tell: Callable[[str, int, int | None], None]
    pinned: Sequence[str] = ()
    compiled: set[str] = field(default_factory=set)
    """Shapes of networks; the rounds of a sweep, which are copies of a study, share it."""

    def run(self, found: Sequence[Entry], stages: Sequence[str] = STAGES) -> bool:
        """All stages of all entries, one contender after the other; False where the deadline ended it."""
        out = found[0].place.out
        studio = None if self.terms.task is None else Studio(self.terms.task, out, self.dataset, self.tell)
        if "train" in stages:
            for entry in found:
                self._check_start(entry)
        if "evaluate" in stages and self.missing(found):
            self.yardstick()  # a missing reference or feature network is said now, not after hours of training
        if studio is not None and "paint" in stages and not studio.paint(self.deadline):
            return False
        for entry in found:
            if "train" in stages and not self._train(entry):
                return False
            if "sample" in stages or "evaluate" in stages:
                scorer = Scorer(self.terms, entry.contender, entry.place, self, studio)
                if not scorer.run(stages):
                    return False
        return True

    def missing(self, found: Sequence[Entry]) -> list[str]:
        """Results that are not there yet."""
        return [
            f"{entry.place.name}/{name}"
            for entry in found
            for name in Scorer(self.terms, entry.contender, entry.place, self, None).missing()
        ]

    def _check_start(self, entry: Entry) -> None:
        """What a run that is still to begin shall begin with: is it there, and does it fit?"""
        start, config, place = _foreign(entry), entry.config, entry.place
        if start is None or config is None or read_json(place.trained) is not None or newest(place.run) is not None:
            return
        plan = Plan.of(config)
        try:
            load_start(start, plan, about_run(plan, self.dataset))
        except ValueError as error:
            raise ValueError(f"contender {entry.contender.text!r}: {error}") from None

    def _train(self, entry: Entry) -> bool:
        place, config = entry.place, entry.config
        if config is None:
            if read_json(place.trained) is None:
                save_json(place.trained, measured_training(Path(entry.contender.base)))
            return True
        self._make_room(config)
        terms = self.terms
        pace = Pace(
            budget=terms.budget, track=terms.track, keep_weights=terms.keep_weights, pinned=tuple(self.pinned)
        )
        return train_under(
            config, self.dataset, place, pace, start=entry.contender.start, device=self.device,
            deadline=self.deadline, say=self.say, tell=self.tell,
        )  # fmt: skip

    def _make_room(self, config: TrainConfig) -> None:
        """Networks of one shape are compiled once; before there are too many shapes, forget them."""
        if not config.compile or self.device.type != "cuda":
            return
        shape = f"{Plan.of(config).network} {config.batch} {config.precision} {config.recompute}"
        if shape not in self.compiled and len(self.compiled) >= _VARIANTS:
            torch.compiler.reset()
            self.compiled.clear()
        self.compiled.add(shape)
