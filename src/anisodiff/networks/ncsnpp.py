"""NCSN++, continuous (Song et al. 2021, appendix H): F(x, c), x [B, in, H, W], noise level c [B] → [B, out, H, W].

A U-Net of residual blocks conditioned on e = embedding(c), with self-attention, progressive input and output. F has
no preconditioning, which is that of the model; `published.VEScore` is the published F(2x − 1, ln σ)/σ.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recompute

from anisodiff import notation
from anisodiff.networks.base import NetworkSpec
from anisodiff.networks.config import NCSNppConfig, ncsnpp_config
from anisodiff.networks.dropout import layer_key
from anisodiff.networks.layers import (
    NIN_SCALE,
    Attention,
    ClassEmbedding,
    Conv2d,
    FourierFeatures,
    Linear,
    NoiseEmbedding,
    ResidualBlock,
    SinusoidalFeatures,
)
from anisodiff.networks.resample import (
    DownConv,
    Head,
    ResidualCollect,
    ResidualFeed,
    SkipCollect,
    SkipFeed,
    Start,
    Through,
    UpConv,
    downsample,
    upsample,
)

NAME = "ncsnpp"
"""The name of the architecture in checkpoints."""


class DownLevel(nn.Module):
    """One level of the encoder: blocks, each with optional attention; then downsampling and progressive input."""

    def __init__(self, blocks: list[nn.Module], attentions: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.attentions = nn.ModuleList(attentions)
        self.shrink: nn.Module | None = None
        self.feed: nn.Module | None = None


class UpLevel(nn.Module):
    """One level of the decoder: blocks with skip connections, attention, progressive output; then upsampling."""

    def __init__(self, blocks: list[nn.Module], attention: nn.Module | None, collect: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.attention = attention
        self.collect = collect
        self.grow: nn.Module | None = None


class _Builder:
    """Builds blocks with their common settings and numbers them for dropout."""

    def __init__(self, config: NCSNppConfig) -> None:
        self.config, self.layers = config, 0
        # one object each: under `torch.compile` blocks of one shape then share one graph
        self.filters = {"up": partial(upsample, fir=config.fir), "down": partial(downsample, fir=config.fir)}

    def block(self, in_channels: int, out_channels: int, resample: str | None = None) -> ResidualBlock:
        c = self.config
        self.layers += 1
        return ResidualBlock(
            in_channels,
            out_channels,
            units=4 * c.nf,
            dropout=c.dropout,
            layer=self.layers - 1,
            skip_rescale=c.skip_rescale,
            init_scale=c.init_scale,
            shortcut_scale=1.0 if c.block == "biggan" else NIN_SCALE,
            resample=None if resample is None else self.filters[resample],
        )

    def attention(self, channels: int) -> Attention:
        c = self.config
        return Attention(channels, skip_rescale=c.skip_rescale, init_scale=c.init_scale, qk_norm=c.qk_norm)

    def shrink(self, channels: int) -> nn.Module:
        if self.config.block == "biggan":
            return self.block(channels, channels, "down")
        return DownConv(channels, channels, fir=self.config.fir)

    def grow(self, channels: int) -> nn.Module:
        if self.config.block == "biggan":
            return self.block(channels, channels, "up")
        return UpConv(channels, channels, fir=self.config.fir)

    def feed(self, pyramid: int, channels: int) -> tuple[nn.Module, int, int]:
        """The progressive input, and the channels of pyramid and features after it."""
        c = self.config
        if c.progressive_input == "input_skip":
            cat = c.combine == "cat"
            feed = SkipFeed(pyramid, channels, concatenate=cat, fir=c.fir)
            return feed, pyramid, 2 * channels if cat else channels
        if c.progressive_input == "residual":
            return ResidualFeed(pyramid, channels, skip_rescale=c.skip_rescale, fir=c.fir), channels, channels
        return Through(), pyramid, channels

    def collect(self, pyramid: int, channels: int, *, deepest: bool) -> tuple[nn.Module, int]:
        """The progressive output, and the channels of the pyramid after it."""
        c = self.config
        if c.progressive == "output_skip":
            if deepest:
                return Start(channels, c.out_channels, scale=c.init_scale), c.out_channels
            skip = SkipCollect(channels, c.out_channels, scale=c.init_scale, fir=c.fir)
            return skip, c.out_channels
        if c.progressive == "residual":
            if deepest:
                return Start(channels, channels, scale=1.0), channels
            return ResidualCollect(pyramid, channels, skip_rescale=c.skip_rescale, fir=c.fir), channels
        return Through(), pyramid


class NCSNpp(nn.Module):
    """F(x, c, labels, dropout_key): x[B,in,H,W], c[B], labels and keys int64 [B] → [B,out,H,W], H and W multiples
    of config.factor.

    generator   draws the initial weights (default: seed 0); nothing is drawn on the meta device
    checkpoint  gradient checkpointing of the blocks
    """

    def __init__(
        self, config: NCSNppConfig, *, generator: torch.Generator | None = None, checkpoint: bool = False
    ) -> None:
        super().__init__()
        self.config, self.checkpoint = config, checkpoint
        make = _Builder(config)
        nf = config.nf
        fourier = config.embedding == "fourier"
        features = FourierFeatures(nf, config.fourier_scale) if fourier else SinusoidalFeatures(nf // 2)
        self.embed = NoiseEmbedding(features, 2 * nf if fourier else nf, 4 * nf)
        self.classes = ClassEmbedding(config.classes, 4 * nf) if config.classes else None
        self.conv_in = Conv2d(config.in_channels, nf)

        channels, pyramid, skips = nf, config.in_channels, [nf]
        self.down = nn.ModuleList()
        for level, multiplier in enumerate(config.multipliers):
            blocks: list[nn.Module] = []
            attentions: list[nn.Module] = []
            for _ in range(config.blocks):
                blocks.append(make.block(channels, nf * multiplier))
                channels = nf * multiplier
                if config.resolutions[level] in config.attention:
                    attentions.append(make.attention(channels))
                skips.append(channels)
            down = DownLevel(blocks, attentions)
            if level < config.levels - 1:
                down.shrink = make.shrink(channels)
                down.feed, pyramid, channels = make.feed(pyramid, channels)
                skips.append(channels)
            self.down.append(down)

        self.middle = nn.ModuleList(
            [make.block(channels, channels), make.attention(channels), make.block(channels, channels)]
        )

        self.up = nn.ModuleList()
        for level, multiplier in reversed(list(enumerate(config.multipliers))):
            blocks = []
            for _ in range(config.blocks + 1):
                blocks.append(make.block(channels + skips.pop(), nf * multiplier))
                channels = nf * multiplier
            attended = config.resolutions[level] in config.attention
            collect, pyramid = make.collect(pyramid, channels, deepest=level == config.levels - 1)
            up = UpLevel(blocks, make.attention(channels) if attended else None, collect)
            if level > 0:
                up.grow = make.grow(channels)
            self.up.append(up)
        assert not skips

        self.head: Head | None = None
        if config.progressive != "output_skip":
            self.head = Head(channels, config.out_channels, scale=config.init_scale)
        if not self.conv_in.weight.is_meta:
            self._draw(generator or torch.Generator().manual_seed(0))

    def _draw(self, generator: torch.Generator) -> None:
        for module in self.modules():
            if isinstance(module, Conv2d | Linear | FourierFeatures):
                module.draw(generator)

    def _run(self, module: nn.Module, h: Tensor, e: Tensor, key: Tensor | None) -> Tensor:
        """One block, attention or convolution, with gradient checkpointing if enabled."""
        inputs: tuple[Tensor | None, ...] = (h,)
        if isinstance(module, ResidualBlock):
            inputs = (h, e, None if key is None else layer_key(key, module.layer))
        if self.checkpoint and torch.is_grad_enabled():
            # dropout is keyed: there is no random state to preserve
            out: Tensor = recompute(module, *inputs, use_reentrant=False, preserve_rng_state=False)
        else:
            out = module(*inputs)
        return out

    def _check(self, x: Tensor, noise_level: Tensor, labels: Tensor | None) -> None:
        config = self.config
        if labels is not None and self.classes is None:
            raise ValueError("labels: this network was built without classes; expected None")
        if labels is not None and (labels.shape != x.shape[:1] or labels.dtype != torch.int64):
            raise ValueError(f"labels: got {labels.dtype} {list(labels.shape)}, expected int64 [{x.shape[0]}]")
        if x.ndim != 4 or x.shape[1] != config.in_channels:
            raise ValueError(f"x: got {list(x.shape)}, expected [B, {config.in_channels}, H, W]")
        if x.shape[2] % config.factor or x.shape[3] % config.factor:
            raise ValueError(
                f"x: got {x.shape[2]}×{x.shape[3]} pixels, expected multiples of {config.factor} "
                f"for {config.levels} levels; crop or pad the images, or take fewer levels"
            )
        if noise_level.shape != x.shape[:1]:
            raise ValueError(f"noise_level: got {list(noise_level.shape)}, expected [{x.shape[0]}], one per sample")

    def forward(
        self, x: Tensor, noise_level: Tensor, labels: Tensor | None = None, dropout_key: Tensor | None = None
    ) -> Tensor:
        self._check(x, noise_level, labels)
        also = None if self.classes is None else self.classes(labels, len(x))
        run = partial(self._run, e=self.embed(noise_level, also), key=dropout_key if self.config.dropout else None)
        pyramid = x
        h = self.conv_in(x)
        skips = [h]
        for level in self.down:
            assert isinstance(level, DownLevel)
            for i, block in enumerate(level.blocks):
                h = run(block, h)
                if len(level.attentions):
                    h = run(level.attentions[i], h)
                skips.append(h)
            if level.shrink is not None and level.feed is not None:
                pyramid, h = level.feed(pyramid, run(level.shrink, h))
                skips.append(h)

        for module in self.middle:
            h = run(module, h)

        for level in self.up:
            assert isinstance(level, UpLevel)
            for block in level.blocks:
                h = run(block, torch.cat([h, skips.pop()], dim=1))
            if level.attention is not None:
                h = run(level.attention, h)
            pyramid, h = level.collect(pyramid, h)
            if level.grow is not None:
                h = run(level.grow, h)

        out: Tensor = pyramid if self.head is None else self.head(h)
        return out


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
    # for a rectangle, the first of its sides whose levels divide both
    for side in (max(size), min(size)):
        found = dataclasses.replace(ncsnpp_config(name, image_size=side, **channels), **keys)
        if all(length % found.factor == 0 for length in size):
            return NetworkSpec(name=NAME, arguments=dataclasses.asdict(found), recomputes=True, make=_make)
    raise ValueError(
        f"network: images of {size[0]}×{size[1]} cannot be halved {found.levels - 1} times; "
        f"choose sides that are multiples of {found.factor}, or fewer network.multipliers"
    )


def _make(arguments: Mapping[str, Any], generator: torch.Generator, recompute: bool) -> NCSNpp:
    return NCSNpp(NCSNppConfig(**arguments), generator=generator, checkpoint=recompute)
