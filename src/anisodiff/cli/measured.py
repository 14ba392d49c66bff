"""What ``anisodiff evaluate`` measures: samples on the disk, or those that a checkpoint makes now.

Both come with their origin. What they are compared with, and how, is told by the verb itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from anisodiff.metrics import Generation, ImageSet, Origin, Workers, generated, image_set, peek, read_origin


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Images [N,C,H,W] that are measured, their height and width, and what is known of how they were made."""

    images: ImageSet
    size: tuple[int, int]
    origin: Origin


def from_checkpoint(
    path: Path, n: int, seed: int, steps: int, sampler: str, prior: str, starts: Path | None,
    where: torch.device, workers: Workers, say: Callable[[str], None],
) -> Samples:  # fmt: skip
    """Samples that a checkpoint makes while they are measured."""
    from anisodiff.generation import load  # a heavy import that samples on the disk do not need

    model = load(path, device=where, images=starts, say=say)
    start, route = model.start(prior), model.route(sampler, steps)
    say(f"{path}: {n} samples, {route.sampler} with {route.nfe} evaluations; prior: {start.description}")
    origin = Origin(
        generation=Generation(nfe=route.nfe, prior=start.name, seed=seed),
        seeds=tuple(range(seed, seed + n)),
        prior_images=None if start.pool is None else start.pool.fingerprint,
        channels=model.channels,
        count=n,
    )
    name = path.resolve().name
    images = generated(model, n, name=name, seed=seed, steps=steps, sampler=sampler, prior=prior, workers=workers)
    return Samples(images=images, size=model.size, origin=origin)


def from_disk(path: Path, say: Callable[[str], None]) -> Samples:
    """Samples that were made before."""
    if path.is_dir() and ((path / "checkpoints").is_dir() or (path / "model.safetensors").is_file()):
        raise ValueError(f"{path} holds a model, not samples; measure what it makes with --from {path}")
    images, origin = image_set(path), read_origin(path)
    if None not in (origin.count, images.count) and origin.count != images.count:
        say(f"{path} holds {images.count} images, its protocol says {origin.count}: are they complete?")
    return Samples(images=images, size=peek(images, 1)[0], origin=origin)
