"""From two sets of images to a report: every metric, each number with its protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from PIL import Image

from anisodiff.metrics.cache import Say, cache_folder, silent
from anisodiff.metrics.features import FeatureNetwork
from anisodiff.metrics.images import ImageSet, Source, image_set, peek
from anisodiff.metrics.memorization import Gallery, Memorization, look_for_copies
from anisodiff.metrics.protocol import Generation, Protocol, Report, Value, package_version
from anisodiff.metrics.statistics import cached_survey
from anisodiff.metrics.survey import Survey, survey
from anisodiff.metrics.values import MEASURE, METRICS, Curve, Pair, Settings, obstacle
from anisodiff.metrics.workers import ALONE, Workers

Stages = Callable[[str, int, int | None], None]
WORDS = {"prdc": "precision and recall", "edges": "edge statistics"}


def no_stages(stage: str, done: int, total: int | None) -> None:
    """Show nothing."""


def _refuse_other_size(mine: tuple[int, int], theirs: tuple[int, int], role: str) -> None:
    if mine != theirs:
        (h, w), (height, width) = mine, theirs
        raise ValueError(f"samples are {h}×{w}, {role} is {height}×{width}: another resolution is refused")


@dataclass(frozen=True, kw_only=True)
class _Known:
    """A set to compare with: its images, or where only statistics are at hand, these."""

    name: str
    size: tuple[int, int]
    images: ImageSet | None
    statistics: Survey | None

    @property
    def split(self) -> str:
        """The part of a named set that the statistics were taken of, where they say so."""
        return "" if self.statistics is None else self.statistics.split


def _known(source: Source | Survey, name: str | None, batch_size: int) -> _Known:
    if isinstance(source, Survey):
        return _Known(name=name or source.name, size=source.size, images=None, statistics=source)
    size, images = peek(image_set(source, name=name), batch_size)
    return _Known(name=images.name, size=size, images=images, statistics=None)


def _chosen(metrics: tuple[str, ...] | None, *, asked: bool, sources: bool) -> tuple[str, ...]:
    """The metrics to take: those named, or all; the search for copies only where there is something to learn."""
    if metrics is None:
        return tuple(m for m in METRICS if asked or sources or m != "memorization")
    wrong = [m for m in metrics if m not in MEASURE]
    if wrong or not metrics:
        raise ValueError(f"no metric {wrong[0] if wrong else 'was named'}; choose from {', '.join(METRICS)}")
    if asked and "memorization" not in metrics:
        raise ValueError("held-out images and a sheet belong to the metric memorization; name it too")
    return metrics


def _classifies(network: FeatureNetwork, size: tuple[int, int]) -> bool:
    return network(torch.zeros(1, 3, *size, dtype=torch.uint8))[1] is not None


def _sources(generation: Generation, ours: Survey, theirs: Survey) -> torch.Tensor | None:
    if generation.sources is None:
        return None
    if len(generation.sources) < ours.count:
        raise ValueError(f"{len(generation.sources)} sources are known, but there are {ours.count} samples")
    if max(generation.sources) >= theirs.count:
        raise ValueError(
            f"a sample comes from image {max(generation.sources)}, but {theirs.name} has {theirs.count} images: "
            "give as reference the images that the prior was simulated from"
        )
    return torch.tensor(generation.sources[: ours.count])


def evaluate(
    samples: Source,
    reference: Source | Survey,
    *,
    network: FeatureNetwork,
    split: str = "",
    heldout: Source | Survey | None = None,
    generation: Generation | None = None,
    settings: Settings | None = None,
    metrics: tuple[str, ...] | None = None,
    limit: int | None = None,
    cache: Path | None = None,
    samples_name: str | None = None,
    reference_name: str | None = None,
    heldout_name: str | None = None,
    sheet: Callable[[Image.Image], None] | None = None,
    progress: Stages = no_stages,
    say: Say = silent,
    workers: Workers = ALONE,
) -> Report:
    """Measure ``samples`` against ``reference`` (its ``split`` goes into the protocol) and report.

    ``metrics`` defaults to all that apply; one that is named and does not apply is an error. ``limit`` takes
    the first samples only. ``heldout`` images of the same kind, never trained on, add the share of samples closer to
    training; ``sheet`` gets a picture of samples beside their nearest reference images. A reference may be given
    as its statistics (:func:`anisodiff.metrics.load_statistics`), without images for a sheet.
    ``cache`` defaults to the user's cache folder; references are kept there. ``progress`` gets (what, done, total).
    ``workers`` (:func:`anisodiff.metrics.current_workers`) shares the work between processes; each gets the whole
    report.
    """
    generation, settings = generation or Generation(), settings or Settings()
    asked = heldout is not None or sheet is not None
    named = _chosen(metrics, asked=asked, sources=generation.sources is not None)
    search = "memorization" in named
    cache, batch = cache or cache_folder(), settings.batch_size
    expected = _known(reference, reference_name, batch)
    others = None if heldout is None else _known(heldout, heldout_name, batch)
    if search and expected.images is not None and expected.images.once:
        raise ValueError(
            "a search for copies walks over the reference several times: give a folder, zip, npz or array"
        )
    if sheet is not None and expected.images is None:
        raise ValueError(f"{expected.name}: a sheet needs the images, not their statistics")
    size, measured = peek(image_set(samples, name=samples_name), batch)
    _refuse_other_size(size, expected.size, f"the reference {expected.name}")
    if others is not None:
        _refuse_other_size(size, others.size, f"the held-out set {others.name}")

    def leave_out(name: str, what: str, reason: str) -> None:
        if metrics is not None:
            raise ValueError(f"{name} does not apply: {reason}")
        say(f"no {what}: {reason}")

    if "is" in named and not _classifies(network, size):
        leave_out("is", "Inception score", f"{network.name} has no logits (it needs a classifier)")
        named = tuple(m for m in named if m != "is")

    common = {"batch_size": batch, "projections": settings.projections, "seed": settings.seed}

    def known(this: _Known, role: str, part: str = "") -> Survey:
        if this.statistics is not None:
            return this.statistics
        assert this.images is not None
        tell = partial(progress, f"{role} {this.name}")
        return cached_survey(
            this.images, network, cache, **common, progress=tell, reading=partial(progress, f"reading {this.name}"),
            say=say, workers=workers, split=part,
        )  # fmt: skip

    theirs = known(expected, "reference", split)
    ours = survey(
        measured,
        network,
        **common,
        limit=limit,
        keep=settings.inspected if search else 0,
        progress=partial(progress, f"samples {measured.name}"),
        workers=workers,
    )
    if measured.skipped and generation.sources is not None:
        say(f"recovery of sources is not measured: {len(measured.skipped)} samples cannot be decoded")
        generation = replace(generation, sources=None)
    if limit is not None and ours.count < limit:
        say(f"{measured.name}: {ours.count} images, fewer than the {limit} asked for")
    copies: Memorization | None = None
    held: Survey | None = None
    if search:
        held = None if others is None else known(others, "held-out")
        say(f"looking for copies of {expected.name} among the samples")
        copies = look_for_copies(
            ours.kept,
            ours.features,
            Gallery(features=theirs.features, images=expected.images),
            generator=settings.generator(),
            batch_size=batch,
            heldout=None if held is None or others is None else Gallery(features=held.features, images=others.images),
        )
        if sheet is not None and copies.sheet is not None:
            sheet(copies.sheet)
    pair = Pair(
        samples=ours,
        reference=theirs,
        network=network,
        settings=settings,
        copies=copies,
        sources=_sources(generation, ours, theirs) if search else None,
    )
    values: list[Value] = []
    curve: Curve = ()
    for name in named:
        if reason := obstacle(name, pair):
            leave_out(name, WORDS[name], reason)
            continue
        found, points = MEASURE[name](pair)
        values += found
        curve = points or curve
    protocol = Protocol(
        samples=measured.name,
        samples_fingerprint=ours.fingerprint,
        samples_count=ours.count,
        reference=expected.name,
        reference_split=split or expected.split,
        reference_fingerprint=theirs.fingerprint,
        reference_count=theirs.count,
        size="×".join(map(str, ours.size)),
        network=network.name,
        weights=network.weights,
        resize=network.resize,
        precision=network.precision,
        settings=settings.describe(),
        heldout_fingerprint=None if held is None else held.fingerprint,
        nfe=generation.nfe,
        prior=generation.prior,
        seed=generation.seed,
        version=package_version(),
    )
    return Report(protocol=protocol, values=tuple(values), curve=curve)
