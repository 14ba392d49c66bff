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
from anisodiff.metrics.prdc import distance_rows
from anisodiff.metrics.sheet import neighbour_sheet


@dataclass(frozen=True, kw_only=True, eq=False)
class Neighbours:
    """Index ``[n]`` of the nearest image of another set, and the distance ``[n]`` to it, float64."""

    index: Tensor
    distance: Tensor


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of samples, its binomial standard error, and the size both image sets were cut to."""

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


def nearest(queries: Tensor, base: Tensor) -> Neighbours:
    """Nearest row of ``base`` ``[m,D]`` for each row of ``queries`` ``[n,D]``."""
    require_features(queries, "queries")
    require_features(base, "base")
    found = [d2.min(dim=1) for _, d2 in distance_rows(queries, base)]
    return Neighbours(
        index=torch.cat([f.indices for f in found]), distance=torch.cat([f.values for f in found]).sqrt()
    )


def _share(train: Tensor, heldout: Tensor, *, matched: int) -> Share:
    value = float((train < heldout).double().mean() + (train == heldout).double().mean() / 2)
    return Share(value=value, standard_error=(value * (1 - value) / len(train)) ** 0.5, matched=matched)


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
        standard_error=(rate * (1 - rate) / len(rank)) ** 0.5,
        chance=1 / len(gallery),
        median_rank=float(rank.median()),
    )


def nearest_pixels(samples: Tensor, images: ImageSet, *, keep: Tensor | None = None) -> Neighbours:
    """Nearest image by pixels for uint8 samples ``[n,3,H,W]``, in one walk; distance is the RMS of pixels in
    [0,1].

    ``keep``, a bool mask over the images in walking order, restricts the search.
    """
    flat = samples.flatten(1).double() / 255
    best = torch.full((len(samples),), torch.inf, dtype=torch.float64, device=samples.device)
    index = torch.full((len(samples),), -1, device=samples.device)
    start = 0
    for batch in walk(images, 1024):
        if batch.shape[1:] != samples.shape[1:]:
            sizes = f"{tuple(samples.shape[2:])} and {tuple(batch.shape[2:])}"
            raise ValueError(f"samples and {images.name} have different sizes: {sizes}")
        position = torch.arange(start, start + len(batch))
        start += len(batch)
        if keep is not None:
            batch, position = batch[keep[position]], position[keep[position]]
        if not len(batch):
            continue
        near = nearest(flat, (batch.flatten(1).double() / 255).to(samples.device))
        index = torch.where(near.distance < best, position.to(index.device)[near.index], index)
        best = torch.minimum(best, near.distance)
    return Neighbours(index=index, distance=best / flat.shape[1] ** 0.5)


def pick(images: ImageSet, indices: Tensor) -> Tensor:
    """The images ``[n,3,H,W]`` at ``indices``, in one walk."""
    wanted = indices.cpu()
    found: dict[int, Tensor] = {}
    start = 0
    for batch in walk(images, 1024):
        for i in wanted[(wanted >= start) & (wanted < start + len(batch))].tolist():
            found[i] = batch[i - start].cpu()
        start += len(batch)
    return torch.stack([found[i] for i in wanted.tolist()])


@dataclass(frozen=True, kw_only=True, eq=False)
class Gallery:
    """Images with their features ``[N,D]``, row by row; without images only features are compared."""

    features: Tensor
    images: ImageSet | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Memorisation:
    """Nearest training images in feature space and in pixels, shares where held-out images were given, the
    sheet; ``None`` what needs images that were not given.
    """

    by_feature: Neighbours
    by_pixel: Neighbours | None
    feature_share: Share | None
    pixel_share: Share | None
    sheet: Image.Image | None


def _pixel_share(samples: Tensor, sides: tuple[Gallery, Gallery], matched: int, generator: torch.Generator) -> Share:
    near = []
    for side in sides:
        assert side.images is not None
        keep = torch.zeros(len(side.features), dtype=torch.bool)
        keep[torch.randperm(len(keep), generator=generator)[:matched]] = True
        near.append(nearest_pixels(samples, side.images, keep=keep).distance)
    return _share(near[0], near[1], matched=matched)


def look_for_copies(
    samples: Tensor,
    features: Tensor,
    training: Gallery,
    *,
    generator: torch.Generator,
    heldout: Gallery | None = None,
    shown: int = 24,
) -> Memorisation:
    """Look for training images among the samples uint8 ``[n,3,H,W]`` with features ``[m,D]``, m ≥ n, those of the
    samples first.

    The feature share is taken over all m, the rest over the n; the sheet shows the ``shown`` most suspicious.
    """
    samples, ours = samples.to(features.device), features[: len(samples)]
    by_feature, by_pixel, sheet = nearest(ours, training.features), None, None
    feature_share = pixel_share = None
    if heldout is not None:
        feature_share = closer_to_training(features, training.features, heldout.features, generator=generator)
        if training.images is not None and heldout.images is not None:
            pixel_share = _pixel_share(samples, (training, heldout), feature_share.matched, generator)
    if training.images is not None:
        by_pixel = nearest_pixels(samples, training.images)
        first = by_feature.distance.argsort()[:shown].cpu()
        sheet = neighbour_sheet(
            samples.cpu()[first],
            pick(training.images, by_feature.index.cpu()[first]),
            pick(training.images, by_pixel.index.cpu()[first]),
        )
    return Memorisation(
        by_feature=by_feature,
        by_pixel=by_pixel,
        feature_share=feature_share,
        pixel_share=pixel_share,
        sheet=sheet,
    )


def memorisation(
    samples: Source,
    training: Source,
    *,
    network: FeatureNetwork,
    generator: torch.Generator,
    heldout: Source | None = None,
    limit: int = 1000,
    shown: int = 24,
    batch_size: int = 256,
) -> Memorisation:
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
    )
