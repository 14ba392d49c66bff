"""From two sets of images to a report: every metric, each number with its protocol."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Unpack

import torch

from anisodiff.generation import Generator, SamplingConfig, as_generator
from anisodiff.generation.config import SamplingKeys
from anisodiff.io.images import Fit
from anisodiff.metrics.backbones import named_network
from anisodiff.metrics.cache import cached_statistics
from anisodiff.metrics.features import FeatureNetwork, no_network
from anisodiff.metrics.images import ImageSet, Labeled, Source, image_set, peek
from anisodiff.metrics.memorization import Gallery, Memorization, look_for_copies
from anisodiff.metrics.protocol import HELDOUT, Generation, Protocol, Report, Settings, Value
from anisodiff.metrics.references import Reference, as_reference, own_fit, own_images
from anisodiff.metrics.samples import (
    Origin,
    Samples,
    default_count,
    find_sources,
    generate_samples,
    is_model,
    read_samples,
)
from anisodiff.metrics.statistics import Context, ImageStatistics, Say, image_statistics
from anisodiff.metrics.values import MEASURE, METRICS, OF_FEATURES, OF_MODELS, ONLY_NAMED, Pair, obstacle
from anisodiff.notation import counted, whole
from anisodiff.runtime.devices import pick_device
from anisodiff.version import __version__

WORDS = {
    "fid": "FID", "kid": "KID", "prdc": "precision and recall", "edges": "edge statistics",
    "memorization": "search for copies", "class-fid": "FID of the classes",
}  # fmt: skip
Compared = Source | ImageStatistics | Reference
"""What samples may be compared with."""


@dataclass(frozen=True, kw_only=True)
class _Sets:
    """The sets that are compared, opened and of one size, but not read yet."""

    samples: ImageSet
    size: tuple[int, int]
    reference: Reference
    heldout: Reference | None

    @staticmethod
    def open(
        samples: ImageSet, reference: Compared, heldout: Compared | None, *, batch_size: int, like: Path | None,
        channels: int,
    ) -> "_Sets":  # fmt: skip
        """Open all; images of a path are brought to the size of the samples, and others of another size refused.

        ``like``: where the samples are, or their model; if that is a run, its crop is that of the other sets.
        """
        size, samples = peek(samples, batch_size)
        fit = Fit(size=size, channels=3) if like is None else own_fit(like, size, channels)

        def opened(role: str, source: Compared) -> Reference:
            known = as_reference(source, fit)
            if isinstance(known.content, ImageStatistics):
                found = known.content.size
            else:
                found, images = peek(replace(known.content, name=known.name), batch_size)
                known = replace(known, content=images)
            if found != size:
                ours, theirs = (f"{h}×{w}" for h, w in (size, found))
                raise ValueError(
                    f"samples are {ours}, {role} {known.name} is {theirs}: another resolution is refused"
                )
            return known

        return _Sets(
            samples=samples, size=size, reference=opened("the reference", reference),
            heldout=None if heldout is None else opened("the held-out set", heldout),
        )  # fmt: skip


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
    metrics: tuple[str, ...] | None, sets: _Sets, network: FeatureNetwork, *, search: bool, sheet: bool
) -> tuple[str, ...]:
    """The metrics to take: those named, or all; the search for copies only where there is something to learn."""
    if metrics is None:
        metrics = tuple(m for m in MEASURE if m not in ONLY_NAMED and (not network.empty or m not in OF_FEATURES))
        metrics = tuple(m for m in metrics if search or sheet or m != "memorization")
        return tuple(m for m in metrics if m != "is" or _has_logits(network, sets.size))
    if wrong := [m for m in metrics if m in OF_MODELS]:
        raise ValueError(f"{wrong[0]} does not apply: it needs no samples; call metrics.bits_per_dimension")
    if network.empty and (wrong := [m for m in metrics if m in OF_FEATURES]):
        raise ValueError(f"{wrong[0]} does not apply: it needs a feature network")
    if sheet and "memorization" not in metrics:
        raise ValueError("a sheet belongs to the metric memorization; name it too")
    if "class-fid" in metrics:
        for role, images in (("the samples", sets.samples), ("the reference", sets.reference.images)):
            if images is None or images.classes is None:
                raise ValueError(f"class-fid does not apply: the classes of {role} are not known")
    if "is" in metrics and not _has_logits(network, sets.size):
        raise ValueError(f"is does not apply: {network.name} has no logits (it needs a classifier)")
    return metrics


def _has_logits(network: FeatureNetwork, size: tuple[int, int]) -> bool:
    return network(torch.zeros(1, 3, *size, dtype=torch.uint8))[1] is not None


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


def _copies(
    sets: _Sets, ours: ImageStatistics, theirs: ImageStatistics, held: ImageStatistics | None,
    settings: Settings, context: Context,
) -> Memorization:  # fmt: skip
    """Search the reference, and the held-out set, for the nearest images of the samples; draw the sheet."""
    context.say(f"looking for copies of {sets.reference.name} among the samples")
    kept: Gallery | None = None
    if sets.heldout is not None and held is not None:
        kept = Gallery(features=held.features, images=sets.heldout.images)
    found = look_for_copies(
        ours.kept, ours.features, Gallery(features=theirs.features, images=sets.reference.images),
        generator=settings.generator(), batch_size=settings.batch_size,
        heldout=kept,
    )  # fmt: skip
    if context.sheet is not None and found.sheet is not None:
        context.sheet(found.sheet)
    return found


def _classes(images: ImageSet | None, found: ImageStatistics) -> Labeled | None:
    """The classes of the images that were measured; unknown where some could not be read, or there are too few."""
    known = None if images is None or images.skipped else images.classes
    if known is None or len(known.labels) < found.count:
        return None
    return Labeled(known.names, known.labels[: found.count])


def _values(
    named: Sequence[str], pair: Pair, *, of: str = "", strict: bool = False, say: Say
) -> tuple[list[Value], list[str]]:
    """The metrics of two sets, and the names of those that apply; ``strict``: one that does not is an error."""
    values, taken = list[Value](), list[str]()
    for name in named:
        if not (reason := obstacle(name, pair)):
            values += MEASURE[name](pair)
            taken.append(name)
        elif strict:
            raise ValueError(f"{name} does not apply: {reason}")
        else:
            say(f"no {WORDS[name]}{of}: {reason}")
    return values, taken


def _from_model(
    model: str | Path | Generator, n: int | None, config: SamplingConfig, context: Context, device: torch.device
) -> tuple[Samples, Path]:
    """Samples that are generated when they are read, and the path of their model."""
    model = as_generator(model, device, context.say)
    path, count = Path(model.origin.path).resolve(), n or default_count(model.device)
    return generate_samples(model, path.name, count, seed=0, config=config, context=context), path


def evaluate(
    samples: Source | Samples | Generator,
    reference: Compared | None = None,
    *,
    network: FeatureNetwork | str | None = None,
    heldout: Compared | None = None,
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
    ``network``: one of `anisodiff.metrics`, or ``"inception"`` or ``"dinov2"``, whose weights are on this machine;
    without one only pixels are compared.

    ``heldout`` images of the same kind, never trained on, add each distance from them (its name ends in ``_heldout``)
    and the share of samples closer to training. Images at a path are brought to the size of the samples; others of
    another size are refused. A reference may be given as its statistics
    (:func:`anisodiff.metrics.load_statistics`). Where several processes share the work (``context.distributed``),
    each returns the whole report.
    """
    settings, context = settings or Settings(), context or Context()
    say, batch_size = context.say, settings.batch_size
    device = pick_device("auto") if context.distributed is None else context.distributed.device
    metrics = None if metrics is None else check_metrics(metrics)
    n = None if n is None else whole(n, "n", 2)
    path = Path(samples) if isinstance(samples, str | Path) else None
    if isinstance(samples, Generator) or (isinstance(samples, str | Path) and is_model(Path(samples))):
        if generation is not None:
            raise ValueError("generation: it is known of a model; leave it out")
        samples, path = _from_model(samples, n, SamplingConfig(**keys), context, device)
        if reference is None:
            reference, kept = own_images(path)
            heldout = kept if heldout is None else heldout
    elif keys:
        raise ValueError(f"{next(iter(keys))}: it is of a model, and the samples are images; leave it out")
    elif n is not None:
        settings = replace(settings, limit=n)
    if reference is None:
        raise ValueError("reference: got none; give the images to compare with")
    if path is not None and not isinstance(samples, Samples) and generation is None:
        samples = read_samples(path, say)
    origin = samples.origin if isinstance(samples, Samples) else Origin(generation=generation or Generation())
    images = samples.images if isinstance(samples, Samples) else image_set(samples)
    if network is None or not uses_features(metrics):
        network = no_network(network.device if isinstance(network, FeatureNetwork) else "cpu")
    network = named_network(network, device, say)
    sets = _Sets.open(images, reference, heldout, batch_size=batch_size, like=path, channels=origin.channels)
    measured, expected = sets.samples, sets.reference
    generation = origin.generation
    if expected.images is not None and expected.path is not None and (metrics is None or "memorization" in metrics):
        count = origin.count if measured.once else measured.count
        sources = find_sources(origin, count, expected.images, expected.path, say=say)
        generation = replace(generation, sources=sources)
    interest = heldout is not None or generation.sources is not None
    named = _chosen(metrics, sets, network, search=interest, sheet=context.sheet is not None)
    search = "memorization" in named
    if search and expected.images is not None and expected.images.once:
        raise ValueError("a search for copies reads the reference several times: give a folder, zip, npz or array")
    if context.sheet is not None and expected.images is None:
        raise ValueError(f"{expected.name}: a sheet needs the images, not their statistics")

    keep = settings.inspected if search else 0
    of_samples = partial(image_statistics, measured, network, settings=settings, keep=keep, context=context)
    of_reference = partial(_statistics, expected, "reference", network, settings, context)

    def of_heldout() -> ImageStatistics | None:
        return None if sets.heldout is None else _statistics(sets.heldout, "held-out", network, settings, context)

    if measured.once:  # a set that cannot be read is refused before hours of sampling
        theirs, held, ours = of_reference(), of_heldout(), of_samples()
    else:  # what is wrong with the samples shows at once
        ours, theirs, held = of_samples(), of_reference(), of_heldout()
    if measured.skipped and generation.sources is not None:
        say(f"recovery of sources is not measured: {counted(len(measured.skipped), 'sample')} cannot be decoded")
        generation = replace(generation, sources=None)
    if settings.limit is not None and ours.count < settings.limit:
        say(f"{measured.name}: {counted(ours.count, 'image')}, fewer than the {settings.limit} asked for")
    pair = Pair(
        samples=ours, reference=theirs, network=network, settings=settings, metrics=named,
        copies=_copies(sets, ours, theirs, held, settings, context) if search else None,
        sources=_sources(generation, ours, theirs) if search else None,
        classes=(_classes(measured, ours), _classes(expected.images, theirs)),
    )  # fmt: skip
    values, taken = _values(named, pair, strict=metrics is not None, say=say)
    if sets.heldout is not None and held is not None:  # the distances again; others do not depend on the reference
        against = replace(pair, reference=held, classes=(pair.classes[0], _classes(sets.heldout.images, held)))
        distances = [name for name in named if name not in ("is", "memorization")]
        found, _ = _values(distances, against, of=" for the held-out set", say=say)
        values += [replace(value, name=f"{value.name}{HELDOUT}") for value in found]
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
