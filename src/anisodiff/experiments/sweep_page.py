"""The page of a sweep: a sorted table, a plot (one field: a curve; two: a map; more: a panel each), raw JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anisodiff.experiments.plots import tidy
from anisodiff.experiments.results import (
    HIGHER,
    METRICS,
    OF_PIXELS,
    Number,
    Row,
    Summary,
    best,
    cell,
    of_pixels,
    text,
)
from anisodiff.experiments.sweep import ranked
from anisodiff.io.atomic import replacing
from anisodiff.io.figures import canvas, save_figure
from anisodiff.io.picture_files import legible
from anisodiff.io.records import write_json
from anisodiff.metrics.protocol import aligned

_NARROW = 4  # metrics, and the round, that fit a terminal
Point = tuple[Row, int, dict[str, str]]


def write_sweep(out: Path, held: Mapping[str, Any], rounds: Sequence[str], prior: str, metric: str) -> Summary:
    """Write results/sweep.md, sweep.json and figures/sweep.png from the results so far."""
    found = ranked(out, held, rounds, prior, metric)
    keys = list(found[0][2])
    shown = [
        metric,
        *(name for name in (OF_PIXELS if of_pixels(held) else METRICS) if name not in (metric, "fid_infinity")),
    ]
    columns = {row.name: row.deciding(prior) for row, _, _ in found}
    numbers = {row.name: [row.metric(columns[row.name], name) for name in shown] for row, _, _ in found}
    halved = len(rounds) > 1
    head = [*keys, *(["round"] if halved else []), *shown, "images seen", "optimizer steps", "training, s", "NFE"]
    table = [head]
    for row, number, values in found:
        others = [numbers[other.name][0] for other, n, _ in found if n == number]
        first, *rest = numbers[row.name]
        lowest = None if metric in HIGHER else best(others)
        facts = [row.fact("train", key) for key in ("images", "steps", "seconds")]
        facts.append(row.nfe(columns[row.name]))
        score = "failed" if row.failure(columns[row.name]) else cell(first, lowest)
        cells = [score, *map(text, (*rest, *facts))]
        table.append([*values.values(), *([str(number + 1)] if halved else []), *cells])
    seeds = max(len(row.seeds) for row, _, _ in found)
    priors = dict.fromkeys(column.rpartition("-")[0] for column in columns.values() if column)
    words = (
        f"{held['fixed']['n']} samples, prior {' or '.join(priors) or prior}, {held['fixed']['budget']} of training"
        f"{' in the first round' if halved else ''}, {seeds} seed{'s' if seeds > 1 else ''}; sorted by {metric}."
    )
    notes = [
        f"≈: no significant difference from the best{' of its round' if halved else ''} "
        f"({'under 10%' if seeds == 1 else 'ranges overlap'})."
    ]
    notes += [f"{row.name}: failed: {why}" for row, _, _ in found if (why := row.failure(columns[row.name]))]
    parts = ["# Sweep", words, aligned(table, widest=60), "\n".join(f"- {line}" for line in notes)]
    if figure := _draw(found, keys, prior, metric):
        save_figure(figure, out / "results" / "figures" / "sweep.png")
        parts.append(f"![{metric} against {', '.join(keys)}](figures/sweep.png)")
    if command := held.get("command"):
        parts += ["## Command", f"    {command}"]
    path = out / "results" / "sweep.md"
    with replacing(path) as temporary:
        temporary.write_text(legible("\n\n".join(parts)) + "\n", encoding="utf-8")
    raw = [
        {"name": row.name, "values": values, "round": number + 1, "seeds": list(row.seeds),
         "results": list(row.results)}
        for row, number, values in found
    ]  # fmt: skip
    write_json(path.with_suffix(".json"), {"study": dict(held), "metric": metric, "prior": prior, "points": raw})
    return Summary(path=path, table=table, narrow=_narrow(table, keys), notes=notes)


def _narrow(table: Sequence[Sequence[str]], keys: Sequence[str]) -> list[list[str]]:
    """The first columns, which decide, and what each point has cost; of a key the last part."""
    head = table[0]
    measured = head[len(keys) :]
    kept = [*range(len(keys) + measured.index("images seen"))][: len(keys) + _NARROW] + [
        head.index(name) for name in ("images seen", "optimizer steps", "NFE")
    ]
    short = [key.rpartition(".")[2] for key in keys]
    named = [*(short if len(set(short)) == len(short) else keys), *measured]
    return [[row[k] for k in kept] for row in (named, *table[1:])]


def _draw(found: Sequence[Point], keys: Sequence[str], prior: str, metric: str) -> Any:
    measured = [
        (values, number, rounded)
        for row, rounded, values in found
        if (number := row.metric(row.deciding(prior), metric)) is not None
    ]
    if not measured:
        return None
    if len(keys) == 2:
        return _map(measured, keys, metric)
    figure = canvas(4.6 * len(keys), 3.6)
    for axes, key in zip(np.atleast_1d(figure.subplots(1, len(keys))), keys):
        places, ticks = _places([values[key] for values, _, _ in measured])
        for rounded in sorted({r for _, _, r in measured}):
            mine = [(x, n) for x, (_, n, r) in zip(places, measured) if r == rounded]
            mine.sort(key=lambda point: point[0])
            x, y, bars = zip(*((x, n.mean, n.half_range) for x, n in mine))
            style = "o-" if len(keys) == 1 else "o"
            label = f"round {rounded + 1}"
            axes.errorbar(x, y, yerr=bars, fmt=style, ms=4, lw=1.2, capsize=2, color=f"C{rounded}", label=label)
        if len({r for _, _, r in measured}) > 1:
            axes.legend(frameon=False, fontsize=8)
        tidy(axes, xlabel=key, ylabel=metric)
        if ticks is not None:
            axes.set_xticks(range(len(ticks)), ticks, fontsize=7, rotation=20)
        elif min(places) > 0 and max(places) / min(places) > 30:
            axes.set_xscale("log")
    figure.tight_layout()
    return figure


def _places(values: Sequence[str]) -> tuple[list[float], list[str] | None]:
    """Positions on an axis: the numbers themselves, or ranks with their names where a value is no finite number."""
    names = _ordered(values)
    if all(map(_is_finite, names)):
        return [float(value) for value in values], None
    return [float(names.index(value)) for value in values], names


def _ordered(values: Sequence[str]) -> list[str]:
    """Different values: numbers ascending, words as they come."""
    names = list(dict.fromkeys(values))
    return sorted(names, key=float) if all(map(_is_finite, names)) else names


def _is_finite(value: str) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except ValueError:
        return False


def _map(measured: Sequence[tuple[dict[str, str], Number, int]], keys: Sequence[str], metric: str) -> Any:
    """A heat map with the values written in; of several rounds the last of each point."""
    across, down = (_ordered([values[key] for values, _, _ in measured]) for key in keys)
    grid = np.full((len(down), len(across)), np.nan)
    for values, number, _ in measured:
        grid[down.index(values[keys[1]]), across.index(values[keys[0]])] = number.mean
    figure = canvas(1.6 + 1.1 * len(across), 1.4 + 0.7 * len(down))
    axes = figure.subplots()
    axes.imshow(grid, cmap="viridis_r" if metric not in HIGHER else "viridis", aspect="auto")
    for (row, column), value in np.ndenumerate(grid):
        axes.text(column, row, "–" if np.isnan(value) else f"{value:.4g}", ha="center", va="center", fontsize=8,
                  bbox={"facecolor": "white", "alpha": 0.6, "lw": 0, "pad": 1.5})  # fmt: skip
    axes.set_xticks(range(len(across)), across, fontsize=8)
    axes.set_yticks(range(len(down)), down, fontsize=8)
    axes.set(xlabel=keys[0], ylabel=keys[1], title=metric)
    figure.tight_layout()
    return figure
