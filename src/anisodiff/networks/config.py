"""Which NCSN++: every switch of Song et al. 2021 (appendix H) as one frozen configuration.

Level l = 0 … L−1 works at (H/2^l) × (W/2^l) with nf·multipliers[l] channels. `image_size` is nominal: it only
decides on which levels attention stands; the network runs on any H×W divisible by 2^(L−1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

Progressive = Literal["none", "output_skip", "residual"]
ProgressiveInput = Literal["none", "input_skip", "residual"]
Combine = Literal["sum", "cat"]
Block = Literal["biggan", "ddpm"]
Embedding = Literal["fourier", "positional"]


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
    init_scale         variance scale of the last layer of each residual branch at the start; 0 means 1e-10
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
    init_scale: float = 0.0

    def __post_init__(self) -> None:
        for name in ("image_size", "in_channels", "out_channels", "nf", "blocks"):
            value = getattr(self, name)
            if not _whole(value) or value < 1:
                raise ValueError(f"{name}: got {value!r}, expected an integer ≥ 1")
        # JSON gives lists back: both are welcome, the tuple is what is kept (the config must hash)
        for name in ("multipliers", "attention"):
            value = getattr(self, name)
            if not isinstance(value, list | tuple) or not all(map(_whole, value)):
                raise ValueError(f"{name}: got {value!r}, expected a list of integers")
            object.__setattr__(self, name, tuple(value))
        for name in ("fir", "skip_rescale"):  # any word would count as true
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: got {getattr(self, name)!r}, expected true or false")
        for name in ("dropout", "fourier_scale", "init_scale"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise ValueError(f"{name}: got {value!r}, expected a number")
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
        # GroupNorm has min(ch/4, 32) groups, which must divide the channels, also those of two joined paths
        joined = 3 if (self.progressive_input, self.combine) == ("input_skip", "cat") else 2
        widest = joined * self.nf * max(self.multipliers)
        if self.nf % 32 and (self.nf % 4 or widest > 128):
            raise ValueError(
                f"nf: got {self.nf}, expected a multiple of 32, or a multiple of 4 with "
                f"{joined}·nf·max(multipliers) ≤ 128, so that the groups of GroupNorm divide the channels"
            )

    @property
    def levels(self) -> int:
        """Number of resolutions L."""
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
    """An integer, and not true or false, which Python counts among them."""
    return isinstance(value, int) and not isinstance(value, bool)
