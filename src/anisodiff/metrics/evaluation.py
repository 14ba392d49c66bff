"""From two sets of images to a report: every metric, each number with its protocol."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Unpack

import torch

from anisodiff.generation import Generator, SamplingConfig, load
from anisodiff.generation.config import SamplingKeys
from anisodiff.io.images import Fit
from anisodiff.metrics.cache import cached_statistics
from anisodiff.metrics.features import FeatureNetwork, no_network
from anisodiff.metrics.images import ImageSet, Labeled, Source, image_set, peek
from anisodiff.metrics.memorization import Gallery, Memorization, look_for_copies
from anisodiff.metrics.protocol import HELDOUT, Generation, Protocol, Report, Settings, Value
from anisodiff.metrics.references import Reference, as_reference, own_images
from anisodiff.metrics.samples import (
    Origin,
    Samples,
    default_count,
    find_sources,
    generate_samples,
    is_model,
    read_samples,
)
from anisodiff.metrics.statistics import Context, ImageStatistics, image_statistics
from anisodiff.metrics.values import MEASURE, METRICS, OF_FEATURES, OF_MODELS, ONLY_NAMED, Pair, obstacle
from anisodiff.notation import counted, whole
from anisodiff.version import __version__

WORDS = {
    "fid": "FID", "kid": "KID", "prdc": "precision and recall", "edges": "edge statistics",
    "memorization": "search for copies", "class-fid": "FID of the classes",
}  # fmt: skip


def _opened(
    source: Source | ImageStatistics | Reference, batch_size: int, size: tuple[int, int]
) -> tuple[Reference, tuple[int, int]]:
    """A set to compare with, and its height and width; images of a path are brought to ``size``."""
    reference = as_reference(source, Fit(size=size, channels=3))
    if isinstance(reference.content, ImageStatistics):
        return reference, reference.content.size
    size, images = peek(replace(reference.content, name=reference.name), batch_size)
    return replace(reference, content=images), size


def _statistics(
    known: Reference, role: str, network: FeatureNetwork, settings: Settings, context: Context
) -> ImageStatistics:
    if isinstance(known.content, ImageStatistics):
        return known.content
    images = known.content
    found = cached_statistics(images, network, settings=settings, role=role, split=known.split, context=context)
    if images.fitting is not None and images.fitting.changed:
        shape = "×".join(map(str, found.size)) + ("" if images.fitting.fit.channels == 3 else " in gray")
        number = f"{images.fitting.changed} of {found.count}"
        context.say(f"{known.name}: {number} images brought to {shape}, as data prepare does ({found.resize})")
    return found


def check_metrics(metrics: str | Sequence[str]) -> tuple[str, ...]:
    """The metrics, given as a list or separated by commas, if there are any and all are known."""
    words = metrics.split(",") if isinstance(metrics, str) else metrics
    metrics = tuple(dict.fromkeys(word.strip().lower() for word in words if word.strip()))
    wrong = [m for m in metrics if m not in METRICS]
    if wrong or not metrics:
        raise ValueError(f"no metric {wrong[0] if wrong else 'was named'}; choose from {', '.join(METRICS)}")
    return metrics


def uses_features(metrics: tuple[str, ...] | None) -> bool:
    """Whether any of the metrics (all, where none are named) uses a feature network."""
    return metrics is None or bool({*metrics} & (OF_FEATURES | {"memorization"}))


def _chosen(
    metrics: tuple[str, ...] | None, network: FeatureNetwork, *, search: bool, sheet: bool
) -> tuple[str, ...]:
    """The metrics to take: those named, or all; the search for copies only where there is something to learn."""
    if metrics is None:
        possible = tuple(m for m in MEASURE if m not in ONLY_NAMED and (not network.empty or m not in OF_FEATURES))
        return tuple(m for m in possible if search or sheet or m != "memorization")
    if wrong := [m for m in check_metrics(metrics) if m in OF_MODELS]:
        raise ValueError(f"{wrong[0]} does not apply: it needs no samples; call metrics.bits_per_dimension")
    if network.empty and (wrong := [m for m in metrics if m in OF_FEATURES]):
        raise ValueError(f"{wrong[0]} does not apply: it needs a feature network")
    if sheet and "memorization" not in metrics:
        raise ValueError("a sheet belongs to the metric memorization; name it too")
    return metrics


def _sources(generation: Generation, ours: ImageStatistics, theirs: ImageStatistics) -> torch.Tensor | None:
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


def _classes(images: ImageSet | None, found: ImageStatistics) -> Labeled | None:
    """The classes of the images that were measured; unknown where some could not be read, or there are too few."""
    known = None if images is None or images.skipped else images.classes
    if known is None or len(known.labels) < found.count:
        return None
    return Labeled(known.names, known.labels[: found.count])


def _against_heldout(named: tuple[str, ...], pair: Pair, context: Context) -> list[Value]:
    """The distances again, from the held-out set; what does not depend on it or does not apply is left out."""
    values: list[Value] = []
    for name in named:
        if name in ("is", "memorization"):
            continue
        if reason := obstacle(name, pair):
            context.say(f"no {WORDS[name]} for the held-out set: {reason}")
        else:
            values += [replace(v, name=f"{v.name}{HELDOUT}") for v in MEASURE[name](pair)]
    return values


def evaluate(
    samples: Source | Samples | Generator,
    reference: Source | ImageStatistics | Reference | None = None,
    *,
    network: FeatureNetwork | None = None,
    heldout: Source | ImageStatistics | Reference | None = None,
    metrics: str | Sequence[str] | None = None,
    n: int | None = None,
    generation: Generation | None = None,
    settings: Settings | None = None,
    context: Context | None = None,
    **keys: Unpack[SamplingKeys],
) -> Report:
    """Measure ``samples`` against ``reference`` and report.

    ``samples`` are images (a folder, zip, npz or npy, uint8, or floats in [0, 1]), or a model as `load` takes or
    returns it. What `anisodiff sample` recorded of a folder or file goes into the report, unless ``generation`` says
    how they were made. A model makes ``n`` samples (10,000 on CUDA, 256 elsewhere) of the seeds 0, 1, … with the
    ``keys`` of a `SamplingConfig`, such as ``steps``, and is compared with its training images where no ``reference``
    is given.
    ``metrics``, such as "fid,kid", defaults to all that apply; one that is named and does not apply is an error.
    Without a ``network`` only pixels are compared.

    ``heldout`` images of the same kind, never trained on, add each distance from them (its name ends in ``_heldout``)
    and the share of samples closer to training. Images at a path are brought to the size of the samples; others of
    another size are refused. A reference may be given as its statistics
    (:func:`anisodiff.metrics.load_statistics`). Where several processes share the work (``context.distributed``),
    each returns the whole report.
    """
    settings, context = settings or Settings(), context or Context()
    say, sheet = context.say, context.sheet
    metrics = None if metrics is None else check_metrics(metrics)
    n = None if n is None else whole(n, "n", 2)
    if isinstance(samples, str | Path) and is_model(Path(samples)):
        own = context.distributed  # of several processes each has its device
        samples = load(samples, "auto" if own is None else own.device, say=say)
    if isinstance(samples, Generator):
        if generation is not None:
            raise ValueError("generation: it is known of a model; leave it out")
        path = Path(samples.origin.path).resolve()
        if reference is None:
            reference, kept = own_images(path)
            heldout = kept if heldout is None else heldout
        number = n or default_count(samples.device)
        samples = generate_samples(samples, path.name, number, seed=0, config=SamplingConfig(**keys), context=context)
    elif keys:
        raise ValueError(f"{next(iter(keys))}: it is of a model, and the samples are images; leave it out")
    elif n is not None:
        settings = replace(settings, limit=n)
    if reference is None:
        raise ValueError("reference: got none; give the images to compare with")
    if isinstance(samples, str | Path) and generation is None:
        samples = read_samples(Path(samples), say)
    origin = samples.origin if isinstance(samples, Samples) else Origin(generation=generation or Generation())
    given = samples.images if isinstance(samples, Samples) else image_set(samples)
    if network is None or not uses_features(metrics):
        network = no_network("cpu" if network is None else network.device)
    size, measured = peek(given, settings.batch_size)
    roles = {"the reference": reference} | ({} if heldout is None else {"the held-out set": heldout})
    known = [(role, *_opened(source, settings.batch_size, size)) for role, source in roles.items()]
    expected, others = known[0][1], None if heldout is None else known[1][1]
    generation = origin.generation
    if expected.images is not None and expected.path is not None and (metrics is None or "memorization" in metrics):
        count = origin.count if measured.once else measured.count
        sources = find_sources(origin, count, expected.images, expected.path, say=say)
        generation = replace(generation, sources=sources)
    interest = heldout is not None or generation.sources is not None
    named = _chosen(metrics, network, search=interest, sheet=sheet is not None)
    search = "memorization" in named
    if search and expected.images is not None and expected.images.once:
        raise ValueError("a search for copies reads the reference several times: give a folder, zip, npz or array")
    if sheet is not None and expected.images is None:
        raise ValueError(f"{expected.name}: a sheet needs the images, not their statistics")
    for role, other, found in known:
        if found != size:
            (h, w), (height, width) = size, found
            raise ValueError(
                f"samples are {h}×{w}, {role} {other.name} is {height}×{width}: another resolution is refused"
            )

    def leave_out(name: str, what: str, reason: str) -> None:
        if metrics is not None:
            raise ValueError(f"{name} does not apply: {reason}")
        say(f"no {what}: {reason}")

    if "class-fid" in named:
        for role, images in (("the samples", measured), ("the reference", expected.images)):
            if images is None or images.classes is None:
                leave_out("class-fid", WORDS["class-fid"], f"the classes of {role} are not known")
    if "is" in named and network(torch.zeros(1, 3, *size, dtype=torch.uint8))[1] is None:
        if metrics is not None:
            leave_out("is", "Inception score", f"{network.name} has no logits (it needs a classifier)")
        named = tuple(m for m in named if m != "is")

    keep = settings.inspected if search else 0
    of_samples = partial(image_statistics, measured, network, settings=settings, keep=keep, context=context)
    of_reference = partial(_statistics, expected, "reference", network, settings, context)
    if measured.once:  # a reference that cannot be read is refused before hours of sampling
        theirs, ours = of_reference(), of_samples()
    else:  # what is wrong with the samples shows at once
        ours, theirs = of_samples(), of_reference()
    held = None if others is None else _statistics(others, "held-out", network, settings, context)
    if measured.skipped and generation.sources is not None:
        say(f"recovery of sources is not measured: {counted(len(measured.skipped), 'sample')} cannot be decoded")
        generation = replace(generation, sources=None)
    if settings.limit is not None and ours.count < settings.limit:
        say(f"{measured.name}: {counted(ours.count, 'image')}, fewer than the {settings.limit} asked for")
    copies: Memorization | None = None
    if search:
        held_gallery: Gallery | None = None
        if others is not None and held is not None:
            held_gallery = Gallery(features=held.features, images=others.images)
        say(f"looking for copies of {expected.name} among the samples")
        copies = look_for_copies(
            ours.kept, ours.features, Gallery(features=theirs.features, images=expected.images),
            generator=settings.generator(), batch_size=settings.batch_size, heldout=held_gallery,
        )  # fmt: skip
        if sheet is not None and copies.sheet is not None:
            sheet(copies.sheet)
    known_classes = _classes(measured, ours)
    pair = Pair(
        samples=ours, reference=theirs, network=network, settings=settings, metrics=named, copies=copies,
        sources=_sources(generation, ours, theirs) if search else None,
        classes=(known_classes, _classes(expected.images, theirs)),
    )  # fmt: skip
    values: list[Value] = []
    taken: list[str] = []
    for name in named:
        if reason := obstacle(name, pair):
            leave_out(name, WORDS[name], reason)
        else:
            values += MEASURE[name](pair)
            taken.append(name)
    if held is not None:
        heldout_classes = None if others is None else _classes(others.images, held)
        against = replace(pair, reference=held, classes=(known_classes, heldout_classes))
        values += _against_heldout(named, against, context)
    protocol = Protocol(
        samples=measured.name, samples_fingerprint=ours.fingerprint, samples_count=ours.count,
        reference=expected.name, reference_split=expected.split, reference_fingerprint=theirs.fingerprint,
        reference_count=theirs.count, size="×".join(map(str, ours.size)), network=network.name,
        weights=network.weights, resize=network.resize, precision=network.precision,
        settings=settings.describe(taken), heldout_fingerprint=None if held is None else held.fingerprint,
        nfe=generation.nfe, prior=generation.prior, seed=generation.seed, version=__version__,
        classes=generation.classes,
        reference_resize=theirs.resize,
    )  # fmt: skip
    return Report(protocol=protocol, values=tuple(values))
