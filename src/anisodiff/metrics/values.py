"""The metrics as values of a report: from two surveyed sets to numbers with notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff.metrics.edges import edge_distance
from anisodiff.metrics.features import FeatureNetwork
from anisodiff.metrics.frechet import extrapolate, frechet_distance
from anisodiff.metrics.inception_score import inception_score
from anisodiff.metrics.kernel import kernel_distance
from anisodiff.metrics.memorisation import closer_to_training
from anisodiff.metrics.prdc import prdc
from anisodiff.metrics.protocol import Value, few_samples_note
from anisodiff.metrics.sliced import sliced_wasserstein
from anisodiff.metrics.spectra import spectrum_error
from anisodiff.metrics.survey import Survey

Curve = tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What fixes the numbers beside images and network; part of the protocol, except the batch size.

    ``prdc_limit`` bounds each side of precision and recall by a random subset: their values depend on it.
    """

    neighbours: int = 5
    prdc_limit: int = 10_000
    kid_block: int = 1000
    fid_blocks: int = 10
    score_splits: int = 10
    projections: int = 128
    seed: int = 0
    batch_size: int = 256

    def __post_init__(self) -> None:
        smallest = {"neighbours": 1, "prdc_limit": 2, "kid_block": 2, "fid_blocks": 4}
        for name, least in (smallest | {"score_splits": 1, "projections": 1, "batch_size": 1}).items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")

    def describe(self) -> str:
        """One phrase for the protocol."""
        return (
            f"k={self.neighbours}, PRDC on at most {self.prdc_limit}, KID blocks of {self.kid_block}, "
            f"{self.fid_blocks} FID blocks, {self.score_splits} splits, {self.projections} projections, "
            f"seed {self.seed}"
        )

    def generator(self) -> torch.Generator:
        """A fresh generator for each metric, so that leaving one out changes no other."""
        return torch.Generator().manual_seed(self.seed)


@dataclass(frozen=True, kw_only=True, eq=False)
class Pair:
    """Two surveyed sets, and the held-out set where there is one."""

    samples: Survey
    reference: Survey
    heldout: Survey | None
    network: FeatureNetwork
    settings: Settings


def _notes(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _fid(pair: Pair) -> tuple[list[Value], Curve]:
    count, blocks = pair.samples.count, pair.settings.fid_blocks
    value = frechet_distance(pair.samples.gaussian, pair.reference.gaussian)
    out = [Value(name="fid", value=value, note=few_samples_note(count))]
    if count < 2 * blocks:
        return out, ((count, value),)
    line = extrapolate(
        pair.samples.features, pair.reference.gaussian, generator=pair.settings.generator(), blocks=blocks
    )
    few = few_samples_note(count)
    note = _notes("extrapolated to infinitely many samples; error of the fit", few)
    out.append(Value(name="fid_infinity", value=line.limit, error=line.standard_error, note=note))
    out.append(
        Value(name="fid_bias", value=line.bias, note=_notes(f"estimated share of fid due to N = {count}", few))
    )
    return out, tuple(zip(line.sizes, line.values))


def _kid(pair: Pair) -> tuple[list[Value], Curve]:
    found = kernel_distance(
        pair.samples.features,
        pair.reference.features,
        generator=pair.settings.generator(),
        block=pair.settings.kid_block,
    )
    few = few_samples_note(pair.samples.count, "noisy")
    note = _notes(f"{found.blocks} blocks of {found.block}", few)
    return [Value(name="kid", value=found.value, error=found.standard_error, note=note)], ()


def _score(pair: Pair) -> tuple[list[Value], Curve]:
    if pair.samples.logits is None:
        return [], ()
    splits = min(pair.settings.score_splits, pair.samples.count)
    found = inception_score(pair.samples.logits, generator=pair.settings.generator(), splits=splits)
    label = f"classifier {pair.network.name}; error is the deviation between {splits} splits"
    note = _notes(label, few_samples_note(pair.samples.count))
    return [Value(name=f"is[{pair.network.name}]", value=found.value, error=found.deviation, note=note)], ()


def _prdc(pair: Pair) -> tuple[list[Value], Curve]:
    generator, limit = pair.settings.generator(), pair.settings.prdc_limit

    def some(features: Tensor) -> Tensor:
        order = torch.randperm(len(features), generator=generator)[:limit]
        return features if len(features) <= limit else features[order.to(features.device)]

    real, generated = some(pair.reference.features), some(pair.samples.features)
    found = prdc(real, generated, k=pair.settings.neighbours)
    note = _notes(f"k={found.k}, {len(generated)} against {len(real)}", few_samples_note(pair.samples.count))
    names = ("precision", "recall", "density", "coverage")
    return [Value(name=n, value=getattr(found, n), note=note) for n in names], ()


def _pixels(pair: Pair) -> tuple[list[Value], Curve]:
    ours, theirs = pair.samples.pixels, pair.reference.pixels
    edges = edge_distance(ours.edges, theirs.edges)
    few = few_samples_note(pair.samples.count)
    found = [
        ("sliced_wasserstein", sliced_wasserstein(ours.projections, theirs.projections), "pixels in [0,1]"),
        ("spectrum_error", spectrum_error(ours.spectrum, theirs.spectrum), "decades of power"),
        ("edges", edges.value, "sum of the three below, each scaled to [0,1]"),
        ("edge_orientation", edges.orientation, "degrees"),
        ("edge_coherence", edges.coherence, ""),
        ("edge_magnitude", edges.magnitude, "grey levels in [0,1] a pixel"),
    ]
    return [Value(name=n, value=v, note=_notes(t, few)) for n, v, t in found], ()


def _leakage(pair: Pair) -> tuple[list[Value], Curve]:
    if pair.heldout is None:
        return [], ()
    share = closer_to_training(
        pair.samples.features,
        pair.reference.features,
        pair.heldout.features,
        generator=pair.settings.generator(),
    )
    note = f"0.5 means none; {share.matched} images a side; error for independent samples"
    return [Value(name="closer_to_training", value=share.value, error=share.standard_error, note=note)], ()


MEASURE: Mapping[str, Callable[[Pair], tuple[list[Value], Curve]]] = {
    "fid": _fid,
    "kid": _kid,
    "is": _score,
    "prdc": _prdc,
    "pixels": _pixels,
    "leakage": _leakage,
}
NEEDS = {"is": "a network with logits (a classifier)", "leakage": "held-out images"}
METRICS = tuple(MEASURE)
