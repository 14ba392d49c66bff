"""A study: its settings, its runs with their seeds, and the resources they share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from anisodiff import notation
from anisodiff.data import Dataset
from anisodiff.experiments.budget import Budget, Deadline
from anisodiff.experiments.edits import EditTask
from anisodiff.experiments.evaluator import Evaluator
from anisodiff.experiments.layout import Place
from anisodiff.experiments.runs import FEWEST, Run
from anisodiff.generation import PRIORS
from anisodiff.io.checkpoint import find
from anisodiff.io.hub import is_hub
from anisodiff.io.tensor_files import sha256
from anisodiff.pretrained import shipped
from anisodiff.registry import build_sampler, own_prior
from anisodiff.runtime.progress import StageProgress
from anisodiff.training import Plan, TrainConfig
from anisodiff.training.config import FREE
from anisodiff.training.setup import check_data

STAGES = ("paint", "train", "sample", "evaluate", "page")


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """Equal for all runs."""

    budget: Budget
    n: int = 10_000
    steps: tuple[int, ...] = (50,)
    """NFE."""
    priors: tuple[str, ...] = ("auto",)
    seeds: tuple[int, ...] = (0,)
    """Of training: every run trains once with each."""
    track: int = 0
    """Number of FID evaluations during training."""
    track_n: int = 2500
    task: EditTask | None = None
    batch: int | None = None
    """Samples at a time."""
    keep_weights: bool = False
    compile: bool = False

    def __post_init__(self) -> None:
        for name, least in (("n", FEWEST), ("track", 0), ("track_n", 2)):
            notation.check_number(self, name, least, whole=True)
        if self.track and self.track_n > self.n:
            raise ValueError(f"track_n: got {self.track_n}, expected at most n = {self.n}")
        for name, known in (("priors", PRIORS), ("steps", None), ("seeds", None)):
            given = getattr(self, name)
            if not given or len(set(given)) < len(given) or (known and not set(given) <= set(known)):
                raise ValueError(f"{name}: got {list(given)}, expected different ones{_of(known)}, one at least")

    def fixed(self) -> dict[str, Any]:
        """Settings that may not change in a study; steps, priors, seeds and runs may grow."""
        return {
            "budget": str(self.budget), "n": self.n, "track": self.track,
            "track_n": self.track_n if self.track else None, "keep_weights": self.keep_weights,
            "edit": None if self.task is None else self.task.describe(),
        }  # fmt: skip


def _of(known: Sequence[str] | None) -> str:
    return "" if known is None else f" of {', '.join(known)}"


@dataclass(frozen=True, kw_only=True)
class SeededRun:
    """A run with one seed and its config."""

    run: Run
    config: TrainConfig | None
    """None for a checkpoint."""
    seed: int
    place: Place

    def priors(self, settings: StudySettings) -> tuple[str, ...]:
        """Of the run, or the study's; ``auto`` by its name."""
        given = self.run.priors or settings.priors
        if "auto" not in given:
            return given
        config = self.config or TrainConfig.from_dict(find(self.run.base).meta["config"])
        own = own_prior(str(config.process["preset"]))
        return tuple(dict.fromkeys(own if name == "auto" else name for name in given))


def check_runs(runs: Sequence[Run], configs: Sequence[TrainConfig | None], dataset: Dataset) -> None:
    """Refuse now what would fail after hours: contradictions, images of another size, samplers that do not fit."""
    points = dict[tuple[str, int], str]()
    for one, config in zip(runs, configs):
        try:
            meta = {} if config is not None else find(one.base).meta
            resolved = config or TrainConfig.from_dict(meta["config"])
            if one.of is not None:
                images = int(meta["images"])
                if (other := points.setdefault((one.of, images), one.name)) != one.name:
                    raise ValueError(
                        f"of: {other} is a checkpoint of {one.of} at {images} images, too; choose another"
                    )
            made, wanted = ("×".join(map(str, (x.channels, *x.size))) for x in (resolved, dataset))
            if config is None and made != wanted:  # no recipe that could be set otherwise
                raise ValueError(f"it makes images of {made} (channels, height, width), --data has {wanted}")
            check_data(resolved if config is not None else replace(resolved, classes=()), dataset)
            plan = Plan.of(resolved)
            if one.sampler != "auto":
                build_sampler(one.sampler, plan.process, plan.provided)
        except ValueError as error:
            raise ValueError(f"run {one.text!r}: {error}") from None


def seed_runs(
    runs: Sequence[Run], configs: Sequence[TrainConfig | None], settings: StudySettings, out: Path, tag: str = ""
) -> list[SeededRun]:
    """Runs with their seeds; those that differ only in sampling share a training."""
    found, trainings = list[SeededRun](), dict[str, str]()
    for one, config in zip(runs, configs):
        for seed in settings.seeds if config is not None else settings.seeds[:1]:
            name = f"{one.name}-seed{seed}" if seed and config is not None else one.name
            seeded = None if config is None else config.changed({"seed": seed})
            key = one.base if seeded is None else f"{seeded} {one.start}"
            if name in [entry.place.name for entry in found]:  # two in one folder would share their numbers
                raise ValueError(f"two runs would lie in the folder {name!r}; give one another with ;name=…")
            place = Place(out=out, name=name, training=trainings.setdefault(key, name), tag=tag)
            found.append(SeededRun(run=one, config=seeded, seed=seed, place=place))
    return found


def describe_runs(found: Sequence[SeededRun]) -> dict[str, Any]:
    """Every run in plain values: what must be equal for a study to continue."""
    described = {}
    for entry in found:
        one, config = entry.run, entry.config
        start, text = None, one.text  # it will be published: of paths the last part alone
        if one.checkpoint:
            text = text.replace(one.base, Path(one.base).name, 1)
        if one.start is not None:
            start = Path(one.start).name
            if foreign_start(entry) is None:  # a run of this study is known by its place in it
                start = Path(one.start).resolve().relative_to(entry.place.out.resolve()).as_posix()
            text = text.replace(one.start, start, 1)
        values: dict[str, Any] = {
            "run": one.name, "text": text, "seed": entry.seed, "sampler": one.sampler, "n": one.n,
            "start": start, "start_model": _code(foreign_start(entry)), "training": entry.place.training,
        }  # fmt: skip
        if config is None:
            values |= {"checkpoint": _code(one.base), "of": one.of}
        else:
            values["config"] = {k: v for k, v in config.to_dict().items() if k not in FREE}
        described[entry.place.name] = values
    return described


def foreign_start(entry: SeededRun) -> str | None:
    """The checkpoint a run starts from; None where this study makes it, so that it may not exist yet."""
    start = entry.run.start
    if start is None or Path(start).resolve().is_relative_to(entry.place.out.resolve()):
        return None
    return start


def _code(path: str | None) -> str | None:
    """The sha256 of a checkpoint's weights, or of a file with published ones; None where nothing is there."""
    if path is None or not (is_hub(path) or Path(path).exists() or shipped(path) is not None):
        return None
    if Path(path).is_file():
        return sha256(Path(path))
    return find(path).codes["model.safetensors"]


@dataclass(kw_only=True)
class Study:
    """The settings of a study, and what its runs share in this process."""

    settings: StudySettings
    dataset: Dataset
    device: torch.device
    evaluator: Callable[[], Evaluator]
    """Called when something is to be measured: loading a feature network takes time."""
    deadline: Deadline
    say: Callable[[str], None]
    progress: StageProgress
    pinned: Sequence[str] = ()
    """Fields of the config that the user has set."""
