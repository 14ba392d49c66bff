"""From two sets of images to a report: every metric, each number with its protocol."""

from __future__ import annotations

from pathlib import Path

from anisodiff.metrics.cache import Say, cache_folder, silent
from anisodiff.metrics.features import FeatureNetwork
from anisodiff.metrics.images import Source, image_set, image_size
from anisodiff.metrics.protocol import Generation, Protocol, Report, Value, package_version
from anisodiff.metrics.survey import Progress, cached_survey, no_progress, survey
from anisodiff.metrics.values import MEASURE, METRICS, NEEDS, Curve, Pair, Settings
from anisodiff.metrics.workers import ALONE, Workers


def _refuse_other_size(mine: tuple[int, int] | None, theirs: tuple[int, int] | None, role: str) -> None:
    if mine and theirs and mine != theirs:
        (h, w), (height, width) = mine, theirs
        raise ValueError(f"samples are {h}×{w}, {role} is {height}×{width}: another resolution is refused")


def evaluate(
    samples: Source,
    reference: Source,
    *,
    network: FeatureNetwork,
    split: str = "",
    heldout: Source | None = None,
    generation: Generation | None = None,
    settings: Settings | None = None,
    metrics: tuple[str, ...] | None = None,
    limit: int | None = None,
    cache: Path | None = None,
    samples_name: str | None = None,
    reference_name: str | None = None,
    progress: Progress = no_progress,
    say: Say = silent,
    workers: Workers = ALONE,
) -> Report:
    """Measure ``samples`` against ``reference`` (its ``split`` goes into the protocol) and report.

    ``heldout`` images of the same kind, never trained on, add the share of samples closer to training.
    ``metrics`` defaults to all that apply; one that is named and does not apply is an error. ``limit`` takes
    the first samples only. ``cache`` defaults to the user's cache folder; references are kept there. ``workers``
    (:func:`anisodiff.metrics.current_workers`) shares the work between processes; each gets the whole report.
    """
    generation, settings = generation or Generation(), settings or Settings()
    named = METRICS if metrics is None else metrics
    wrong = [m for m in named if m not in MEASURE]
    if wrong:
        raise ValueError(f"no metric {wrong[0]}; choose from {', '.join(METRICS)}")
    cache = cache or cache_folder()
    measured, expected = image_set(samples, name=samples_name), image_set(reference, name=reference_name)
    others = None if heldout is None else image_set(heldout)
    _refuse_other_size(image_size(measured), image_size(expected), f"the reference {expected.name}")
    common = {"batch_size": settings.batch_size, "projections": settings.projections, "seed": settings.seed}
    theirs = cached_survey(expected, network, cache, **common, progress=progress, say=say, workers=workers)
    ours = survey(measured, network, **common, limit=limit, progress=progress, workers=workers)
    _refuse_other_size(ours.size, theirs.size, f"the reference {expected.name}")
    held = None
    if others is not None and "leakage" in named:
        held = cached_survey(others, network, cache, **common, progress=progress, say=say, workers=workers)
        _refuse_other_size(ours.size, held.size, f"the held-out set {others.name}")
    pair = Pair(samples=ours, reference=theirs, heldout=held, network=network, settings=settings)
    values: list[Value] = []
    curve: Curve = ()
    for name in named:
        found, points = MEASURE[name](pair)
        if metrics is not None and not found:
            raise ValueError(f"{name} does not apply: it needs {NEEDS[name]}")
        values += found
        curve = points or curve
    protocol = Protocol(
        samples=ours.name,
        samples_fingerprint=ours.fingerprint,
        samples_count=ours.count,
        reference=theirs.name,
        reference_split=split,
        reference_fingerprint=theirs.fingerprint,
        reference_count=theirs.count,
        size="×".join(map(str, ours.size)),
        network=network.name,
        weights=network.weights,
        resize=network.resize,
        precision=network.precision,
        settings=settings.describe(),
        evaluations=generation.evaluations,
        prior=generation.prior,
        seed=generation.seed,
        version=package_version(),
    )
    return Report(protocol=protocol, values=tuple(values), curve=curve)
