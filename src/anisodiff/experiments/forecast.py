"""What a study would run, and what it would cost: ``--dry-run`` of compare and sweep.

Results that are there already cost nothing. Compilation, calibration, and the preparation of images are not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from anisodiff.experiments.budget import Budget
from anisodiff.experiments.compare import RunEvaluation
from anisodiff.experiments.layout import TRAINED, read_json
from anisodiff.experiments.results import label_of
from anisodiff.experiments.runs import Run
from anisodiff.experiments.speeds import Measuring, Speed, Speeds
from anisodiff.experiments.study import SeededRun, Study, seed_runs
from anisodiff.experiments.sweep import Halving, rungs
from anisodiff.experiments.training import machine
from anisodiff.io.checkpoint import find
from anisodiff.io.images import SUFFIXES
from anisodiff.runtime.durations import about
from anisodiff.training import TrainConfig

PARTS = ("training", "sampling", "metrics")


@dataclass(frozen=True, kw_only=True)
class Round:
    """Of a sweep by halving; a plain study has one. ``entries``: all runs, of which ``count`` continue."""

    entries: Sequence[SeededRun]
    count: int
    budget: Budget
    before: Budget | None = None
    """What the training has had in the round before."""

    def training(self, speed: Speed) -> float:
        """Seconds of training in this round."""
        amount = self.budget.amount - (0 if self.before is None else self.before.amount)
        return amount if self.budget.seconds is not None else amount * speed.training


def sweep_rounds(
    study: Study, runs: Sequence[Run], configs: Sequence[TrainConfig | None], out: Path, halving: Halving | None
) -> list[Round]:
    """The rounds of a sweep, as `run_sweep` goes through them."""
    found = list[Round]()
    for tag, count, budget in rungs(len(runs), study.settings.budget, None if halving is None else halving.eta):
        entries = seed_runs(runs, configs, study.settings, out, tag)
        before = found[-1].budget if found else None
        found.append(Round(entries=entries, count=count, budget=budget, before=before))
    return found


@dataclass(kw_only=True)
class Line:
    """One run with all its seeds and rounds; ``seconds`` by part."""

    run: str
    process: str
    network: str
    parameters: int
    training: str
    images: int | None
    """Expected to be seen in one training of the first round; None for a checkpoint."""
    samples: int
    nfe: tuple[int, ...]
    priors: tuple[str, ...]
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    def cells(self) -> list[str]:
        seconds = sum(self.seconds.values())
        return [
            self.run, self.process, self.network, _millions(self.parameters), self.training, f"{self.samples:,}",
            ", ".join(map(str, self.nfe)), ", ".join(self.priors), about(seconds) if seconds else "done",
        ]  # fmt: skip


_HEAD = ["run", "process", "network", "parameters", "training", "samples", "NFE", "prior", "time"]


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The lines of the table, and the time in all by part."""

    lines: list[Line]
    rounds: list[str]
    seconds: dict[str, float]
    device: str
    cores: int | None
    """None on a GPU."""

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def cost(self) -> tuple[float, str]:
        """(3.2, "CPU-hours")."""
        if self.cores is None:
            return self.total / 3600, "GPU-hours"
        return self.total * self.cores / 3600, "CPU-hours"

    def table(self, *, narrow: bool = False) -> list[list[str]]:
        """Rows of cells, the head first; ``narrow``: for a terminal, without what the name of a run says."""
        rows = [_HEAD, *(line.cells() for line in self.lines)]
        if not narrow:
            return rows
        said = all(line.process in line.run for line in self.lines)
        joined = ["network", *(f"{row[2]}, {row[3]}" for row in rows[1:])]
        return [[row[0], *row[1 : 1 + (not said)], both, *row[4:]] for both, row in zip(joined, rows)]

    def summary(self) -> list[str]:
        hours, unit = self.cost
        parts = ", ".join(f"{part} {about(self.seconds[part])}" for part in PARTS)
        where = self.device if self.cores is None else f"{self.device}, {self.cores} core{'s'[: self.cores > 1]}"
        shown = f"{hours:.2g}" if hours < 10 else f"{hours:,.0f}"
        notes = [f"halving: {', '.join(self.rounds)}"] if len(self.rounds) > 1 else []
        return [*notes, f"in all {about(self.total)} on {where}: {parts}", f"cost: {shown} {unit}"]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        seconds, cost = {**self.seconds, "total": self.total}, dict(zip(("hours", "unit"), self.cost))
        runs = [vars(line) for line in self.lines]
        return {"runs": runs, "rounds": self.rounds, "seconds": seconds, "device": self.device, "cost": cost}


