"""Strokes to images: a painting as the canvas sends it, strokes of a photograph, the noised input, and edits."""

import shlex
from pathlib import Path

import torch
from torch import Tensor

from anisodiff.editing import edit, noise_level, noised, strokes
from anisodiff.editing.strength import time_of
from anisodiff.generation import Generator, SamplingConfig
from anisodiff.io.images import Fit, to_unit
from anisodiff.registry import process
from anisodiff.studio.generate import Watch, class_of, class_options, tell_state
from anisodiff.studio.pictures import opened
from anisodiff.studio.queue import Job

CARTOON = "gallery-anisotropic-drift"
"""The preset whose coefficients a cartoon changes: a Perona–Malik drift without noise."""


def read_painting(address: str, generator: Generator) -> Tensor:
    """The painting [C, H, W] in the model's shape, in [0, 1]; where it is transparent it is white."""
    image = opened(address, "the painting")
    return to_unit(Fit(size=generator.size, channels=generator.channels)(image))


def read_mask(address: str | None, generator: Generator) -> Tensor | None:
    """The mask [1, H, W], True where it was painted; None where there is none, or nothing was painted."""
    if address is None:
        return None
    image = opened(address, "the mask").convert("RGBA").getchannel("A")
    found = to_unit(Fit(size=generator.size, channels=1)(image)) > 0.5
    return found if bool(found.any()) else None


def kmeans(job: Job, photo: Tensor, *, colors: int, smooth: int, position: float) -> None:
    """Emit the strokes of a photograph [C, H, W] by k-means."""
    tell_state(job, "painting", strokes(photo, colors, position=position, smooth=smooth))


def cartoon(job: Job, photo: Tensor, *, edge: float, amount: float) -> None:
    """Emit the photograph smoothed between its edges: λ1 = ``edge``, ∫α1 dt = ``amount``."""
    shape = max(photo.shape[-2:])
    flow = process(CARTOON, shape, drift_anisotropy=edge, diffusivity=amount / 2.0, T=2.0)
    tell_state(job, "painting", flow.simulate(photo[None], flow.T)[0].clamp(0, 1))


def show_noised(job: Job, generator: Generator, painting: Tensor, *, strength: float, seed: int) -> None:
    """Emit what the edit starts from: the painting run forward to the strength's time."""
    t = time_of(generator, None, strength)
    state = generator.decode(noised(generator, painting[None], seeds=[seed], strength=strength))[0]
    tell_state(job, "noised", state, t=t, level=noise_level(strength), strength=strength)


def paint(
    job: Job, generator: Generator, painting: Tensor, mask: Tensor | None, config: SamplingConfig, *,
    strength: float, seeds: list[int], path: str | Path,
) -> None:  # fmt: skip
    """Emit one candidate for every seed, with its way from the noised input."""
    reverse = generator.reverse_process(config, time_of(generator, None, strength))
    words = [
        "anisodiff",
        "edit",
        str(path),
        "painting.png",
        "--strength",
        f"{strength:g}",
        "--steps",
        str(config.steps),
    ]
    words += ["--mask", "mask.png"] if mask is not None else []
    words += ["--sampler", str(config.sampler)] if config.sampler != "auto" else []
    words += class_options(config)
    words += ["--seed", str(seeds[0]), "--candidates", str(len(seeds)), "--out", "edits"]
    job.emit({"kind": "protocol", "command": shlex.join(words), "sampler": str(reverse.sampler), "nfe": reverse.nfe})
    several = painting[None].expand(len(seeds), *painting.shape)
    made = edit(
        generator, several, config, seeds=seeds, strength=strength, mask=mask,
        callback=Watch(job, generator, reverse, len(seeds)),
    )  # fmt: skip
    if mask is not None:  # outside of it the painting stays
        for seed, image in zip(seeds, made.as_subclass(torch.Tensor)):
            tell_state(job, "image", image, seed=seed, name=class_of(reverse, seed))
