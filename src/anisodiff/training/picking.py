"""A config for one's own images: size, network, batch and length from the images and the device.

                   images                size at most      network     batch                       images seen
    GPU            < 10,000              64                small       512 at 32², 256 at 64²,     400 passes,
                   < 50,000              128               small¹      128 at 128², 64 above       1 M to 50 M
                   more                  256               base
    Apple GPU      any                   64                tiny        64                          1 M
    CPU            any                   32                tiny²       32                          400,000

With an autoencoder, sizes are those of its latents, and images are at most 256².

¹ `base` from 20,000 images on. ² Of half the width (0.8 M parameters), three times as fast. Where the memory of a GPU
is too small for a batch, it is cut into parts (`accumulation`), which changes no result. The process is
`registry.DEFAULT_PROCESS`, and everything else is as in the short recipes. These are choices, not findings:
docs/results has what was measured.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from anisodiff.data import Dataset, Source, class_folders, guess
from anisodiff.notation import counted
from anisodiff.registry import DEFAULT_PROCESS, NETWORKS
from anisodiff.training.config import TrainConfig, scaled
from anisodiff.training.model import Plan
from anisodiff.training.recipes import config_of
from anisodiff.training.setup import with_classes

_PASSES, _SHORTEST, _LONGEST = 400, 1_000_000, 50_000_000
_BYTES = {"tiny": 10e3, "small": 12e3, "base": 23e3}
"""Memory of a training step per image and pixel: 11.4 GiB for 512 images of 32² with `base` (H200, bf16)."""
_LARGEST_SIDE = 256
_LARGEST = 35e3
"""The same of the published networks: 16.7 GiB."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What picking asks of a device; ``memory`` in bytes, asked of GPUs alone."""

    kind: str
    memory: float = math.inf
    bf16: bool = False

    @classmethod
    def of(cls, device: torch.device | str) -> "Machine":
        where = torch.device(device)
        if where.type == "cuda":
            properties = torch.cuda.get_device_properties(where)
            return cls(kind="cuda", memory=properties.total_memory, bf16=properties.major >= 8)
        return cls(kind=where.type)

    def largest_side(self, count: int) -> int:
        """The largest picture that ``count`` images are worth training at."""
        if self.kind != "cuda":
            return 64 if self.kind == "mps" else 32
        return 64 if count < 10_000 else 128 if count < 50_000 else 256


