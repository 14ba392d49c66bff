"""Which tensor of score_sde_pytorch's NCSN++ (Song et al. 2021) is which of ours.

    module.all_modules.N.Conv_0.weight  ◀──▶  down.0.blocks.1.conv0.weight

N counts the layers in the order they are run. Names only, no values: the files are read by `importers`.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from anisodiff.networks.blocks import Attention, ResidualBlock
from anisodiff.networks.layers import FourierFeatures
from anisodiff.networks.ncsnpp import DownLevel, NCSNpp, UpLevel
from anisodiff.networks.progressive import Head, ResidualCollect, ResidualFeed, SkipCollect, SkipFeed, Start
from anisodiff.networks.resample import DownConv, UpConv

FOURIER = "module.all_modules.0.W"
"""The published name of the Fourier frequencies, where there are any."""


def _layers(network: NCSNpp) -> Iterator[nn.Module]:
    """Our layers in the order of `all_modules`, the Fourier features first where there are any."""
    if isinstance(network.embed.features, FourierFeatures):
        yield network.embed.features
    yield network.embed.linear0
    yield network.embed.linear1
    yield network.conv_in
    for level in network.down:
        assert isinstance(level, DownLevel)
        for i, block in enumerate(level.blocks):
            yield block
            if len(level.attentions):
                yield level.attentions[i]
        if level.shrink is not None and level.feed is not None:
            yield level.shrink
            yield from _path(level.feed)
    yield from network.middle
    for level in network.up:
        assert isinstance(level, UpLevel)
        yield from level.blocks
        if level.attention is not None:
            yield level.attention
        yield from _path(level.collect)
        if level.grow is not None:
            yield level.grow
    if network.head is not None:
        yield from _path(network.head)


def _path(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of a progressive path; none for `Through`."""
    if isinstance(module, Head):
        yield from (module.norm, module.conv)
    elif isinstance(module, Start | SkipCollect):
        yield from _path(module.head)
    elif isinstance(module, SkipFeed):
        yield module
    elif isinstance(module, ResidualFeed | ResidualCollect):
        yield module.conv


def _parts(module: nn.Module) -> list[tuple[str, str]]:
    """(published name, our name) of a layer's children, in the published order; '' is the layer itself."""
    if isinstance(module, ResidualBlock):
        parts = [
            ("GroupNorm_0", "norm0"),
            ("Conv_0", "conv0"),
            ("Dense_0", "affine"),
            ("GroupNorm_1", "norm1"),
            ("Conv_1", "conv1"),
        ]
        return parts if module.shortcut is None else [*parts, ("Conv_2", "shortcut")]
    if isinstance(module, Attention):
        return [("GroupNorm_0", "norm"), *((f"NIN_{i}", "qkv") for i in range(3)), ("NIN_3", "out")]
    if isinstance(module, SkipFeed):
        return [("Conv", "conv")]
    if isinstance(module, DownConv | UpConv):
        return [("Conv2d_0" if module.fir else "Conv_0", "")]
    return [("", "")]


def tensor_names(network: NCSNpp) -> list[tuple[str, str]]:
    """(published name, our name) of every tensor in the published order of parameters; q, k, v share one."""
    ours = {id(module): name for name, module in network.named_modules()}
    names: list[tuple[str, str]] = []
    for index, module in enumerate(_layers(network)):
        theirs, mine = f"module.all_modules.{index}", ours[id(module)]
        if isinstance(module, FourierFeatures):
            names.append((f"{theirs}.W", f"{mine}.w"))
            continue
        for part, child in _parts(module):
            if part == "Conv_2" and network.config.block == "ddpm":
                part = "NIN_0"  # DDPM's shortcut
            weight, bias = ("W", "b") if part.startswith("NIN") else ("weight", "bias")
            for leaf, own in ((weight, "weight"), (bias, "bias")):
                published = ".".join(filter(None, (theirs, part, leaf)))
                names.append((published, ".".join(filter(None, (mine, child, own)))))
    return names


def output_names(network: NCSNpp) -> set[str]:
    """Names of the tensors whose first axis is the network's output: one head, or one at every level."""
    heads = [name for name, module in network.named_modules() if isinstance(module, Head)]
    last = ["head"] if network.head is not None else heads
    return {f"{name}.conv.{part}" for name in last for part in ("weight", "bias")}
