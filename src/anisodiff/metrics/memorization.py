"""Are the samples new? Nearest training images, comparison with held-out images, and recovery of sources.

    nearest: i(j) = argminᵢ ‖yⱼ − xᵢ‖
    share = meanⱼ 1[ minᵢ ‖yⱼ−xᵢ‖ < minₕ ‖yⱼ−zₕ‖ ]   (a tie counts ½)

over as many training images x as held-out images z, both drawn at random: with unequal sizes the larger set wins by
its size alone. Samples that depend on the training images only through their distribution give ½.

Pixels are compared as whole numbers 0 … 255: their squared distances are exact in float64, so the result does not
depend on how the sets are cut into batches.
"""

from dataclasses import dataclass
from itertools import product

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from anisodiff.io.grids import tiled
from anisodiff.metrics.feature_metrics import distance_rows
from anisodiff.metrics.frechet import require_features
from anisodiff.metrics.images import ImageSet, read_batches

MARGIN, CAPTION = 8, 16
TITLES = ("sample", "features", "pixels")


@dataclass(frozen=True, kw_only=True, eq=False)
class Neighbors:
    """Index ``[n]`` of the nearest image of another set, and the distance ``[n]`` to it, float64."""

    index: Tensor
    distance: Tensor


def nearest(queries: Tensor, base: Tensor) -> Neighbors:
    """Nearest row of ``base`` ``[m,D]`` for each row of ``queries`` ``[n,D]``."""
    require_features(queries, "queries")
    require_features(base, "base")
    found = [d2.min(dim=1) for _, d2 in distance_rows(queries, base)]
    return Neighbors(
        index=torch.cat([f.indices for f in found]), distance=torch.cat([f.values for f in found]).sqrt()
    )


def nearest_pixels(
    samples: Tensor, images: ImageSet, *, keep: Tensor | None = None, batch_size: int = 256
) -> Neighbors:
    """Nearest image by pixels for uint8 samples ``[n,3,H,W]``, in one pass; distance is the RMS of pixels in
    [0,1].

    ``keep``, a bool mask over the images in the order they are read, restricts the search. No more than
    ``batch_size`` of either side are in float64 at a time.
    """
    best = torch.full((len(samples),), torch.inf, dtype=torch.float64, device=samples.device)
    index = torch.full((len(samples),), -1, device=samples.device)
    start = 0
    for batch in read_batches(images, batch_size):
        if batch.shape[1:] != samples.shape[1:]:
            sizes = f"{tuple(samples.shape[2:])} and {tuple(batch.shape[2:])}"
            raise ValueError(f"samples and {images.name} have different sizes: {sizes}")
        position = torch.arange(start, start + len(batch))
        start += len(batch)
        if keep is not None:
            batch, position = batch[keep[position]], position[keep[position]]
        if not len(batch):
            continue
        base, position = batch.to(samples.device).flatten(1).double(), position.to(samples.device)
        for first in range(0, len(samples), batch_size):
            rows = slice(first, first + batch_size)
            near = nearest(samples[rows].flatten(1).double(), base)
            index[rows] = torch.where(near.distance < best[rows], position[near.index], index[rows])
            best[rows] = torch.minimum(best[rows], near.distance)
    return Neighbors(index=index, distance=best / (255 * samples[0].numel() ** 0.5))


def pick(images: ImageSet, indices: Tensor, *, batch_size: int = 256) -> Tensor:
    """The images ``[n,3,H,W]`` at ``indices``, in one pass."""
    wanted = indices.cpu()
    found: dict[int, Tensor] = {}
    start = 0
    for batch in read_batches(images, batch_size):
        for i in wanted[(wanted >= start) & (wanted < start + len(batch))].tolist():
            found[i] = batch[i - start].cpu().clone()  # a view would hold its whole batch
        start += len(batch)
    return torch.stack([found[i] for i in wanted.tolist()])


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
    """Share of samples ``[n,D]`` nearer to training than to held-out features, both cut to one size at random."""
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
        rate=rate, standard_error=binomial_error(rate, len(rank)), chance=1 / len(gallery),
        median_rank=float(rank.median()),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Gallery:
    """Images with their features ``[N,D]``, row by row; without images only features are compared."""

    features: Tensor
    images: ImageSet | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Memorization:
    """Nearest training images in feature space and in pixels, shares where held-out images were given, the
    sheet; ``None`` what needs features or images that were not given.
    """

    by_feature: Neighbors | None
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
    batch_size: int = 256,
) -> Memorization:
    """Look for training images among the samples uint8 ``[n,3,H,W]`` with features ``[m,D]``, m ≥ n, those of the
    samples first.

    The feature share is taken over all m, the rest over the n; the sheet shows the 24 most suspicious.
    ``batch_size`` bounds how many images are held at a time. Without features (D = 0) only pixels are compared.
    """
    samples, ours = samples.to(features.device), features[: len(samples)]
    by_feature = nearest(ours, training.features) if features.shape[1] else None
    by_pixel = sheet = feature_share = pixel_share = None
    if heldout is not None:
        sizes = len(training.features), len(heldout.features)
        if features.shape[1]:
            feature_share = closer_to_training(features, training.features, heldout.features, generator=generator)
        else:  # the pixel share draws the same images with and without features
            for size in sizes:
                torch.randperm(size, generator=generator)
        if training.images is not None and heldout.images is not None:
            pixel_share = _pixel_share(samples, (training, heldout), min(sizes), generator, batch_size)
    if training.images is not None:
        by_pixel = nearest_pixels(samples, training.images, batch_size=batch_size)
        kinds = [near for near in (by_feature, by_pixel) if near is not None]
        first = kinds[0].distance.argsort()[:24].cpu()
        found = [pick(training.images, near.index.cpu()[first], batch_size=batch_size) for near in kinds]
        sheet = neighbor_sheet(samples.cpu()[first], *found)
    return Memorization(
        by_feature=by_feature, by_pixel=by_pixel, feature_share=feature_share, pixel_share=pixel_share,
        sheet=sheet,
    )  # fmt: skip


def neighbor_sheet(samples: Tensor, *neighbors: Tensor) -> Image.Image:
    """Groups (sample, nearest by features where known, nearest by pixels) of uint8 images ``[n,3,H,W]``, row by row.

    Small images are enlarged by a whole factor, without smoothing, to at least 64 pixels.
    """
    if any(samples.shape != near.shape for near in neighbors) or not len(samples):
        shapes = ", ".join(str(tuple(t.shape)) for t in (samples, *neighbors))
        raise ValueError(f"expected equal sets of images, got {shapes}")
    columns = min(4, len(samples))
    zoom = max(1, -(-64 // min(samples.shape[2:])))
    groups = torch.cat([samples, *neighbors], dim=3).permute(0, 2, 3, 1)
    groups = groups.repeat_interleave(zoom, dim=1).repeat_interleave(zoom, dim=2).cpu()
    grid = Image.fromarray(tiled(list(groups.numpy()), columns, MARGIN))
    sheet = Image.new("RGB", (grid.width, CAPTION + grid.height), "white")
    sheet.paste(grid, (0, CAPTION))
    titles, draw = (TITLES[0], *TITLES[-len(neighbors) :]), ImageDraw.Draw(sheet)
    for column, (place, title) in product(range(columns), enumerate(titles)):
        left = MARGIN + column * (groups.shape[2] + MARGIN) + place * groups.shape[2] // len(titles)
        draw.text((left, 2), title, fill="black")
    return sheet
