"""Named networks, with their trained parameters for RGB in and out:

    cifar10        62,758,787   NCSN++ cont. of Song et al. 2021, 32²
    cifar10-deep  107,586,947   the same with eight blocks a level
    celeba64       62,758,787   the same as cifar10 for 64² (also ImageNet 64²); attention still at 16²
    lsun256        65,574,421   256²: seven levels, two blocks, image pyramids in and out, no dropout
    tiny            3,191,043   for models that ship with a package; 64 channels at every level, three blocks
    small           6,807,363   for CPUs and first tries; attention in the middle only
    base           27,971,715   for short runs on one large GPU (at 32² and 64²; more levels add more)

`tiny`, `small` and `base` keep NCSN++'s blocks and leave out FIR filters and progressive paths: these are passes over
full-resolution features that do almost no arithmetic, while a large GPU in bfloat16 waits for memory, not for
arithmetic, at 32². Three levels (32, 16, 8) put the arithmetic into 3×3 convolutions of 128 and 256 channels,
widths that fill tensor cores (64 and 128 in `small`). For other image sizes the last level is repeated until
the coarsest is at most 16 pixels wide, where attention is cheap and the receptive field covers the image; the
attention of `base` stands at the resolution nearest to 16.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from anisodiff import notation
from anisodiff.networks.base import NetworkSpec
from anisodiff.networks.config import NCSNppConfig
from anisodiff.networks.ncsnpp import NCSNpp

_CIFAR10 = NCSNppConfig()  # the defaults are that recipe

_PUBLISHED = {
    "cifar10": _CIFAR10,
    "cifar10-deep": replace(_CIFAR10, blocks=8),
    "celeba64": replace(_CIFAR10, image_size=64),
    "lsun256": NCSNppConfig(
        image_size=256,
        multipliers=(1, 1, 2, 2, 2, 2, 2),
        blocks=2,
        dropout=0.0,
        progressive="output_skip",
        progressive_input="input_skip",
    ),
}

_BASE = NCSNppConfig(multipliers=(1, 2, 2), blocks=2, fir=False, progressive_input="none")

_SCALABLE = {
    "tiny": replace(_BASE, nf=64, multipliers=(1, 1, 1), blocks=3),
    "small": replace(_BASE, nf=64, attention=()),
    "base": _BASE,
}

SIZES = (*_PUBLISHED, *_SCALABLE)


def _fit(config: NCSNppConfig, image_size: int) -> NCSNppConfig:
    """The levels and the attention of a scalable size for images of the given side."""
    multipliers = list(config.multipliers)
    while image_size >> (len(multipliers) - 1) > 16 and image_size % 2 ** len(multipliers) == 0:
        multipliers.append(multipliers[-1])
    while image_size % 2 ** (len(multipliers) - 1):
        multipliers.pop()
    resolutions = [image_size >> level for level in range(len(multipliers))]
    nearest = min(resolutions, key=lambda r: abs(math.log(r / 16)))
    # an odd side cannot be halved: attention over all its pixels only where that is affordable
    attention = (nearest,) if config.attention and nearest <= 32 else ()
    return replace(config, image_size=image_size, multipliers=tuple(multipliers), attention=attention)


def ncsnpp_config(
    name: str, *, image_size: int | None = None, in_channels: int = 3, out_channels: int | None = None
) -> NCSNppConfig:
    """The configuration of a named size.

    image_size    side of the images; the published sizes have their own and take no other
    out_channels  default: as many as in_channels
    """
    if name not in SIZES:
        raise ValueError(f"unknown NCSN++ {name!r}; {notation.nearest(name, SIZES)}")
    if name in _SCALABLE:
        config = _fit(_SCALABLE[name], image_size or _BASE.image_size)
    else:
        config = _PUBLISHED[name]
        if image_size not in (None, config.image_size):
            raise ValueError(
                f"network size {name!r}: got image_size {image_size}, expected {config.image_size} as "
                "published; take 'small' or 'base', or dataclasses.replace the configuration"
            )
    return replace(
        config, in_channels=in_channels, out_channels=in_channels if out_channels is None else out_channels
    )


_KEYS = tuple(
    f.name for f in dataclasses.fields(NCSNppConfig) if f.name not in ("image_size", "in_channels", "out_channels")
)


def ncsnpp_spec(
    name: str, size: tuple[int, int], in_channels: int, out_channels: int, keys: Mapping[str, Any]
) -> NetworkSpec:
    """A named NCSN++ for images of ``size`` (H, W), with ``keys`` of `NCSNppConfig` over it."""
    for key in keys:
        if key not in _KEYS:
            raise ValueError(f"network: unknown key {key!r}; {notation.nearest(str(key), _KEYS)}")
    channels = {"in_channels": in_channels, "out_channels": out_channels}
    # of a rectangle either side may be the nominal one: the first whose levels fit both
    for side in (max(size), min(size)):
        found = replace(ncsnpp_config(name, image_size=side, **channels), **keys)
        if all(length % found.factor == 0 for length in size):
            return NetworkSpec(name=name, arguments=dataclasses.asdict(found), make=_make)
    raise ValueError(
        f"network: images of {size[0]}×{size[1]} cannot be halved {found.levels - 1} times; "
        f"choose sides that are multiples of {found.factor}, or fewer network.multipliers"
    )


def _make(arguments: Mapping[str, Any], generator: torch.Generator, recompute: bool) -> NCSNpp:
    return NCSNpp(NCSNppConfig(**arguments), generator=generator, checkpoint=recompute)
