"""One pass over a set of images that collects all that the metrics need.

images ──network──▶ features, logits;   images ──▶ pixel statistics, fingerprint

Of W processes, process r handles the batches r, r+W, r+2W, …; all gather the results in the order of the batches, so
every process ends with the numbers that a single one would have found.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from anisodiff.metrics.features import FeatureNetwork
from anisodiff.metrics.frechet import GaussianStatistics, gaussian_statistics, require_features
from anisodiff.metrics.images import UNCHANGED, ImageSet, fingerprint_of, image_digests, read_batches
from anisodiff.metrics.pixel_metrics import PixelStatistics, directions, pixel_statistics
from anisodiff.metrics.protocol import Settings
from anisodiff.runtime.distributed import Distributed
from anisodiff.runtime.progress import no_stage_progress

Say = Callable[[str], None]


def silent(message: str) -> None:
    """Say nothing."""


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/anisodiff``, or ``~/.cache/anisodiff``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "anisodiff"


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where statistics are cached, how progress is reported, and which processes share the work."""

    cache: Path = field(default_factory=cache_folder)
    say: Say = silent
    progress: Callable[[str, int, int | None], None] = no_stage_progress
    """Gets (stage, done, total)."""
    sheet: Callable[[Image.Image], None] | None = None
    """Receives a picture of samples beside their nearest reference images; their statistics alone allow none."""
    distributed: Distributed | None = None

    @property
    def rank(self) -> int:
        return 0 if self.distributed is None else self.distributed.rank

    @property
    def world(self) -> int:
        return 1 if self.distributed is None else self.distributed.world

    def gather(self, value: Any) -> list[Any]:
        return [value] if self.distributed is None else self.distributed.gather(value)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageStatistics:
    """Statistics of N images of one size; features ``[N,D]`` on the network's device.

    Rows are in the order in which the images are read. ``digests``: one hash per image; ``kept``: the first images,
    uint8 ``[n,3,H,W]`` on the CPU. ``split``: the part of a named set, where known. ``resize``: how the images were
    brought to their size.
    """

    name: str
    size: tuple[int, int]
    digests: tuple[bytes, ...]
    features: Tensor
    logits: Tensor | None
    gaussian: GaussianStatistics
    pixels: PixelStatistics
    kept: Tensor
    split: str = ""
    resize: str = UNCHANGED

    @property
    def count(self) -> int:
        return len(self.features)

    def by_digest(self, rows: Tensor) -> Tensor:
        """Rows ``[N,…]``, one an image, in the order of the digests: names change no draw."""
        order = sorted(range(len(self.digests)), key=self.digests.__getitem__)
        return rows[torch.tensor(order, device=rows.device)]

    @property
    def fingerprint(self) -> str:
        """The same for the same pixels in any container, in any order."""
        return fingerprint_of(self.digests)


class _Rows:
    """Rows ``[n,…]`` in one growing tensor.

    A small tensor kept from every batch would pin the heap between the large ones that come and go.
    """

    def __init__(self, expected: int) -> None:
        self._expected, self._count = expected, 0
        self._held = torch.empty(0)

    def add(self, part: Tensor) -> None:
        end = self._count + len(part)
        if end > len(self._held):
            length = max(end, self._expected, 2 * self._count)
            grown = part.new_empty(length, *part.shape[1:])
            if self._count:
                grown[: self._count] = self._held[: self._count]
            self._held = grown
        self._held[self._count : end] = part
        self._count = end

    def join(self) -> Tensor:
        return self._held if self._count == len(self._held) else self._held[: self._count].clone()


def _interleave(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Batch k of all is batch k // W of process k mod W."""
    return [piece for batches in zip_longest(*parts) for piece in batches if piece is not None]


def image_statistics(
    images: ImageSet,
    network: FeatureNetwork,
    *,
    settings: Settings | None = None,
    keep: int = 0,
    stage: str = "",
    context: Context | None = None,
) -> ImageStatistics:
    """Read at most ``settings.limit`` images, and keep the first ``keep``.

    A set that can be read only once is taken as each process's own part of the whole.
    """
    settings, context = settings or Settings(), context or Context()
    batch_size, limit, world = settings.batch_size, settings.limit, context.world
    total = images.count if limit is None or images.count is None else min(limit, images.count)
    device = torch.device("cpu") if world > 1 else network.device  # gathered results travel by the CPU
    expected = (total or 0) if world == 1 or images.once or not total else total // world + batch_size
    rows: dict[str, _Rows] = {}
    sizes: list[int] = []
    kept: list[Tensor] = []
    theta: Tensor | None = None
    size, done, stage = (0, 0), 0, stage or f"samples of {images.name}"
    context.progress(stage, 0, total)  # so that the first batch counts for the remaining time
    for order, batch in enumerate(read_batches(images, batch_size, limit=limit)):
        done += len(batch)
        size = (batch.shape[2], batch.shape[3])
        if images.once or order % world == context.rank:
            if theta is None:
                theta = directions(3 * size[0] * size[1], settings.projections, generator=settings.generator())
                theta = theta.to(network.device)
            if done - len(batch) < keep:
                kept.append(batch.cpu())
            found = {"digests": torch.frombuffer(bytearray(b"".join(image_digests(batch))), dtype=torch.uint8)}
            found["digests"] = found["digests"].view(len(batch), -1)
            batch = batch.to(network.device)
            features, logits = network(batch, pad_to=batch_size if sizes else 0)
            sums = pixel_statistics(batch, theta)
            found |= {"features": features.to(device), "projections": sums.pop("projections")}
            if logits is not None:
                found["logits"] = logits.to(device)
            for name, tensor in found.items():
                rows.setdefault(name, _Rows(expected)).add(tensor)
            for name, tensor in sums.items():
                rows.setdefault(name, _Rows(-(-expected // len(batch)))).add(tensor[None])
            sizes.append(len(batch))
        context.progress(stage, done, total)
    parts = context.gather(({name: held.join() for name, held in rows.items()}, sizes, kept))
    held = _merged([(tensors, counts) for tensors, counts, _ in parts if counts])
    first = _interleave([pieces for _, _, pieces in parts])
    joined, logits = held["features"].to(network.device), held.get("logits")
    sums = {name: held[name].sum(dim=0) for name in ("spectrum", "orientation", "coherence", "magnitude")}
    return ImageStatistics(
        name=images.name, size=size, digests=tuple(row.tobytes() for row in held["digests"].numpy()),
        features=require_features(joined, f"{network.name} features of {images.name}"),
        logits=None if logits is None else logits.to(network.device), gaussian=gaussian_statistics(joined),
        pixels=PixelStatistics.of({**sums, "projections": held["projections"]}),
        kept=torch.cat(first)[:keep] if first else torch.empty(0, 3, *size, dtype=torch.uint8),
        resize=images.resize,
    )  # fmt: skip


def _merged(parts: Sequence[tuple[dict[str, Tensor], list[int]]]) -> dict[str, Tensor]:
    """The rows of all processes in the order of the batches; pixel sums have one row per batch."""
    if len(parts) == 1:
        return parts[0][0]

    def pieces(tensor: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
        return torch.split(tensor, sizes if len(tensor) == sum(sizes) else 1)

    return {
        name: torch.cat(_interleave([pieces(tensors[name], sizes) for tensors, sizes in parts]))
        for name in parts[0][0]
    }
