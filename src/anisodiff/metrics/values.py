"""The metrics as values of a report: from the statistics of two sets to numbers with notes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff.metrics.edges import SMALLEST, edge_distance
from anisodiff.metrics.feature_metrics import inception_score, kernel_distance, prdc
from anisodiff.metrics.features import FeatureNetwork
from anisodiff.metrics.frechet import extrapolate, frechet_distance, gaussian_statistics
from anisodiff.metrics.images import Labeled
from anisodiff.metrics.memorization import Memorization, binomial_error, source_recovery
from anisodiff.metrics.pixel_metrics import sliced_wasserstein, spectrum_error
from anisodiff.metrics.protocol import ENOUGH, Settings, Value, few_samples_note
from anisodiff.metrics.statistics import ImageStatistics
from anisodiff.notation import counted


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Two sets; the search for copies and the sources of the samples ``[n]`` where there are any."""

    samples: ImageStatistics
    reference: ImageStatistics
    network: FeatureNetwork
    settings: Settings
    metrics: tuple[str, ...]
    """What is to be measured."""
    copies: Memorization | None = None
    sources: Tensor | None = None
    classes: tuple[Labeled | None, Labeled | None] = (None, None)
    """Of the samples and of the reference, where they are known."""


def _notes(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _few(pair: Pair) -> str:
    kid = "kid" in pair.metrics and not obstacle("kid", pair)
    return few_samples_note(pair.samples.count, pair.reference.count, kid=kid)


def _fid(pair: Pair) -> list[Value]:
    count, blocks = pair.samples.count, pair.settings.fid_blocks
    value = frechet_distance(pair.samples.gaussian, pair.reference.gaussian)
    few = _few(pair)
    out = [Value(name="fid", value=value, note=few)]
    if count < 2 * blocks:
        return out
    features = pair.samples.by_digest(pair.samples.features)
    line = extrapolate(features, pair.reference.gaussian, generator=pair.settings.generator(), blocks=blocks)
    dimension = pair.samples.features.shape[1]  # Σ of fewer points than that has no full rank: another regime
    rough = f"the 1/N fit does not hold below {dimension} samples" if line.sizes[0] < dimension else ""
    note = _notes("extrapolated to infinitely many samples; error of the fit", rough, few)
    out.append(Value(name="fid_infinity", value=line.limit, error=line.standard_error, note=note))
    out.append(
        Value(name="fid_bias", value=line.bias, note=_notes(f"estimated share of fid due to N = {count}", few))
    )
    return out


def _shared_classes(pair: Pair) -> dict[str, tuple[Tensor, Tensor]]:
    """Rows of the samples and of the reference, by the name of a class that both have two images of at least."""
    ours, theirs = pair.classes
    if ours is None or theirs is None:
        return {}
    rows = {name: (ours.rows(name), theirs.rows(name)) for name in ours.names}
    return {name: both for name, both in rows.items() if min(int(side.sum()) for side in both) > 1}


def _class_fid(pair: Pair) -> list[Value]:
    """FID of each class against the reference's images of that class, and the mean over the classes."""
    assert pair.classes[0] is not None
    out, shared = [], _shared_classes(pair)
    for name, (ours, theirs) in shared.items():
        sides = (
            pair.samples.features[ours.to(pair.samples.features.device)],
            pair.reference.features[theirs.to(pair.reference.features.device)],
        )
        value = frechet_distance(*(gaussian_statistics(side) for side in sides))
        few = few_samples_note(len(sides[0]), len(sides[1]), kid=False)
        note = _notes(f"{len(sides[0])} against {len(sides[1])}", few)
        out.append(Value(name=f"fid[{name}]", value=value, note=note))
    left = len(pair.classes[0].names) - len(shared)
    missing = f", {left} left out: fewer than 2 images" if left else ""
    mean = sum(value.value for value in out) / len(out)
    least = min(min(len(ours[ours]), len(theirs[theirs])) for ours, theirs in shared.values())
    few = few_samples_note(least, least).partition(" and ")[0]
    note = _notes(f"mean over {len(out)} classes{missing}", few and f"{few} in a class: noisy and biased")
    return [Value(name="class_fid", value=mean, note=note), *out]


def _kid(pair: Pair) -> list[Value]:
    ours, theirs = (side.by_digest(side.features) for side in (pair.samples, pair.reference))
    settings = pair.settings
    found = kernel_distance(ours, theirs, generator=settings.generator(), block=settings.kid_block)
    note = _notes(f"{counted(found.blocks, 'block')} of {found.block}", _few(pair))
    return [Value(name="kid", value=found.value, error=found.standard_error, note=note)]


def _score(pair: Pair) -> list[Value]:
    if pair.samples.logits is None:
        return []
    splits = min(pair.settings.score_splits, pair.samples.count)
    logits = pair.samples.by_digest(pair.samples.logits)
    found = inception_score(logits, generator=pair.settings.generator(), splits=splits)
    label = f"classifier {pair.network.name}; error is the deviation between {splits} splits"
    note = _notes(label, _few(pair) if pair.samples.count < ENOUGH else "")  # it does not depend on the reference
    return [Value(name=f"is[{pair.network.name}]", value=found.value, error=found.deviation, note=note)]


def _prdc(pair: Pair) -> list[Value]:
    generator, limit = pair.settings.generator(), pair.settings.prdc_limit

    def some(side: ImageStatistics) -> Tensor:
        features, order = side.features, torch.randperm(side.count, generator=generator)[:limit]
        return features if side.count <= limit else side.by_digest(features)[order.to(features.device)]

    real, generated = some(pair.reference), some(pair.samples)
    found = prdc(real, generated, k=pair.settings.neighbors)
    note = _notes(f"k={found.k}, {len(generated)} against {len(real)}", _few(pair))
    names = ("precision", "recall", "density", "coverage")
    return [Value(name=n, value=getattr(found, n), note=note) for n in names]


def _sliced(pair: Pair) -> list[Value]:
    value = sliced_wasserstein(pair.samples.pixels.projections, pair.reference.pixels.projections)
    note = _notes("pixels in [0,1]", _few(pair))
    return [Value(name="sliced_wasserstein", value=value, note=note)]


def _spectrum(pair: Pair) -> list[Value]:
    value = spectrum_error(pair.samples.pixels.spectrum, pair.reference.pixels.spectrum)
    note = _notes("decades of power", _few(pair))
    return [Value(name="spectrum_error", value=value, note=note)]


def _edges(pair: Pair) -> list[Value]:
    edges = edge_distance(pair.samples.pixels.edges, pair.reference.pixels.edges)
    found = [
        ("edges", edges.value, "sum of the three below, each scaled to [0,1]"),
        ("edge_orientation", edges.orientation, "degrees"),
        ("edge_coherence", edges.coherence, ""),
        ("edge_magnitude", edges.magnitude, "gray levels in [0,1] a pixel"),
    ]
    few = _few(pair)
    return [Value(name=n, value=v, note=_notes(t, few)) for n, v, t in found]


def _memorization(pair: Pair) -> list[Value]:
    copies = pair.copies
    if copies is None:
        return []
    inspected, gallery = len(pair.samples.kept), pair.reference.count
    note = f"median over {inspected} samples, nearest of {gallery} reference images"
    found: list[Value] = []
    for name, near, unit in (
        ("features", copies.by_feature, ""),
        ("pixels", copies.by_pixel, ", RMS of pixels in [0,1]"),
    ):
        if near is not None:
            value = float(near.distance.median())
            found.append(Value(name=f"nearest_{name}", value=value, note=f"{note}{unit}"))
    for name, share in (("features", copies.feature_share), ("pixels", copies.pixel_share)):
        if share is not None:
            note = f"0.5 means none; {share.matched} images a side; error for independent samples"
            name = f"closer_to_training_{name}"
            found.append(Value(name=name, value=share.value, error=share.standard_error, note=note))
    if pair.sources is not None:
        chance = f"chance {1 / gallery:.2g}"
        if copies.by_feature is not None:
            recovered = source_recovery(pair.samples.features, pair.reference.features, pair.sources)
            note = f"{chance}; median rank {recovered.median_rank:g} of {gallery}"
            name, error = "source_recovered_features", recovered.standard_error
            found.append(Value(name=name, value=recovered.rate, error=error, note=note))
        if copies.by_pixel is not None:
            rate = float((copies.by_pixel.index.cpu() == pair.sources[:inspected].cpu()).double().mean())
            error = binomial_error(rate, inspected)
            note = f"{chance}; nearest image by pixels, {inspected} samples"
            found.append(Value(name="source_recovered_pixels", value=rate, error=error, note=note))
    return found


MEASURE: Mapping[str, Callable[[Pair], list[Value]]] = {
    "fid": _fid, "kid": _kid, "is": _score, "prdc": _prdc, "sliced": _sliced, "spectrum": _spectrum,
    "edges": _edges, "memorization": _memorization, "class-fid": _class_fid,
}  # fmt: skip
ONLY_NAMED = ("class-fid",)
"""These are measured only where they are named: one more distance for every class."""
OF_MODELS = ("bits",)
"""These are measured on a model itself, without samples (`metrics.bits`), and only where they are named."""
METRICS = (*MEASURE, *OF_MODELS)
OF_FEATURES = frozenset({"fid", "kid", "is", "prdc", "class-fid"})
"""These need a feature network; memorization uses one where there is one."""


def obstacle(name: str, pair: Pair) -> str:
    """Why a metric cannot be taken of these two sets, or nothing."""
    if name in ("fid", "kid") and pair.reference.count < 2:
        return "got 1 image, expected at least 2"
    if name == "class-fid":
        for what, known in zip(("the samples", "the reference"), pair.classes):
            if known is None:
                return f"the classes of {what} are not known"
        return "" if _shared_classes(pair) else "no class has two images on both sides"
    if name == "prdc":
        least = min(pair.reference.count, pair.samples.count, pair.settings.prdc_limit)
        k = pair.settings.neighbors
        return f"{least} images have no {k} neighbors" if least <= k else ""
    if name == "memorization" and pair.copies is not None and not (pair.copies.by_feature or pair.copies.by_pixel):
        return "statistics have no pixels, and there is no feature network"
    height, width = pair.samples.size
    if name == "edges" and min(height, width) < SMALLEST:
        return f"images of {height}×{width}, expected at least {SMALLEST}×{SMALLEST}"
    return ""
