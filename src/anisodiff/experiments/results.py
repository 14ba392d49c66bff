"""The numbers of a study, from its files: over seeds the mean and half the range.

With one seed a difference below 10% is not significant: runs of the same method differ by that much. With several
seeds, one within the sum of both half ranges is not.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anisodiff.experiments.layout import RESULT, TRAINED, Place, read_json

HIGHER = ("precision", "recall", "density", "coverage")
"""Of these a higher value is better."""
METRICS = ("fid", "fid_infinity", "kid", *HIGHER, "edges", "spectrum_error")
OF_PIXELS = ("sliced_wasserstein", "spectrum_error", "edges")
"""All that is measured without a feature network."""
INSIGNIFICANT = 0.1


@dataclass(frozen=True, kw_only=True)
class Number:
    """A value over ``count`` seeds."""

    mean: float
    half_range: float = 0.0
    count: int = 1

    @classmethod
    def of(cls, values: Iterable[float]) -> "Number | None":
        """Over seeds; None where there are no values."""
        known = list(values)
        if not known:
            return None
        return cls(mean=sum(known) / len(known), half_range=(max(known) - min(known)) / 2, count=len(known))

    def __str__(self) -> str:
        if self.count == 1:
            return f"{self.mean:.4g}"
        return f"{self.mean:.4g} ± {self.half_range:.2g}"

    def differs(self, other: "Number") -> bool:
        """Whether the difference is significant."""
        gap = abs(self.mean - other.mean)
        if min(self.count, other.count) == 1:
            return gap > INSIGNIFICANT * min(abs(self.mean), abs(other.mean))
        return gap > self.half_range + other.half_range


@dataclass(frozen=True, kw_only=True)
class Row:
    """A run with all its seeds."""

    name: str
    label: str
    seeds: tuple[int, ...]
    results: tuple[Mapping[str, Any], ...]
    """For every seed: file name → contents."""
    places: tuple[Place, ...]
    of: str = ""
    """The training of which this is a checkpoint, where known."""
    shared: Mapping[str, int] = field(default_factory=dict)
    """Prior → the NFE that most runs of the study have, the largest of several."""

    @property
    def columns(self) -> tuple[tuple[str, int], ...]:
        """(prior, steps) of all sampling, failed or not."""
        found = set()
        for result in self.results:
            for name in result:
                prior, dash, steps = name.rpartition("-")
                if dash and steps.isdecimal() and prior not in ("track", "edit"):
                    found.add((prior, int(steps)))
        return tuple(sorted(found))

    def main(self, prior: str) -> str | None:
        """The column of this prior that is compared: the NFE most runs have, else the largest; one that failed only
        where all did.
        """
        steps = [count for name, count in self.columns if name == prior]
        good = [count for count in steps if not self.text(f"{prior}-{count}", "failed")] or steps
        shared = self.shared.get(prior)
        return f"{prior}-{shared if shared in good else max(good)}" if good else None

    def deciding(self, prior: str) -> str:
        """The main column of this prior, or of the run's own prior where it has another."""
        own = [name for name, _ in self.columns]
        return self.main(prior) or (self.main(own[0]) if own else None) or ""

    def files(self, prefix: str) -> list[str]:
        """Names ``PREFIXnumber`` among the results of any seed, ascending in the number."""
        found = {name for result in self.results for name in result if name.startswith(prefix)}
        return sorted(found, key=lambda name: float(name.removeprefix(prefix)))

    def metric(self, column: str, name: str) -> Number | None:
        reports = [_inner(result, column, "report", "values") or [] for result in self.results]
        return Number.of(float(value["value"]) for report in reports for value in report if value["name"] == name)

    def fact(self, file: str, *keys: str) -> Number | None:
        """The number at ``keys`` of a file."""
        found = [_inner(result, file, *keys) for result in self.results]
        return Number.of(float(v) for v in found if isinstance(v, int | float) and not isinstance(v, bool))

    def nfe(self, column: str) -> Number | None:
        """NFE of a sample; of an adaptive sampler the mean, not the limit."""
        return self.fact(column, "sampling", "mean_nfe") or self.fact(column, "sampling", "nfe")

    def text(self, file: str, *keys: str) -> str | None:
        """The first text of any seed."""
        found = (_inner(result, file, *keys) for result in self.results)
        return next((text for text in found if isinstance(text, str)), None)

    def failure(self, column: str) -> str | None:
        """Why training or this column failed."""
        return self.text("train", "failed") or self.text(column, "failed")


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A page that was written, and what of it is printed: rows of cells, the head first."""

    path: Path
    table: list[list[str]]
    """As on the page."""
    narrow: list[list[str]]
    """Fewer columns: they fit a terminal."""
    notes: list[str]


def _inner(values: Any, *keys: str) -> Any:
    for key in keys:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values


def read_rows(out: Path, study: Mapping[str, Any], tag: str = "", names: Sequence[str] | None = None) -> list[Row]:
    """The runs of a study in their order; ``names``: only these."""
    grouped: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for name, described in study["runs"].items():
        if names is None or described["run"] in names:
            grouped.setdefault(described["run"], []).append((name, described))
    rows = []
    for name, members in grouped.items():
        places = tuple(Place(out=out, name=n, training=d["training"], tag=tag) for n, d in members)
        rows.append(
            Row(
                name=name, label=label_of(members[0][1]), seeds=tuple(int(d["seed"]) for _, d in members),
                results=tuple(read_results(place) for place in places), places=places,
                of=members[0][1].get("of") or "",
            )
        )  # fmt: skip
    counts = Counter(
        (prior, steps)
        for row in rows for prior, steps in row.columns if not row.text(f"{prior}-{steps}", "failed")
    )  # fmt: skip
    shared = {prior: max((count, steps) for (own, steps), count in counts.items() if own == prior)[1]
              for prior, _ in counts}  # fmt: skip
    return [dataclasses.replace(row, shared=shared) for row in rows]


def read_results(place: Place) -> dict[str, Any]:
    """train.json and all columns of a run, by the names of the files."""
    found = {path.stem: read_json(path, RESULT) for path in sorted(place.results.glob("[!.]*.json"))}
    return {**found, "train": read_json(place.trained, TRAINED)}


def label_of(described: Mapping[str, Any]) -> str:
    """The name of a run on the page."""
    text, name = str(described["text"]), str(described["run"])
    return name if "name=" in text or len(text) > 40 or "/" in text else text


def over_images(rows: Sequence[Row], prior: str) -> dict[str, dict[int, Number]]:
    """Training → images seen → FID, of the checkpoints with ``of``."""
    found: dict[str, dict[int, Number]] = {}
    for row in rows:
        images, value = row.fact("train", "images"), row.metric(row.main(prior) or "", "fid")
        if row.of and images is not None and value is not None:
            found.setdefault(row.of, {}).setdefault(round(images.mean), value)
    return {name: dict(sorted(points.items())) for name, points in found.items()}


def compared_by(network: str) -> str:
    """What the runs of a study are compared by, given the name of its feature network."""
    return "pixels" if network == "none" else "features"


def of_pixels(study: Mapping[str, Any]) -> bool:
    """Whether a study has no feature network: `OF_PIXELS` take the place of FID."""
    return bool(study["fixed"].get("compared_by") == compared_by("none"))


def best(numbers: Sequence[Number | None]) -> Number | None:
    """The lowest mean."""
    known = [number for number in numbers if number is not None]
    return min(known, key=lambda number: number.mean) if known else None


def text(number: Number | None, form: str = "", factor: float = 1.0) -> str:
    """For a table: – where there is no number; with ``form`` the mean alone."""
    if number is None:
        return "–"
    if form:
        return format(factor * number.mean, form)
    return str(dataclasses.replace(number, mean=factor * number.mean, half_range=factor * number.half_range))


def cell(number: Number | None, lowest: Number | None) -> str:
    """For a table: the best in bold, ≈ where the difference from the best is not significant."""
    if number is None or lowest is None:
        return text(number)
    if number == lowest:
        return f"**{number}**"
    return str(number) if number.differs(lowest) else f"{number} ≈"
