"""Bits per dimension: what an image costs at most under a model, for each of its numbers (`path_bound`).

No samples are drawn and no feature network is used. All chance is keyed by an image's own pixels and the seed: two
models meet the same images, the same share of the way from image to noise, and the same noise, so that their
difference is far sharper than either number. Batch size, order and number of processes change nothing but rounding.
"""

import heapq
import itertools
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.generation import Generator
from anisodiff.metrics.images import ImageSet, Source, fingerprint_of, image_digests, read_batches
from anisodiff.metrics.protocol import HELDOUT, Protocol, Report, Value
from anisodiff.metrics.references import Reference, as_reference, own_fit
from anisodiff.metrics.statistics import Context, ImageStatistics
from anisodiff.noise import combine
from anisodiff.path_bound import LEVELS, PathBound, last_time, obstacle
from anisodiff.priors import GaussianPrior
from anisodiff.version import __version__

PARTS = ("path", "prior", "last")


@dataclass(frozen=True, kw_only=True)
class BitsSettings:
    """What fixes the numbers beside images and model; part of the protocol, except the batch size."""

    images: int = 2000
    """At most; the choice depends on pixels and seed, not on their order."""
    times: int = 4
    """Of the path, for every image; one more evaluation for the last step."""
    seed: int = 0
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name, least in {"images": 2, "times": 1, "seed": 0, "batch_size": 1}.items():
            notation.check_number(self, name, least, whole=True)

    def describe(self, precision: str) -> str:
        """One phrase for the protocol; ``precision``: of the network."""
        bins = f"bins of 1/{LEVELS - 1}"
        return f"at most {self.images} images, {self.times} times each, {bins}, {precision}, seed {self.seed}"


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """Images uint8 [n, 3, H, W] with their keys [n], in the order of the keys, and the set they are from."""

    images: Tensor
    keys: Tensor
    name: str
    count: int
    fingerprint: str
    resize: str


def _choose(images: ImageSet, settings: BitsSettings, context: Context) -> _Chosen:
    """The images with the least keys."""
    held: list[tuple[int, int, Tensor]] = []  # a heap of (−key, number, image)
    digests, number = list[bytes](), itertools.count()
    for batch in read_batches(images, settings.batch_size):
        found = image_digests(batch)
        keys = torch.tensor([int.from_bytes(d[:8], "little", signed=True) for d in found])
        for key, image in zip(combine(settings.seed, keys).tolist(), batch):
            heapq.heappush(held, (-key, next(number), image.clone()))
            if len(held) > settings.images:
                heapq.heappop(held)
        digests += found
        context.progress(f"reading {images.name}", len(digests), images.count)
    held.sort(key=lambda item: -item[0])
    return _Chosen(
        images=torch.stack([image for _, _, image in held]), keys=torch.tensor([-key for key, _, _ in held]),
        name=images.name, count=len(digests), fingerprint=fingerprint_of(digests), resize=images.resize,
    )  # fmt: skip


@torch.no_grad()
def _measure(
    bound: PathBound, chosen: _Chosen, generator: Generator, settings: BitsSettings, context: Context
) -> dict[str, Tensor]:
    """Bits per dimension of every image and part, float64 [n]; of W processes each takes every W-th batch."""
    total, done = len(chosen.keys), 0
    unit = math.log(2) * generator.channels * generator.size[0] * generator.size[1]
    mine: list[tuple[Tensor, Tensor]] = []
    stage = f"bits of {chosen.name}"
    for order, rows in enumerate(torch.split(torch.arange(total), settings.batch_size)):
        if order % context.world == context.rank:
            x0 = chosen.images[rows, : generator.channels].to(generator.device).float() / (LEVELS - 1)
            terms = bound.terms(x0.to(generator.plan.dtype), chosen.keys[rows].to(generator.device))
            mine.append((rows, torch.stack([getattr(terms, part) for part in PARTS]).cpu() / unit))
        done += len(rows)
        context.progress(stage, done, total)
    found = torch.zeros(len(PARTS), total, dtype=torch.float64)
    for parts in context.gather(mine):
        for rows, values in parts:
            found[:, rows] = values
    return dict(zip(PARTS, found))


def mean_and_error(each: Tensor) -> tuple[float, float]:
    """Mean over images [n] and its standard error."""
    return float(each.mean()), float(each.std() / len(each) ** 0.5)


