"""Weights of published networks: score_sde_pytorch's NCSN++ checkpoints (Song et al. 2021).

    s(x, σ) = F(2x − 1, ln σ)/σ,     x[B,C,H,W] in [0,1], σ[B]        (`VEScore`)

The file is a dict {optimizer, model, ema, step}. `model` has tensors by name; `ema` is a list of the averaged trained
weights in the same order, without the frozen Fourier frequencies. Only tensors and plain containers are read
(`weights_only`): no code in the file can run.

    module.all_modules.N.Conv_0.weight  ◀──▶  down.0.blocks.1.conv0.weight

N counts the layers in the order of the forward pass.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from anisodiff.networks.config import NCSNppConfig
from anisodiff.networks.layers import Attention, FourierFeatures, ResidualBlock
from anisodiff.networks.ncsnpp import DownLevel, NCSNpp, UpLevel
from anisodiff.networks.resample import (
    DownConv,
    Head,
    ResidualCollect,
    ResidualFeed,
    SkipCollect,
    SkipFeed,
    Start,
    UpConv,
)

FOURIER = "module.all_modules.0.W"
"""The published name of the Fourier frequencies."""


@dataclass(frozen=True, kw_only=True)
class ScoreSdeInfo:
    """Training step, kind of weights, number of parameters, unused tensors and added outputs of a loaded file."""

    step: int
    weights: Literal["ema", "model"]
    parameters: int
    unused: tuple[str, ...]
    outputs_added: int


class VEScore(nn.Module):
    """s(x, σ) = F(2x − 1, ln σ)/σ: x[B,C,H,W] in [0,1] plus noise, σ[B] → the VE process's score at x."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor, sigma: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        out: Tensor = self.network(2 * x - 1, sigma.log(), dropout_key=dropout_key)
        return out / sigma[:, None, None, None]


def _layers(network: NCSNpp) -> Iterator[nn.Module]:
    """Our layers in the order of `all_modules`."""
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
    """The layers of a progressive path."""
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
        theirs = ("GroupNorm_0", "Conv_0", "Dense_0", "GroupNorm_1", "Conv_1", "Conv_2")
        ours = ("norm0", "conv0", "affine", "norm1", "conv1", "shortcut")
        return list(zip(theirs, ours))[: None if module.shortcut is not None else -1]
    if isinstance(module, Attention):
        return [("GroupNorm_0", "norm"), *((f"NIN_{i}", "qkv") for i in range(3)), ("NIN_3", "out")]
    if isinstance(module, SkipFeed):
        return [("Conv_0", "conv")]
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


def widened(state: Mapping[str, Tensor], config: NCSNppConfig) -> dict[str, Tensor]:
    """Tensors of a network with fewer outputs, or without classes, extended by zeros to those of ``config``.

    The first outputs are unchanged, the new ones are 0, and the output does not depend on the class.
    """
    with torch.device("meta"):
        network = NCSNpp(config)
    shapes = {name: value.shape for name, value in network.state_dict().items()}
    wide = dict(state)
    for name in output_names(network):
        more = shapes[name][0] - state[name].shape[0]
        wide[name] = torch.cat([state[name], state[name].new_zeros(more, *shapes[name][1:])])
    for name in shapes:
        if name.startswith("classes.") and name not in state:
            wide[name] = state["conv_in.weight"].new_zeros(shapes[name])
    return wide


def _read(path: Path) -> Mapping[str, Any]:
    """What the file holds; tensors are stored in it as they are, so that no file grows while it is read."""
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                members = archive.infolist()
            stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
            if not stored or sum(member.file_size for member in members) > path.stat().st_size:
                raise ValueError("compressed")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file makes torch's unpickler raise almost any type
        raise ValueError(
            f"{path}: cannot be read as a file of tensors only ({type(error).__name__}); "
            "expected a checkpoint written by torch.save of score_sde_pytorch"
        ) from error
    if not isinstance(content, Mapping) or not isinstance(content.get("model"), Mapping):
        got = sorted(map(str, content)) if isinstance(content, Mapping) else type(content).__name__
        raise ValueError(f"{path}: got {got}, expected a dict with model, ema and step")
    return content