def for_images(
    count: int, channels: int, size: tuple[int, int], machine: Machine, process: str = DEFAULT_PROCESS,
    changes: Mapping[str, Any] | None = None, classes: int = 0,
) -> tuple[TrainConfig, str]:  # fmt: skip
    """A config for ``count`` images of one's own, with ``changes``; and one line that describes it.

    ``classes``: how many the images have, whether they are to be learned or not.
    """
    latent = (changes or {}).get("latent") or {}
    side, gpu = max(size) // latent.get("factor", 1), machine.kind == "cuda"
    if gpu:
        batch = 512 if side <= 32 else 256 if side <= 64 else 128 if side <= 128 else 64
        network = "small" if count < 20_000 or machine.memory < 10e9 else "base"
        images = min(max(_PASSES * count, _SHORTEST), _LONGEST)
    else:
        batch, network, images = (64, "tiny", _SHORTEST) if machine.kind == "mps" else (32, "tiny", 400_000)
    narrow = machine.kind == "cpu" and not {"network", "network.name"} & set(changes or {})
    arguments = {"name": network, "dropout": 0.1 if gpu else 0.0, **({"nf": 32} if narrow else {})}
    images -= images % batch
    config = scaled(config_of(
        process, network=arguments, size=size, channels=channels, batch=batch, images=images,
        lr=4e-4 if side <= 64 else 2e-4, warm_up=min((100 if gpu else 50) * batch, images // 20),
        ema=("constant(0.9995)",), recompute=side > 128, calibration=2048 if gpu else 512,
        log_every=50 * batch, checkpoint_every=max(100 * batch, images // 50),
        sample_every=max(200 * batch, images // 20), precision="bf16" if machine.bf16 else "fp32",
    ), changes or {})  # fmt: skip
    if config.recompute and "recompute" not in (changes or {}) and str(config.network["name"]) not in NETWORKS:
        config = replace(config, recompute=False)  # a network of one's own cannot
    if gpu and "accumulation" not in (changes or {}):
        config = replace(config, accumulation=_parts(config, machine))
    return config, describe(config, count, machine, classes)


def _parts(config: TrainConfig, machine: Machine) -> int:
    """Into how many equal parts a batch is cut, so that one fits into 70% of the memory."""
    _, height, width = config.state_shape
    needed = height * width * _BYTES.get(str(config.network["name"]), _LARGEST) * (0.25 if config.recompute else 1.0)
    divisors = [n for n in range(1, config.batch + 1) if config.batch % n == 0]
    return next((n for n in divisors if config.batch // n * needed <= 0.7 * machine.memory), config.batch)


def for_source(
    source: Source, machine: Machine, process: str = DEFAULT_PROCESS, changes: Mapping[str, Any] | None = None,
    aside: int = 0,
) -> tuple[TrainConfig, str]:  # fmt: skip
    """`for_images` for pictures that are not prepared yet, ``aside`` of them held out; size and channels are guessed.

    Contradictions show here, before hours of preparing.
    """
    given = {key: value for key, value in (changes or {}).items() if key in ("size", "channels")}
    asked, count = TrainConfig.from_dict(given), len(source) - aside
    factor = ((changes or {}).get("latent") or {}).get("factor", 1)
    seen = guess(source, largest=min(_LARGEST_SIDE, factor * machine.largest_side(count)))
    size, channels = (getattr(asked if key in given else seen, key) for key in ("size", "channels"))
    if "size" not in given:
        size = tuple(side // factor * factor for side in size)
    classes = class_folders(source)
    config, _ = for_images(count, channels, size, machine, process, changes, classes)
    Plan.of(config)
    return config, describe(config, count, machine, classes, at_most=source.shape is None)


def for_dataset(
    dataset: Dataset, machine: Machine, process: str = DEFAULT_PROCESS, changes: Mapping[str, Any] | None = None,
    classes: int = 0,
) -> tuple[TrainConfig, str]:  # fmt: skip
    """`for_images` for a prepared dataset; ``classes``: how many its source has, where it was prepared without."""
    count = len(dataset.classes) or classes
    config, words = for_images(len(dataset), dataset.channels, dataset.size, machine, process, changes, count)
    return with_classes(config, dataset), words


def _latents(config: TrainConfig) -> str:
    if not config.latent:
        return ""
    return f"latents {'×'.join(map(str, config.state_shape))} of {config.latent['autoencoder']}, "


def describe(config: TrainConfig, count: int, machine: Machine, classes: int = 0, *, at_most: bool = False) -> str:
    """One line: what was picked, and how to change it; ``at_most``: of ``count`` files some may not be decoded."""
    known = f", {classes} classes" if config.classes and classes > 1 else ""
    if classes > 1 and not config.classes:
        known = f", unconditional (--classes learns the {classes} classes)"
    width = f" (nf={config.network['nf']})" if "nf" in config.network else ""
    color = ", grayscale" if config.channels == 1 else f", {config.channels} channels" * (config.channels != 3)
    return (
        f"picked for {'up to ' * at_most}{counted(count, 'image', ',')} on {machine.kind}: "
        f"{config.size[0]}×{config.size[1]}{color}, {_latents(config)}"
        f"process {config.process['preset']}, network {config.network['name']}{width}, "
        f"batch {config.batch}, {config.images_seen:,} images seen{known}; "
        "change with --set size=…, --set network.name=…, --set batch=…, --images N"
    )