def _values(found: dict[str, Tensor], t_min: float, ending: str) -> list[Value]:
    total = torch.stack([found[part] for part in PARTS]).sum(0)
    mean, error = mean_and_error(total)
    note = f"upper bound, per pixel and channel; {len(total)} images; path ends at t = {t_min:.4g}"
    out = [Value(name=f"bits{ending}", value=mean, error=error, note=note, each=tuple(total.tolist()))]
    notes = {"path": "of which the path", "prior": "of which the prior", "last": "of which the last step"}
    for part in PARTS:
        mean, error = mean_and_error(found[part])
        out.append(Value(name=f"bits_{part}{ending}", value=mean, error=error, note=notes[part]))
    return out


def path_bound_of(generator: Generator, settings: BitsSettings) -> PathBound:
    """The bound of a model that starts from its Gaussian prior; refused in one line where it has none."""
    if reason := obstacle(generator.process, generator.model):
        raise ValueError(f"bits does not apply: {reason}")
    if generator.model.conditional:
        raise ValueError(
            "bits does not apply: the model sees a cartoon of each image, so its bits are not those of others"
        )
    if generator.codec is not None:
        raise ValueError("bits does not apply: the model is one of latents, and what an image costs is not known")
    if generator.classes and not generator.plan.config.label_dropout:
        raise ValueError("bits does not apply: with label_dropout=0 the model has no unconditional distribution")
    prior = generator.prior("gaussian")
    assert isinstance(prior, GaussianPrior)
    t_min = last_time(generator.model, generator.plan.config.t_min)
    return PathBound(process=generator.process, model=generator.model, prior=prior, t_min=t_min, count=settings.times)


def bits_per_dimension(
    generator: Generator,
    images: Source | Reference,
    *,
    heldout: Source | Reference | None = None,
    name: str = "model",
    settings: BitsSettings | None = None,
    context: Context | None = None,
) -> Report:
    """The bits of ``images`` under the model of ``generator`` and, in values of their own, of ``heldout`` ones.

    Images at a path are brought to the model's size as those of its run were; others of another size are refused.
    """
    settings, context = settings or BitsSettings(), context or Context()
    bound, fit = (
        path_bound_of(generator, settings),
        own_fit(Path(generator.origin.path), generator.size, generator.channels),
    )
    values: list[Value] = []
    sets: list[tuple[Reference, _Chosen]] = []
    for source, ending in ((images, ""), (heldout, HELDOUT)):
        if source is None:
            continue
        reference = as_reference(source, fit)
        if isinstance(reference.content, ImageStatistics):
            raise ValueError(f"{reference.name}: bits need the images, not their statistics")
        chosen = _choose(replace(reference.content, name=reference.name), settings, context)
        if tuple(chosen.images.shape[2:]) != generator.size:
            got, want = ("×".join(map(str, size)) for size in (chosen.images.shape[2:], generator.size))
            raise ValueError(f"{reference.name}: images are {got}, the model makes {want}; bring them to that size")
        if len(chosen.keys) < 2:
            raise ValueError(f"{reference.name}: got 1 image, expected at least 2")
        values += _values(_measure(bound, chosen, generator, settings, context), bound.t_min, ending)
        sets.append((reference, chosen))
    (first, known), held = sets[0], sets[1][1] if len(sets) > 1 else None
    protocol = Protocol(
        samples=name, samples_fingerprint=generator.origin.model, samples_count=0, reference=first.name,
        reference_split=first.split, reference_fingerprint=known.fingerprint, reference_count=known.count,
        size="×".join(map(str, generator.size)), network="none", weights="none", resize="none", precision="none",
        settings="", nfe=None, prior="gaussian", seed=settings.seed, version=__version__,
        heldout_fingerprint=None if held is None else held.fingerprint, reference_resize=known.resize,
        bits=settings.describe("bfloat16" if generator.half else "float32"),
    )  # fmt: skip
    return Report(protocol=protocol, values=tuple(values))


def with_bits(report: Report, bits: Report) -> Report:
    """A report of samples with the bits of the same model added."""
    protocol = replace(report.protocol, bits=bits.protocol.bits)
    return Report(protocol=protocol, values=(*report.values, *bits.values))