def forecast(study: Study, rounds: Sequence[Round], speeds: Speeds, measuring: Measuring, reference: int) -> Forecast:
    """Cost of a study before it is run; ``reference``: images of the reference whose features are not stored."""
    lines, seconds = dict[str, Line](), dict.fromkeys(PARTS, 0.0)
    for one in rounds:
        staged = replace(study, settings=replace(study.settings, budget=one.budget))
        costs = []
        for number, entry in enumerate(one.entries):
            study.progress("timing a few steps", number, len(one.entries))
            config = entry.config or TrainConfig.from_dict(find(entry.run.base).meta["config"])
            line = lines.setdefault(entry.run.name, _line(staged, entry, config, speeds.of(config)))
            costs.append((line, _cost(staged, one, entry, speeds.of(config), measuring)))
        open_ = [(line, cost) for line, cost in costs if any(cost.values())]
        seeds = len(one.entries) / len({entry.run.name for entry in one.entries})
        left = one.count * seeds - (len(costs) - len(open_))
        share = min(1.0, max(0.0, left) / max(1, len(open_)))  # who continues is not known yet
        for line, cost in open_:
            for part in PARTS:
                line.seconds[part] += share * cost[part]
                seconds[part] += share * cost[part]
    if seconds["metrics"]:
        seconds["metrics"] += reference * measuring.feature
    return Forecast(
        lines=list(lines.values()), rounds=[f"{one.count} × {one.budget}" for one in rounds], seconds=seconds,
        device=machine(study.device), cores=None if study.device.type == "cuda" else torch.get_num_threads(),
    )  # fmt: skip


def _line(study: Study, entry: SeededRun, config: TrainConfig, speed: Speed) -> Line:
    run, settings = entry.run, study.settings
    images, training = None, "given"
    if entry.config is not None:
        budget, seeds = settings.budget, len(settings.seeds)
        images = budget.images or int((budget.seconds or 0) / speed.training)
        training = (f"{images:,} images" if budget.seconds is None else str(budget)) + f" × {seeds}" * (seeds > 1)
        if entry.place.name != entry.place.training:
            training = f"of {entry.place.training}"
    return Line(
        run=label_of({"text": run.text, "run": run.name}), process=str(config.process["preset"]),
        network=str(config.network["name"]), parameters=speed.parameters, training=training, images=images,
        samples=run.n or settings.n, nfe=run.steps or settings.steps, priors=entry.priors(settings),
    )  # fmt: skip


def _cost(study: Study, one: Round, entry: SeededRun, speed: Speed, measuring: Measuring) -> dict[str, float]:
    """Seconds by part of what one run with one seed has no results of."""
    work, trained = RunEvaluation(study, entry, None), read_json(entry.place.trained, TRAINED)
    cost = dict.fromkeys(PARTS, 0.0)
    if trained is None and entry.config is not None and entry.place.name == entry.place.training:
        cost["training"] = one.training(speed)
    for name in work.work if trained is None else work.missing():
        kind, _, number = name.rpartition("-")
        count, steps, made = work.n, work.main.steps, True
        if kind == "track":
            count = min(study.settings.track_n, work.n)
            made = int(number) < study.settings.track  # the last one takes samples of the table
        elif kind == "edit":
            count = pictures(study)
        else:
            steps = int(number)
        cost["sampling"] += made * count * steps * speed.evaluation
        cost["metrics"] += measuring.seconds(count, len(study.dataset))
    return cost


def pictures(study: Study) -> int:
    """How many pictures are edited, at most."""
    task = study.settings.task
    if task is None:
        return 0
    task.check_sources()
    if all(Path(source).suffix.lower() in SUFFIXES for source in task.sources):
        return len(task.sources)
    return min(task.count, len(study.dataset)) if task.sources == ("data",) else task.count


def _millions(count: int) -> str:
    return f"{count / 1e6:.3g} M" if count >= 100_000 else f"{count:,}"
