"""The configuration of NCSN++ (Song et al. 2021, appendix H), and named sizes.

Level l = 0 … L−1 has the resolution (H/2^l) × (W/2^l) and nf·multipliers[l] channels. `image_size` is nominal: it
only determines the levels with attention; the network runs on any H×W divisible by 2^(L−1).

Named sizes, with their trained parameters for RGB in and out:

    cifar10        62,758,787   NCSN++ cont. of Song et al. 2021, 32²
    cifar10-deep  107,586,947   the same with eight blocks a level
    celeba64       62,758,787   the same as cifar10 for 64² (also ImageNet 64²); attention still at 16²
    lsun256        65,574,421   256²: seven levels, two blocks, image pyramids in and out, no dropout
    tiny            3,191,043   for models that ship with a package; 64 channels at every level, three blocks
    small           6,807,363   for CPUs and first tries; attention in the middle only
    base           27,971,715   for short runs on one large GPU (at 32² and 64²; more levels add more)

`tiny`, `small` and `base` have the blocks of NCSN++ without FIR filters and progressive paths, which are bound by
memory bandwidth on a large GPU. Three levels (32, 16, 8) put the arithmetic into 3×3 convolutions of 128 and 256
channels (64 and 128 in `small`). For other image sizes the last level is repeated until the coarsest is at most 16
pixels wide; the attention of `base` is at the resolution nearest to 16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from anisodiff import notation

Progressive = Literal["none", "output_skip", "residual"]
ProgressiveInput = Literal["none", "input_skip", "residual"]
Combine = Literal["sum", "cat"]
Block = Literal["biggan", "ddpm"]
Embedding = Literal["fourier", "positional"]

MOST_CLASSES = 1 << 16
_MOST = {"image_size": 1 << 16, "in_channels": 4096, "out_channels": 4096, "nf": 1 << 14, "blocks": 256}


@dataclass(frozen=True, kw_only=True)
class NCSNppConfig:
    """NCSN++ (continuous); the defaults are Song et al.'s CIFAR-10 recipe.

    image_size         nominal side in pixels; places the attention
    in_channels        channels of x[B, in, H, W]
    out_channels       channels of the output [B, out, H, W]; may differ from in_channels
    nf                 base width; the embedding has 4·nf units
    multipliers        width of each level over nf; each further level halves the resolution
    blocks             residual blocks per level on the way down (one more on the way up)
    attention          nominal resolutions with self-attention (the middle always has it)
    dropout            probability of dropping a unit, used only when the network is given keys
    progressive        how the output is collected over the levels
    progressive_input  how the downsampled input is fed to the levels
    combine            how `input_skip` joins the image pyramid to the features
    fir                [1,3,3,1] resampling (StyleGAN2); off: nearest and average pooling
    block              residual block: BigGAN (resamples inside) or DDPM (convolutions between levels)
    embedding          random Fourier features (frozen, of standard deviation fourier_scale) or sinusoidal
    skip_rescale       divide every residual sum by √2
    qk_norm            normalize queries and keys of the attention: logits stay below √channels
    init_scale         variance scale of the last layer of each residual branch at the start; 0 means 1e-10
    classes            number of classes, without the null label; 0: unconditional
    """

    image_size: int = 32
    in_channels: int = 3
    out_channels: int = 3
    nf: int = 128
    multipliers: tuple[int, ...] = (1, 2, 2, 2)
    blocks: int = 4
    attention: tuple[int, ...] = (16,)
    dropout: float = 0.1
    progressive: Progressive = "none"
    progressive_input: ProgressiveInput = "residual"
    combine: Combine = "sum"
    fir: bool = True
    block: Block = "biggan"
    embedding: Embedding = "fourier"
    fourier_scale: float = 16.0
    skip_rescale: bool = True
    qk_norm: bool = False
    init_scale: float = 0.0
    classes: int = 0

    def __post_init__(self) -> None:
        for name, most in _MOST.items():
            value = getattr(self, name)
            if not _whole(value) or value < 1:
                raise ValueError(f"{name}: got {value!r}, expected an integer ≥ 1")
            if value > most:  # it would be built for minutes, or not fit into any memory
                raise ValueError(f"{name}: got {value}, expected {most} at most")
        if not _whole(self.classes) or not 0 <= self.classes <= MOST_CLASSES:
            raise ValueError(f"classes: got {self.classes!r}, expected an integer from 0 to {MOST_CLASSES}")
        # JSON has lists; the config must be hashable
        for name in ("multipliers", "attention"):
            value = getattr(self, name)
            if not isinstance(value, list | tuple) or not all(map(_whole, value)):
                raise ValueError(f"{name}: got {value!r}, expected a list of integers")
            object.__setattr__(self, name, tuple(value))
        for name in ("fir", "skip_rescale", "qk_norm"):  # any word would count as true
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected true or false")
        for name in ("dropout", "fourier_scale", "init_scale"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise ValueError(f"{name}: got {value!r}, expected a number")
        if len(self.multipliers) > 16 or max(self.multipliers, default=0) > 1024:
            raise ValueError(f"multipliers: got {self.multipliers[:20]}, expected 16 levels of 1024 at most")
        if not self.multipliers or min(self.multipliers) < 1:
            raise ValueError(f"multipliers: got {self.multipliers}, expected one integer ≥ 1 per level")
        if self.image_size % self.factor:
            raise ValueError(
                f"image_size: got {self.image_size}, expected a multiple of {self.factor} "
                f"for {self.levels} levels; take fewer multipliers or pad the images"
            )
        missing = [r for r in self.attention if r not in self.resolutions]
        if missing:
            raise ValueError(
                f"attention: got {missing[0]}, expected some of the levels' resolutions {self.resolutions}; "
                f"the middle (at {self.resolutions[-1]}) has attention anyway"
            )
        for name, choices in (
            ("progressive", Progressive),
            ("progressive_input", ProgressiveInput),
            ("combine", Combine),
            ("block", Block),
            ("embedding", Embedding),
        ):
            if getattr(self, name) not in get_args(choices):
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected one of {get_args(choices)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: got {self.dropout}, expected 0 ≤ dropout < 1")
        if self.fourier_scale <= 0:
            raise ValueError(f"fourier_scale: got {self.fourier_scale}, expected > 0")
        if self.init_scale < 0:
            raise ValueError(f"init_scale: got {self.init_scale}, expected ≥ 0 (0 starts at almost nothing)")
        # GroupNorm has min(ch/4, 32) groups, which must divide the channels, also after concatenation
        joined = 3 if (self.progressive_input, self.combine) == ("input_skip", "cat") else 2
        widest = joined * self.nf * max(self.multipliers)
        if self.nf % 32 and (self.nf % 4 or widest > 128):
            raise ValueError(
                f"nf: got {self.nf}, expected a multiple of 32, or a multiple of 4 with "
                f"{joined}·nf·max(multipliers) ≤ 128, so that the groups of GroupNorm divide the channels"
            )

    @property
    def levels(self) -> int:
        return len(self.multipliers)

    @property
    def factor(self) -> int:
        """2^(L−1): height and width must be multiples of it."""
        return 1 << (self.levels - 1)

    @property
    def resolutions(self) -> tuple[int, ...]:
        """Nominal resolution of each level."""
        return tuple(self.image_size // 2**level for level in range(self.levels))


def _whole(value: Any) -> bool:
    """Whether ``value`` is an integer and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


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
    # an odd side cannot be halved: attention only if the image is small
    attention = (nearest,) if config.attention and nearest <= 32 else ()
    return replace(config, image_size=image_size, multipliers=tuple(multipliers), attention=attention)


def ncsnpp_config(
    name: str, *, image_size: int | None = None, in_channels: int = 3, out_channels: int | None = None
) -> NCSNppConfig:
    """The configuration of a named size.

    image_size    side of the images; the published sizes have their own and take no other
    out_channels  default: as many as in_channels
    """
    notation.check_choice(name, SIZES, "NCSN++")
    if name in _SCALABLE:
        config = _fit(_SCALABLE[name], image_size or _BASE.image_size)
    else:
        config = _PUBLISHED[name]
        if image_size not in (None, config.image_size):
            raise ValueError(
                f"network size {name!r}: got image_size {image_size}, expected {config.image_size} as "
                "published; take 'small' or 'base'"
            )
    return replace(
        config, in_channels=in_channels, out_channels=in_channels if out_channels is None else out_channels
    )