def _step(content: Mapping[str, Any]) -> int:
    step = content.get("step", 0)
    if not isinstance(step, int | float | Tensor):
        raise ValueError(f"step: got {step!r}, expected a whole number")
    return int(step)


def _usable(value: Any, name: str) -> Tensor:
    """A tensor of finite values, in float32."""
    if not isinstance(value, Tensor):
        raise ValueError(f"{name}: got a {type(value).__name__}, expected a tensor")
    if not bool(value.isfinite().all()):
        raise ValueError(f"{name} holds values that are not finite: the file is damaged, or its training diverged")
    return value.float()


def _averaged(content: Mapping[str, Any], trained: list[str]) -> dict[str, Tensor]:
    """The list of averaged weights under the names of the trained parameters."""
    ema = content.get("ema")
    shadow = ema.get("shadow_params") if isinstance(ema, Mapping) else ema
    if not isinstance(shadow, list | tuple) or len(shadow) != len(trained):
        got = f"{len(shadow)} tensors" if isinstance(shadow, list | tuple) else type(shadow).__name__
        raise ValueError(
            f"ema: got {got}, expected {len(trained)} tensors for this configuration; "
            "check its switches, or take weights='model'"
        )
    return dict(zip(trained, shadow))


def load_score_sde(
    path: str | Path, config: NCSNppConfig, *, weights: Literal["ema", "model"] = "ema"
) -> tuple[NCSNpp, ScoreSdeInfo]:
    """A published checkpoint as a raw network F (wrap it in `VEScore` for the published score), in float32.

    config   the architecture the file was trained with, e.g. ncsnpp_config("cifar10"); with a multiple of its
             outputs the published ones come first, and the others are 0 (`widened`)
    weights  the averaged weights (what the published figures use) or those of the last step
    """
    if weights not in ("ema", "model"):
        raise ValueError(f"weights: got {weights!r}, expected 'ema' or 'model'")
    content = _read(Path(path))
    with torch.device("meta"):
        network = NCSNpp(config)
    names = tensor_names(network)
    state = dict(content["model"])
    missing = [name for name, _ in names if not isinstance(state.get(name), Tensor)]
    if missing:
        raise ValueError(
            f"{path}: {len(missing)} of {len(names)} tensors are missing, the first {missing[0]!r}; "
            "expected the layout of this configuration: check its switches"
        )
    published = {name: state.pop(name) for name, _ in names}
    layers_left = [name for name in state if name.startswith("module.all_modules.")]
    if layers_left:
        raise ValueError(
            f"{path}: got {len(layers_left)} more tensors than this configuration has, the first "
            f"{layers_left[0]!r}; expected {len(names)}: check its switches"
        )
    if weights == "ema":
        published |= _averaged(content, [name for name in published if name != FOURIER])

    own, outputs, rows = network.state_dict(), output_names(network), config.out_channels
    loaded: dict[str, Tensor] = {}
    stacks: dict[str, list[Tensor]] = {}
    for name, mine in names:
        value = _usable(published[name], name)
        if name.endswith(".W") and value.ndim == 2:  # a map [in, out], ours a 1×1 convolution [out, in, 1, 1]
            value = value.t()[:, :, None, None].contiguous()
        whole = list(own[mine].shape)
        expected = [whole[0] // 3, *whole[1:]] if ".qkv." in mine else whole
        if mine in outputs and len(value) and config.out_channels % len(value) == 0:
            rows = len(value)
            expected = [rows, *whole[1:]]
        if list(value.shape) != expected:
            raise ValueError(f"{name}: got shape {list(value.shape)}, expected {expected} ({weights} weights)")
        stacks.setdefault(mine, []).append(value)
    for mine, values in stacks.items():
        loaded[mine] = torch.cat(values) if len(values) > 1 else values[0].clone()
    network.load_state_dict(widened(loaded, config), strict=True, assign=True)
    info = ScoreSdeInfo(
        step=_step(content),
        weights=weights,
        parameters=sum(p.numel() for p in network.parameters()),
        unused=tuple(sorted(state)),
        outputs_added=config.out_channels - rows,
    )
    return network, info
