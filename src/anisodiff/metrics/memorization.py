"""Are the samples new? Nearest training images, leakage against held-out images, and recovery of sources.

    share = meanⱼ 1[ minᵢ ‖yⱼ−xᵢ‖ < minₕ ‖yⱼ−zₕ‖ ]   (a tie counts ½)

over as many training images x as held-out images z, both drawn at random: without matched sizes the larger
set wins by its size alone. Samples that know nothing of the training images beyond their law give ½.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from anisodiff.metrics.features import FeatureNetwork
from anisodiff.metrics.frechet import require_features
from anisodiff.metrics.images import ImageSet, Source, image_set, walk
from anisodiff.metrics.neighbors import Neighbors, nearest, nearest_pixels, pick
from anisodiff.metrics.prdc import distance_rows
from anisodiff.metrics.sheet import neighbor_sheet


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of samples, its error (:func:`binomial_error`), and the size both image sets were cut to."""

    value: float
    standard_error: float
    matched: int


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """How often the source is the nearest of m gallery images; chance is 1/m. Rank 0 is the nearest."""

    rate: float
    standard_error: float
    chance: float
    median_rank: float


def binomial_error(rate: float, count: int) -> float:
    """½·width of Wilson's interval for z = 1: √(p(1−p)/n + 1/4n²) / (1 + 1/n).

    The standard error √(p(1−p)/n) for large n, and not zero where p is 0 or 1: 0 of 12 is no certainty.
    """
    return float((rate * (1 - rate) / count + 1 / (4 * count**2)) ** 0.5 / (1 + 1 / count))


def _share(train: Tensor, heldout: Tensor, *, matched: int) -> Share:
    value = float((train < heldout).double().mean() + (train == heldout).double().mean() / 2)
    return Share(value=value, standard_error=binomial_error(value, len(train)), matched=matched)


def closer_to_training(samples: Tensor, training: Tensor, heldout: Tensor, *, generator: torch.Generator) -> Share:
    """Share of samples ``[n,D]`` nearer to training than to held-out features, both cut to one size at
    random.
    """
    matched = min(len(training), len(heldout))
    cut = [
        side[torch.randperm(len(side), generator=generator)[:matched].to(side.device)] for side in (training, heldout)
    ]
    near, far = (nearest(samples, side).distance for side in cut)
    return _share(near, far, matched=matched)


def source_recovery(samples: Tensor, gallery: Tensor, source: Tensor) -> Recovery:
    """For priors that start from an image: is row ``source[j]`` of ``gallery`` the nearest one to sample j?

    ``samples`` ``[n,D]`` and ``gallery`` ``[m,D]`` are features or flattened pixels, ``source`` ``[n]``
    indices.
    """
    if source.shape != (len(samples),) or source.is_floating_point():
        raise ValueError(f"source must hold {len(samples)} indices, got {source.dtype} {tuple(source.shape)}")
    if not 0 <= int(source.min()) <= int(source.max()) < len(gallery):
        raise ValueError(f"source indices must lie in 0 … {len(gallery) - 1}")
    require_features(samples, "samples")
    require_features(gallery, "gallery")
    source = source.to(samples.device)
    ranks = []
    for start, d2 in distance_rows(samples, gallery):
        own = d2.gather(1, source[start : start + len(d2), None])
        ranks.append((d2 < own).sum(dim=1))
    rank = torch.cat(ranks).double()
    rate = float((rank == 0).double().mean())
    return Recovery(
        rate=rate,
        standard_error=binomial_error(rate, len(rank)),
        chance=1 / len(gallery),
        median_rank=float(rank.median()),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Gallery:
    """Images with their features ``[N,D]``, row by row; without images only features are compared."""

    features: Tensor
    images: ImageSet | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Memorization:
    """Nearest training images in feature space and in pixels, shares where held-out images were given, the
    sheet; ``None`` what needs images that were not given.
    """

    by_feature: Neighbors
    by_pixel: Neighbors | None
    feature_share: Share | None
    pixel_share: Share | None
    sheet: Image.Image | None


def _pixel_share(
    samples: Tensor, sides: tuple[Gallery, Gallery], matched: int, generator: torch.Generator, batch_size: int
) -> Share:
    near = []
    for side in sides:
        assert side.images is not None
        keep = torch.zeros(len(side.features), dtype=torch.bool)
        keep[torch.randperm(len(keep), generator=generator)[:matched]] = True
        near.append(nearest_pixels(samples, side.images, keep=keep, batch_size=batch_size).distance)
    return _share(near[0], near[1], matched=matched)


def look_for_copies(
    samples: Tensor,
    features: Tensor,
    training: Gallery,
    *,
    generator: torch.Generator,
    heldout: Gallery | None = None,
    shown: int = 24,
    batch_size: int = 256,
) -> Memorization:
    """Look for training images among the samples uint8 ``[n,3,H,W]`` with features ``[m,D]``, m ≥ n, those of the
    samples first.

    The feature share is taken over all m, the rest over the n; the sheet shows the ``shown`` most suspicious.
    ``batch_size`` bounds how many images are held at a time.
    """
    samples, ours = samples.to(features.device), features[: len(samples)]
    by_feature, by_pixel, sheet = nearest(ours, training.features), None, None
    feature_share = pixel_share = None
    if heldout is not None:
        feature_share = closer_to_training(features, training.features, heldout.features, generator=generator)
        if training.images is not None and heldout.images is not None:
            pixel_share = _pixel_share(samples, (training, heldout), feature_share.matched, generator, batch_size)
    if training.images is not None:
        by_pixel = nearest_pixels(samples, training.images, batch_size=batch_size)
        first = by_feature.distance.argsort()[:shown].cpu()
        sheet = neighbor_sheet(
            samples.cpu()[first],
            pick(training.images, by_feature.index.cpu()[first], batch_size=batch_size),
            pick(training.images, by_pixel.index.cpu()[first], batch_size=batch_size),
        )
    return Memorization(
        by_feature=by_feature,
        by_pixel=by_pixel,
        feature_share=feature_share,
        pixel_share=pixel_share,
        sheet=sheet,
    )


def memorization(
    samples: Source,
    training: Source,
    *,
    network: FeatureNetwork,
    generator: torch.Generator,
    heldout: Source | None = None,
    limit: int = 1000,
    shown: int = 24,
    batch_size: int = 256,
) -> Memorization:
    """:func:`look_for_copies` among the first ``limit`` samples, from the images themselves."""
    train = image_set(training)
    held = None if heldout is None else image_set(heldout)
    if train.once or (held is not None and held.once):
        raise ValueError("training and held-out images are walked several times: give a folder, zip, npz or array")

    def gallery(images: ImageSet) -> Gallery:
        rows = torch.cat([network(batch)[0] for batch in walk(images, batch_size)])
        return Gallery(features=require_features(rows, f"{network.name} features of {images.name}"), images=images)

    inspected = torch.cat(list(walk(image_set(samples), batch_size, limit=limit))).cpu()
    return look_for_copies(
        inspected,
        gallery(image_set(inspected)).features,
        gallery(train),
        generator=generator,
        heldout=None if held is None else gallery(held),
        shown=shown,
        batch_size=batch_size,
    )
