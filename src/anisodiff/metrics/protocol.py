"""The protocol line: everything that must be equal before two numbers may be compared.

A number without its protocol is not a result: FID depends on the number of samples, the reference and its
split, the weights, the resize and the arithmetic. Comparing reports of different protocols is refused unless
forced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from typing import Any

ENOUGH = 10_000
WHICH_SAMPLES = frozenset({"samples", "samples_fingerprint", "seed"})
HASHES = frozenset({"reference_fingerprint", "heldout_fingerprint", "weights"})
LABELS = frozenset({"reference", "reference_split"})
OPEN = frozenset({"heldout_fingerprint"})  # differs only where both reports have it


def package_version() -> str:
    """Version of the installed package."""
    try:
        return version("anisodiff")
    except PackageNotFoundError:
        return "not installed"


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How samples were made, as far as known: network evaluations per sample, prior, seed.

    ``sources``: which image of the training set the prior of each sample was simulated from, where it was.
    """

    nfe: int | None = None
    prior: str | None = None
    seed: int | None = None
    sources: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.nfe is not None and self.nfe < 1:
            raise ValueError(f"evaluations must be at least 1, got {self.nfe}")
        if self.sources is not None and (not self.sources or min(self.sources) < 0):
            raise ValueError("sources must be indices of images, 0 or larger, one a sample")


def _short(name: str, value: object) -> str:
    """A value for people: of a hash its beginning, and what is not known."""
    if value is None:
        return "unknown"
    return str(value)[:12] if name in HASHES else str(value)


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Carried with every number. ``samples``, its fingerprint and ``seed`` say which samples; the rest says
    how.
    """

    samples: str
    samples_fingerprint: str
    samples_count: int
    reference: str
    reference_split: str
    reference_fingerprint: str
    reference_count: int
    size: str
    network: str
    weights: str
    resize: str
    precision: str
    settings: str
    nfe: int | None
    prior: str | None
    seed: int | None
    version: str
    heldout_fingerprint: str | None = None

    def line(self) -> str:
        """One line for people."""
        unknown = "unknown"
        split = f"/{self.reference_split}" if self.reference_split else ""
        heldout = f", held-out {self.heldout_fingerprint[:8]}" if self.heldout_fingerprint else ""
        return (
            f"{self.samples_count} samples {self.samples} ({self.samples_fingerprint[:8]}, {self.size}; "
            f"evaluations {self.nfe or unknown}, prior {self.prior or unknown}, "
            f"seed {unknown if self.seed is None else self.seed}) against {self.reference_count} of "
            f"{self.reference}{split} ({self.reference_fingerprint[:8]}){heldout}; "
            f"{self.network} ({self.weights[:8]}), {self.resize}, "
            f"{self.precision}; {self.settings}; anisodiff {self.version}"
        )

    def differences(self, other: Protocol) -> tuple[str, ...]:
        """``name: mine ≠ theirs`` for every field that must agree and does not.

        What a reference is called does not matter while its pixels are the same.
        """
        same = self.reference_fingerprint == other.reference_fingerprint
        free = WHICH_SAMPLES | LABELS if same else WHICH_SAMPLES
        names = [f.name for f in fields(self) if f.name not in free]
        pairs = [(n, getattr(self, n), getattr(other, n)) for n in names]
        pairs = [(n, *both) for n, *both in pairs if n not in OPEN or None not in both]
        return tuple(f"{n}: {_short(n, mine)} ≠ {_short(n, theirs)}" for n, mine, theirs in pairs if mine != theirs)


def aligned(rows: Sequence[Sequence[str]], widest: int = 40) -> str:
    """A Markdown table of the rows, the first one its head, in columns of even width, up to ``widest``."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    widths = [width if width <= widest else len(head) for width, head in zip(widths, rows[0])]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Value:
    """One number: its error (a standard error unless ``note`` says otherwise), and a note beside it."""

    name: str
    value: float
    error: float | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """All numbers of one evaluation with the protocol they were taken under; ``curve``: FID against sample
    count.
    """

    protocol: Protocol
    values: tuple[Value, ...]
    curve: tuple[tuple[int, float], ...] = ()

    def __getitem__(self, name: str) -> Value:
        for value in self.values:
            if value.name == name:
                return value
        raise KeyError(f"no {name} in this report; it has {', '.join(v.name for v in self.values)}")

    def table(self) -> str:
        """Markdown table, aligned for a terminal, with the protocol line below."""
        rows = [["metric", "value", "error", "note"]]
        rows += [
            [v.name, f"{v.value:.6g}", "" if v.error is None else f"± {v.error:.2g}", v.note] for v in self.values
        ]
        return f"{aligned(rows)}\n\n{self.protocol.line()}"

    def to_json(self) -> str:
        """Everything, as JSON."""
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> Report:
        """The inverse of :meth:`to_json`; refuses a text of another shape."""
        try:
            data: Mapping[str, Any] = json.loads(text)
            return Report(
                protocol=Protocol(**data["protocol"]),
                values=tuple(Value(**v) for v in data["values"]),
                curve=tuple((int(n), float(d)) for n, d in data["curve"]),
            )
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"not a report of this version: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One metric of several reports, in the order of the reports; ``None`` where a report lacks it."""

    name: str
    values: tuple[float | None, ...]


def compare(reports: Sequence[Report], *, vary: Sequence[str] = (), force: bool = False) -> tuple[Comparison, ...]:
    """Put reports side by side. Protocol fields that differ must be named in ``vary``, or ``force`` given.

    ``vary=("evaluations",)`` compares one model at several budgets and still catches a second reference.
    """
    known = {f.name for f in fields(Protocol)}
    unknown = [name for name in vary if name not in known]
    if unknown:
        raise ValueError(f"vary: no protocol field {unknown[0]}; choose from {', '.join(sorted(known))}")
    if not reports:
        raise ValueError("nothing to compare: no reports given")
    for other in reports[1:]:
        differ = [d for d in reports[0].protocol.differences(other.protocol) if d.split(":")[0] not in vary]
        if differ and not force:
            raise ValueError(f"different protocols ({'; '.join(differ)}); use force to compare them all the same")
    names = list(dict.fromkeys(v.name for report in reports for v in report.values))
    found = [{v.name: v.value for v in report.values} for report in reports]
    return tuple(Comparison(name=n, values=tuple(f.get(n) for f in found)) for n in names)


def comparison_table(reports: Sequence[Report], names: Sequence[str], *, force: bool = False) -> str:
    """:func:`compare` as a table, a column a report; what a forced comparison passes over is said below."""
    rows = [["metric", *names]]
    for row in compare(reports, force=force):
        rows.append([row.name, *("" if v is None else f"{v:.6g}" for v in row.values)])
    lines = [aligned(rows)]
    for name, other in zip(names[1:], reports[1:]):
        for difference in reports[0].protocol.differences(other.protocol):
            lines.append(f"warning: protocols differ, {names[0]} against {name}: {difference}")
    return "\n".join(lines)


def few_samples_note(count: int, effect: str = "biased and noisy", *, reference: int | None = None) -> str:
    """A warning to print beside a number from fewer than 10,000 samples or reference images, or nothing."""
    sides = ((count, "samples"), (reference, "reference images"))
    small = [f"{n} < {ENOUGH:,} {what}" for n, what in sides if n is not None and n < ENOUGH]
    return f"warning: {' and '.join(small)}, {effect}" if small else ""
