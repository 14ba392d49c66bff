"""What is known of how samples were made: from the protocol beside them, or from the model that makes them now.

    FOLDER/protocol.json, FILE.zip.json (or protocol.json within the zip), FILE.npz.json

Keys, none of them needed: evaluations, prior, seed, seeds, count, channels, prior_images (fingerprints),
sources.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from anisodiff.data.dataset import is_dataset, open_dataset, shape_line
from anisodiff.io.archives import open_zip
from anisodiff.metrics.cache import Say, silent
from anisodiff.metrics.images import ImageSet, walk
from anisodiff.metrics.protocol import Generation

NAME = "protocol.json"
ORDERED = 10**8  # samples are named by eight digits: from here on names and seeds sort differently


@dataclass(frozen=True, kw_only=True)
class Origin:
    """How samples were made; ``prior_images``: fingerprint of the images, in order, that the prior starts from."""

    generation: Generation = Generation()
    seeds: tuple[int, ...] | None = None
    prior_images: str | None = None
    channels: int = 3
    count: int | None = None


def _number(values: Mapping[str, Any], key: str) -> int | None:
    value = values.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    return value if isinstance(value, str) and value else None


def _inside(samples: Path) -> bytes | None:
    """The protocol that travels within a zip."""
    if samples.suffix.lower() != ".zip" or not zipfile.is_zipfile(samples):
        return None
    with open_zip(samples) as archive:
        return archive.read(NAME) if NAME in archive.namelist() else None


def read_origin(samples: Path) -> Origin:
    """The protocol that lies in a folder of samples or beside their file; an empty one where there is none."""
    place = samples / NAME if samples.is_dir() else samples.with_name(f"{samples.name}.json")
    text = None if place.is_file() else _inside(samples)
    if text is not None:
        place = samples / NAME  # the one within
    elif not place.is_file():
        return Origin()
    try:
        values = json.loads(place.read_bytes() if text is None else text)
    except (OSError, ValueError) as error:
        raise ValueError(f"{place}: not a readable protocol of samples ({error})") from error
    if not isinstance(values, dict):
        raise ValueError(f"{place}: expected an object with the keys of a protocol, got {type(values).__name__}")
    sources, seeds = values.get("sources"), _text(values, "seeds")
    if sources is not None and not (isinstance(sources, list) and all(isinstance(i, int) for i in sources)):
        raise ValueError(f"{place}: sources must be a list of whole numbers, one a sample")
    parsed = None
    if seeds is not None:
        from anisodiff.generation import parse_seeds

        parsed = parse_seeds(seeds)
    return Origin(
        generation=Generation(
            nfe=_number(values, "nfe"),
            prior=_text(values, "prior"),
            seed=_number(values, "seed"),
            sources=None if sources is None else tuple(sources),
        ),
        seeds=parsed,
        prior_images=_text(values, "prior_images"),
        channels=_number(values, "channels") or 3,
        count=_number(values, "count"),
    )


def ordered_fingerprint(images: ImageSet, path: Path, channels: int) -> tuple[str, int]:
    """sha256 of all pixels in order, as of a prepared dataset, and the number of images."""
    if path.is_dir() and is_dataset(path):
        dataset = open_dataset(path)
        return dataset.fingerprint, len(dataset)
    total, count, size = hashlib.sha256(), 0, (0, 0)
    for batch in walk(images, 1024):
        total.update(batch[:, :channels].contiguous().numpy().tobytes())
        count, size = count + len(batch), (batch.shape[2], batch.shape[3])
    total.update(shape_line((count, channels, *size)))
    return total.hexdigest(), count


def sources_of(seeds: tuple[int, ...], count: int) -> tuple[int, ...]:
    """Which of ``count`` images each seed starts from under a prior that starts from images."""
    from anisodiff.generation.reverse import START, keys_of
    from anisodiff.noise import KeyedNoise
    from anisodiff.priors import choose

    # Pictures of one pixel that says which it is go through the very function that picks images for a prior.
    numbered = torch.arange(count, dtype=torch.float64).view(-1, 1, 1, 1)
    noise = KeyedNoise(keys_of(seeds, START, torch.device("cpu")))
    return tuple(int(i) for i in choose(numbered, len(seeds), noise).flatten())


def find_sources(
    origin: Origin, samples: int | None, reference: ImageSet, path: Path, *, say: Say = silent
) -> tuple[int, ...] | None:
    """Which image of the reference each sample started from, or ``None`` where that is unknown or of no meaning.

    ``samples``: how many samples the container holds; ``path``: where the reference lies.
    """
    if origin.generation.sources is not None:
        return origin.generation.sources
    if origin.prior_images is None or origin.seeds is None or origin.generation.prior in (None, "gaussian"):
        return None
    reason, count = "", 0
    if samples is not None and samples != len(origin.seeds):
        reason = f"{samples} samples, but {len(origin.seeds)} seeds"
    elif len(origin.seeds) > 1 and origin.seeds[-1] >= ORDERED:
        reason = "seeds of more than eight digits"
    else:
        found, count = ordered_fingerprint(reference, path, origin.channels)
        if found != origin.prior_images:
            reason = f"the prior started from other images than {reference.name}"
    if reason:
        say(f"recovery of sources is not measured: {reason}")
        return None
    return sources_of(origin.seeds, count)
