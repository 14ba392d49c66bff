"""Settings, protocol and report: everything that must be equal before two numbers may be compared.

FID depends on the number of samples, the reference and its split, the weights, the resize and the arithmetic.
Comparing reports of different protocols is refused unless forced.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from anisodiff import notation
from anisodiff.io import schema

ENOUGH = 10_000
WHICH_SAMPLES = frozenset({"samples", "samples_fingerprint", "seed"})
HASHES = frozenset({"reference_fingerprint", "heldout_fingerprint", "weights"})
LABELS = frozenset({"reference", "reference_split", "reference_resize"})  # matter only where the pixels differ
OPEN = frozenset({"heldout_fingerprint", "bits"})  # differs only where both reports have it
NO_NETWORK, WARNING = "none", "warning: "
HELDOUT = "_heldout"
"""Ends the names of values against the held-out set."""
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What fixes the numbers beside images and network; part of the protocol, except the batch size.

    ``prdc_limit`` bounds each side of precision and recall by a random subset: their values depend on it.
    ``inspected``: number of samples that are compared pixel by pixel with the reference when looking for copies.
    ``limit``: measure the first samples only.
    """

    neighbors: int = 5
    prdc_limit: int = 10_000
    kid_block: int = 1000
    fid_blocks: int = 10
    score_splits: int = 10
    projections: int = 128
    inspected: int = 1000
    seed: int = 0
    batch_size: int = 256
    limit: int | None = None

    def __post_init__(self) -> None:
        smallest = {"neighbors": 1, "prdc_limit": 2, "kid_block": 2, "fid_blocks": 4}
        smallest |= dict.fromkeys(("score_splits", "projections", "inspected", "batch_size"), 1)
        for name, least in smallest.items():
            notation.check_number(self, name, least, whole=True)

    def describe(self, metrics: Collection[str] | None = None) -> str:
        """One phrase for the protocol: the settings that these metrics use, or all of them."""
        used = {
            f"k={self.neighbors}": "prdc", f"PRDC on at most {self.prdc_limit}": "prdc",
            f"KID blocks of {self.kid_block}": "kid", f"{self.fid_blocks} FID blocks": "fid",
            f"{self.score_splits} splits": "is", f"{self.projections} projections": "sliced",
            f"{self.inspected} inspected": "memorization",
        }  # fmt: skip
        parts = [part for part, metric in used.items() if metrics is None or metric in metrics]
        return ", ".join([*parts, f"seed {self.seed}"] if parts else [])

    def generator(self) -> torch.Generator:
        """A fresh generator for each metric, so that leaving one out changes no other."""
        return torch.Generator().manual_seed(self.seed)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How samples were made, as far as known: network evaluations per sample, prior, seed, classes and guidance.

    ``sources``: which image of the training set the prior of each sample was simulated from, where it was.
    """

    nfe: int | None = None
    prior: str | None = None
    seed: int | None = None
    sources: tuple[int, ...] | None = None
    classes: str | None = None

    def __post_init__(self) -> None:
        if self.nfe is not None:
            notation.check_number(self, "nfe", 1, whole=True)
        if self.sources is not None and (not self.sources or min(self.sources) < 0):
            raise ValueError("sources must be indices of images, 0 or larger, one a sample")


def _short(name: str, value: object) -> str:
    """A value for people: of a hash its beginning; None is not known."""
    text = "unknown" if value is None else str(value)
    return text[:12] if name in HASHES else text


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Carried with every number. ``samples``, its fingerprint and ``seed`` say which samples; the rest says how.

    ``reference_resize``: how the reference was brought to size and color of the samples. ``network``: ``none`` where
    only pixels were compared.
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
    reference_resize: str = "none"
    bits: str | None = None
    """How bits per dimension were measured; without any samples (``samples_count`` 0) ``samples`` is the model."""
    classes: str | None = None
    """Which classes the samples are of, and how they were guided; None: of no class, or not known."""

    def phrases(self) -> tuple[str, ...]:
        """For people: samples and reference, network, settings, version."""
        split = f"/{self.reference_split}" if self.reference_split else ""
        resized = "" if self.reference_resize == "none" else f", resized: {self.reference_resize}"
        heldout = f", held-out {self.heldout_fingerprint[:8]}" if self.heldout_fingerprint else ""
        network = f"{self.network} ({self.weights[:8]}), {self.resize}, {self.precision}"
        compared = (
            f"{self.reference_count} of {self.reference}{split} ({self.reference_fingerprint[:8]}{resized}){heldout}"
        )
        classes = "" if self.classes is None else f", classes {self.classes}"
        bits = () if self.bits is None else (f"bits: {self.bits}",)
        if not self.samples_count:
            model = f"model {self.samples} ({self.samples_fingerprint[:8]}, {self.size}; prior {self.prior})"
            return f"{model} on {compared}", *bits, f"anisodiff {self.version}"
        return (
            f"{notation.counted(self.samples_count, 'sample')} of {self.samples} "
            f"({self.samples_fingerprint[:8]}, {self.size}; "
            f"NFE {_short('', self.nfe)}, prior {_short('', self.prior)}, seed {_short('', self.seed)}{classes}) "
            f"against {compared}",
            "no feature network" if self.network == NO_NETWORK else network,
            *filter(None, [self.settings]),
            *bits,
            f"anisodiff {self.version}",
        )

    def line(self) -> str:
        """One line for people."""
        return "; ".join(self.phrases())

    def differences(self, other: "Protocol") -> tuple[str, ...]:
        """``name: mine ≠ theirs`` for every field that must agree and does not.

        The name of a reference, and how it got its size, do not matter while its pixels are the same. Of the
        settings, those matter that both have.
        """
        same = self.reference_fingerprint == other.reference_fingerprint
        free = WHICH_SAMPLES | LABELS if same else WHICH_SAMPLES
        names = [f.name for f in fields(self) if f.name not in free]
        pairs = [(n, getattr(self, n), getattr(other, n)) for n in names]
        pairs = [(n, *both) for n, *both in pairs if n not in OPEN or None not in both]
        pairs = [(n, *(_shared_settings(*both) if n == "settings" else both)) for n, *both in pairs]
        return tuple(f"{n}: {_short(n, mine)} ≠ {_short(n, theirs)}" for n, mine, theirs in pairs if mine != theirs)


def _shared_settings(*texts: str) -> list[str]:
    """Of two phrases of `Settings.describe` the parts that are the same but for their numbers."""
    first, second = ({re.sub(r"\d+", "", part): part for part in text.split(", ")} for text in texts)
    return [", ".join(part for kind, part in own.items() if kind in first.keys() & second) for own in (first, second)]


def aligned(rows: Sequence[Sequence[str]], widest: int = 40) -> str:
    """A Markdown table of the rows, the first one its head, in columns of even width, up to ``widest``."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    widths = [width if width <= widest else len(head) for width, head in zip(widths, rows[0])]
    lines = ["| " + " | ".join(text.ljust(width) for text, width in zip(row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Value:
    """One number: its error (a standard error unless ``note`` says otherwise), and a note beside it.

    ``each``: where it is a mean over images that all reports of one protocol share, its value for each of them.
    """

    name: str
    value: float
    error: float | None = None
    note: str = ""
    each: tuple[float, ...] = ()

    def notes(self, *, warnings: bool) -> list[str]:
        """The parts of the note that are warnings, or the others."""
        return [part for part in self.note.split("; ") if part and part.startswith(WARNING) == warnings]


@dataclass(frozen=True, kw_only=True, repr=False)
class Report:
    """All numbers of one evaluation with the protocol they were taken under; shown as its `table`."""

    protocol: Protocol
    values: tuple[Value, ...]

    def __repr__(self) -> str:
        return self.table()

    def __getitem__(self, name: str) -> Value:
        for value in self.values:
            if value.name == name:
                return value
        raise KeyError(f"no {name} in this report; it has {', '.join(v.name for v in self.values)}")

    def warnings(self) -> dict[str, str]:
        """Each warning once, with the raised number that marks it."""
        texts = dict.fromkeys(part for value in self.values for part in value.notes(warnings=True))
        return {text: str(number).translate(_RAISED) for number, text in enumerate(texts, 1)}

    def table(self) -> str:
        """Markdown table, with each warning once and the protocol below."""
        rows, warnings = [["metric", "value", "error", "note"]], self.warnings()
        for v in self.values:
            marks = [warnings[text] for text in v.notes(warnings=True)]
            note = " ".join(["; ".join(v.notes(warnings=False)), *marks]).strip()
            rows.append([v.name, f"{v.value:.6g}", "" if v.error is None else f"± {v.error:.2g}", note])
        below = "\n".join(f"{mark} {text}" for text, mark in warnings.items())
        return "\n\n".join(filter(None, [aligned(rows), below, self.protocol.line()]))

    @staticmethod
    def of(values: Mapping[str, Any]) -> "Report":
        """From plain values, the inverse of `dataclasses.asdict`."""
        found = tuple(Value(**{**v, "each": tuple(v.get("each", ()))}) for v in values["values"])
        return Report(protocol=Protocol(**values["protocol"]), values=found)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> "Report":
        """The inverse of :meth:`to_json`; refuses a text of another shape."""
        try:
            values = json.loads(text)
            schema.of(Report)(values, "")
        except RecursionError:
            raise ValueError("not a report of this version: nested too deep") from None
        except ValueError as error:
            raise ValueError(f"not a report of this version: {error}") from error
        return Report.of(values)


def compared(
    reports: Sequence[Report], names: Sequence[str], *, force: bool = False
) -> tuple[list[list[str]], list[str]]:
    """Rows of a table, the first one its head, one column a report. Different protocols are refused.

    With ``force`` they are named in the warnings, the second result. Where values are known image by image, a row
    says by how much each report differs from the first, with the standard error of that difference.
    """
    warnings: list[str] = []
    for name, other in zip(names[1:], reports[1:]):
        differ = reports[0].protocol.differences(other.protocol)
        if differ and not force:
            raise ValueError(f"different protocols ({'; '.join(differ)}); add --force to compare them anyway")
        warnings += [f"warning: protocols differ, {names[0]} against {name}: {d}" for d in differ]
    found = [{v.name: f"{v.value:.6g}" for v in report.values} for report in reports]
    for report, cells in zip(reports[1:], found[1:]):
        same = not reports[0].protocol.differences(report.protocol)
        cells |= {f"{v.name} − {names[0]}": gap for v in report.values if same and (gap := _gap(reports[0], v))}
    metrics = dict.fromkeys(name for cells in found for name in cells)
    return [["metric", *names], *([metric, *(f.get(metric, "") for f in found)] for metric in metrics)], warnings


def _gap(first: Report, value: Value) -> str:
    """The mean difference of ``value`` to that of the ``first`` report, image by image, ± its standard error."""
    each = next((v.each for v in first.values if v.name == value.name), ())
    if len(each) < 2 or len(each) != len(value.each):
        return ""
    gaps = torch.tensor(value.each, dtype=torch.float64) - torch.tensor(each, dtype=torch.float64)
    return f"{float(gaps.mean()):+.4f} ± {float(gaps.std() / len(gaps) ** 0.5):.4f}"


def comparison_table(reports: Sequence[Report], names: Sequence[str], *, force: bool = False) -> str:
    """`compared` as a Markdown table, with the warnings below."""
    rows, warnings = compared(reports, names, force=force)
    return "\n".join([aligned(rows), *warnings])


def few_samples_note(count: int, reference: int, *, kid: bool = True) -> str:
    """A warning to print beside numbers from fewer than 10,000 samples or reference images, or nothing.

    The same for all numbers, so that a table shows it once. ``kid``: whether KID, which has no bias, is among them.
    """
    sides = ((count, "samples"), (reference, "reference images"))
    small = [f"{n} < {ENOUGH:,} {what}" for n, what in sides if n < ENOUGH]
    return f"{WARNING}{' and '.join(small)}: noisy and{', except KID,' * kid} biased" if small else ""
