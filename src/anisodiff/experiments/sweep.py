"""A sweep: one run with many values of some fields, on a grid or by successive halving.

Successive halving (Jamieson & Talwalkar 2016): all points with a small budget, the best 1/η with η times as much, and
so on until one is left. The training of a point continues in the next round.
"""

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anisodiff import notation
from anisodiff.experiments.budget import Budget
from anisodiff.experiments.compare import missing, run_study
from anisodiff.experiments.layout import read_study
from anisodiff.experiments.results import HIGHER, METRICS, OF_PIXELS, Row, read_rows
from anisodiff.experiments.runs import OWN, Run, parse_run, slug, split_outside
from anisodiff.experiments.study import SeededRun, Study, seed_runs
from anisodiff.training import TrainConfig


def parse_axis(text: str) -> tuple[str, tuple[str, ...]]:
    """The key and the values of ``KEY=V1,V2`` or ``KEY=V1|V2``; separators within brackets are part of a value."""
    key, equals, rest = text.partition("=")
    if not equals or not key.strip():
        raise ValueError(f"--grid: got {text!r}, expected KEY=V1,V2,… such as lr=1e-4,2e-4")
    parts = split_outside(rest, "|")
    values = parts if len(parts) > 1 else split_outside(rest, ",")
    if not values or len(set(values)) < len(values):
        raise ValueError(f"--grid {key.strip()}: got {values}, expected different values, one at least")
    return key.strip(), tuple(values)


def choose_metric(name: str | None, by: str) -> str:
    """The metric, or the usual one; one that is not measured ``by`` features, or by pixels, is refused."""
    if name is None:
        return OF_PIXELS[0] if by == "pixels" else "fid"
    if name not in (*METRICS, *OF_PIXELS):
        measured = OF_PIXELS if by == "pixels" else METRICS
        raise ValueError(f"unknown --metric {name!r}; {notation.nearest(name, measured)}")
    if by == "pixels" and name not in OF_PIXELS:
        fitting = notation.alternatives(OF_PIXELS)
        raise ValueError(f"--metric {name} needs a feature network, got --network none; choose {fitting}")
    if by == "features" and name not in METRICS:
        raise ValueError(f"--metric {name} is measured with --network none alone")
    return name


def points(base: str, axes: Sequence[tuple[str, tuple[str, ...]]]) -> list[tuple[Run, dict[str, str]]]:
    """Every combination of the values as a run, with its values by key."""
    if not axes:
        raise ValueError("say what to sweep over: --grid KEY=V1,V2,…, once or several times")
    keys = [key for key, _ in axes]
    if len(set(keys)) < len(keys):
        raise ValueError("--grid: a field is given twice; put all its values into one")
    found, names = [], set[str]()
    for values in itertools.product(*(values for _, values in axes)):
        chosen = dict(zip(keys, values))
        words = ";".join(f"{key}={value}" for key, value in chosen.items())
        name = slug(words)
        if name in names:
            name = f"{name}-{hashlib.sha256(words.encode()).hexdigest()[:6]}"
        names.add(name)
        more = {key: value if key in OWN else notation.setting(value) for key, value in chosen.items()}
        found.append((parse_run(base, {**more, "name": name}), chosen))
    return found


def survivors(scores: Mapping[str, float | None], eta: int, *, higher: bool = False) -> list[str]:
    """The best ⌈n/η⌉ of n names by score, best first; None and NaN (a failure) never continue."""
    known = {name: score for name, score in scores.items() if score is not None and not math.isnan(score)}
    ranked = sorted(known, key=lambda name: -known[name] if higher else known[name])
    return ranked[: max(1, -(-len(scores) // eta))]


def rungs(count: int, budget: Budget, eta: int | None) -> list[tuple[str, int, Budget]]:
    """Tag, points and budget of every round: (n, b), (⌈n/η⌉, η b), … as long as there are two or more points.

    A plain grid (no η) has one round, without a tag.
    """
    if eta is None:
        return [("", count, budget)]
    if eta < 2:
        raise ValueError(f"halving: got {eta}, expected 2 or more: the best 1 in N continues")
    found: list[tuple[str, int, Budget]] = []
    while count > 1 or not found:
        found.append((f"rung-{len(found)}", count, budget))
        count, budget = -(-count // eta), budget.times(eta)
    return found


@dataclass(frozen=True, kw_only=True)
class Halving:
    """Successive halving; the study's budget is that of the first round."""

    eta: int
    metric: str = "fid"


def run_sweep(
    study: Study, runs: Sequence[Run], configs: Sequence[TrainConfig | None], out: Path, halving: Halving | None
) -> bool:
    """All points, or all rounds of halving; whether everything is done."""
    if halving is None:
        return _round(study, seed_runs(runs, configs, study.settings, out))
    alive = [one.name for one in runs]
    for number, (tag, count, budget) in enumerate(rungs(len(runs), study.settings.budget, halving.eta)):
        study.say(f"round {number + 1}: {len(alive)} points, {budget} each")
        assert len(alive) <= count
        staged = replace(study, settings=replace(study.settings, budget=budget))
        entries = seed_runs(runs, configs, study.settings, out, tag)  # of all: they share trainings as before
        if not _round(staged, [entry for entry in entries if entry.run.name in alive]):
            return False
        rows = read_rows(out, read_study(out, "sweep"), tag, alive)
        scores = {row.name: score_of(row, study.settings.priors[0], halving.metric) for row in rows}
        kept = survivors(scores, halving.eta, higher=halving.metric in HIGHER)
        study.say(f"round {number + 1}: the best are {', '.join(kept) or 'none: all have failed'}")
        alive = [name for name in alive if name in kept]
        if len(alive) < 2:
            return True
    return True


def _round(study: Study, found: list[SeededRun]) -> bool:
    return run_study(study, found) and not missing(study, found)


def score_of(row: Row, prior: str, metric: str) -> float | None:
    """The metric of a point; None where it failed, if only with one of its seeds."""
    column = row.deciding(prior)
    found = None if row.failure(column) else row.metric(column, metric)
    return None if found is None else found.mean


def ranked(
    out: Path, held: Mapping[str, Any], rounds: Sequence[str], prior: str, metric: str
) -> list[tuple[Row, int, dict[str, str]]]:
    """Points with the last round they have results of and their values; later rounds first, then the best."""
    last: dict[str, tuple[Row, int]] = {}
    for number, tag in enumerate(rounds):
        for row in read_rows(out, held, tag):
            if number == 0 or row.columns:
                last[row.name] = row, number
    values = {described["run"]: described["point"] for described in held["runs"].values()}
    sign = -1.0 if metric in HIGHER else 1.0

    def order(item: tuple[Row, int]) -> tuple[int, float]:
        score = score_of(item[0], prior, metric)
        return -item[1], float("inf") if score is None else sign * score

    return [(row, number, values[row.name]) for row, number in sorted(last.values(), key=order)]
