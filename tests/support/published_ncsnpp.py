"""NCSN++ as Song et al. 2021 publish it, written down a second time: tensor names, shapes, and the formulae.

Nothing here uses the package's networks (only the plain values of a configuration): `layout` lists the
tensors of the public PyTorch class (test_importers.py holds it against checksums of that class), `forward`
evaluates the architecture from such a dict of tensors, slowly and directly (dense filters, explicit softmax).
"""

import itertools
import math
from collections import OrderedDict
from pathlib import Path

import torch
from torch.nn import functional as F

from anisodiff.networks import NCSNppConfig


def layout(c: NCSNppConfig) -> dict[str, tuple[int, ...]]:
    """Published name → shape, in the order of the published model's parameters."""
    shapes: dict[str, tuple[int, ...]] = {}
    index = itertools.count()
    units = 4 * c.nf

    def put(part: str, weight: tuple[int, ...], n: int, names: tuple[str, str] = ("weight", "bias")) -> None:
        prefix = f"module.all_modules.{n}." + (f"{part}." if part else "")
        shapes[prefix + names[0]] = weight
        shapes[prefix + names[1]] = (weight[-1] if names[0] == "W" else weight[0],)

    def block(i: int, o: int, resampling: bool = False) -> None:
        n = next(index)
        put("GroupNorm_0", (i,), n)
        put("Conv_0", (o, i, 3, 3), n)
        put("Dense_0", (o, units), n)
        put("GroupNorm_1", (o,), n)
        put("Conv_1", (o, o, 3, 3), n)
        if c.block == "biggan" and (i != o or resampling):
            put("Conv_2", (o, i, 1, 1), n)
        elif i != o:
            put("NIN_0", (i, o), n, ("W", "b"))

    def attention(ch: int) -> None:
        n = next(index)
        put("GroupNorm_0", (ch,), n)
        for part in range(4):
            put(f"NIN_{part}", (ch, ch), n, ("W", "b"))

    def resample(i: int, o: int) -> None:
        put("Conv2d_0" if c.fir else "Conv_0", (o, i, 3, 3), next(index))

    def between(ch: int) -> None:
        if c.block == "biggan":
            block(ch, ch, resampling=True)
        else:
            resample(ch, ch)

    def head(i: int, o: int) -> None:
        put("", (i,), next(index))
        put("", (o, i, 3, 3), next(index))

    features = c.nf
    if c.embedding == "fourier":
        shapes[f"module.all_modules.{next(index)}.W"] = (c.nf,)
        features = 2 * c.nf
    put("", (units, features), next(index))
    put("", (units, units), next(index))
    put("", (c.nf, c.in_channels, 3, 3), next(index))

    ch, pyramid, skips = c.nf, c.in_channels, [c.nf]
    last = len(c.multipliers) - 1
    for level, m in enumerate(c.multipliers):
        attended = c.image_size // 2**level in c.attention
        for _ in range(c.blocks):
            block(ch, c.nf * m)
            ch = c.nf * m
            if attended:
                attention(ch)
            skips.append(ch)
        if level != last:
            between(ch)
            if c.progressive_input == "input_skip":
                put("Conv_0", (ch, pyramid, 1, 1), next(index))
                ch = 2 * ch if c.combine == "cat" else ch
            elif c.progressive_input == "residual":
                resample(pyramid, ch)
                pyramid = ch
            skips.append(ch)
    block(ch, ch)
    attention(ch)
    block(ch, ch)
    for level in range(last, -1, -1):
        for _ in range(c.blocks + 1):
            block(ch + skips.pop(), c.nf * c.multipliers[level])
            ch = c.nf * c.multipliers[level]
        if c.image_size // 2**level in c.attention:
            attention(ch)
        if c.progressive == "output_skip":
            head(ch, c.out_channels)
        elif c.progressive == "residual":
            if level == last:
                head(ch, ch)
            else:
                resample(pyramid, ch)
            pyramid = ch
        if level:
            between(ch)
    if c.progressive != "output_skip":
        head(ch, c.out_channels)
    return shapes


def dense_filter(x: torch.Tensor, gain: float, before: int, after: int) -> torch.Tensor:
    """Pad by zeros, then correlate with gain · (k ⊗ k), k = [1,3,3,1]/8."""
    k = torch.tensor([1.0, 3.0, 3.0, 1.0], dtype=x.dtype) / 8
    x = F.pad(x, (before, after, before, after))
    kernel = (gain * torch.outer(k, k)).expand(x.shape[1], 1, 4, 4)
    return F.conv2d(x, kernel, groups=x.shape[1])


def interleave(x: torch.Tensor, trailing: bool) -> torch.Tensor:
    """Zeros between the pixels, and after the last one if `trailing`."""
    b, ch, h, w = x.shape
    out = x.new_zeros(b, ch, 2 * h, 2 * w)
    out[:, :, ::2, ::2] = x
    return out if trailing else out[:, :, :-1, :-1]


def up(x: torch.Tensor, fir: bool) -> torch.Tensor:
    if fir:
        return dense_filter(interleave(x, trailing=True), 4.0, 2, 1)
    return x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)


def down(x: torch.Tensor, fir: bool) -> torch.Tensor:
    if fir:
        return dense_filter(x, 1.0, 1, 1)[:, :, ::2, ::2]
    return (x[:, :, ::2, ::2] + x[:, :, 1::2, ::2] + x[:, :, ::2, 1::2] + x[:, :, 1::2, 1::2]) / 4


def up_conv(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, fir: bool) -> torch.Tensor:
    if fir:
        x = F.conv2d(interleave(x, trailing=False), w, padding=2)
        return dense_filter(x, 4.0, 1, 1) + b[:, None, None]
    return F.conv2d(up(x, False), w, b, padding=1)


def down_conv(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, fir: bool) -> torch.Tensor:
    x = dense_filter(x, 1.0, 2, 2) if fir else F.pad(x, (0, 1, 0, 1))
    return F.conv2d(x, w, b, stride=2)


def forward(state: dict[str, torch.Tensor], c: NCSNppConfig, x: torch.Tensor, cond: torch.Tensor) -> torch.Tensor:
    """Raw output for the condition ln σ (Fourier) or a time label (positional)."""
    index = itertools.count()
    norm = 2**-0.5 if c.skip_rescale else 1.0
    act = F.silu

    def get(n: int, part: str = "", names: tuple[str, str] = ("weight", "bias")) -> list[torch.Tensor]:
        prefix = f"module.all_modules.{n}." + (f"{part}." if part else "")
        return [state[prefix + name] for name in names]

    def gn(h: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        groups = min(h.shape[1] // 4, 32)
        parts = h.reshape(h.shape[0], groups, -1)
        parts = parts - parts.mean(-1, keepdim=True)
        parts = parts / (parts.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return parts.reshape(h.shape) * w[:, None, None] + b[:, None, None]

    def nin(h: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bihw,io->bohw", h, w) + b[:, None, None]

    def block(x: torch.Tensor, change: str = "") -> torch.Tensor:
        n = next(index)
        h = act(gn(x, *get(n, "GroupNorm_0")))
        if change:
            h, x = (up(h, c.fir), up(x, c.fir)) if change == "up" else (down(h, c.fir), down(x, c.fir))
        h = F.conv2d(h, *get(n, "Conv_0"), padding=1)
        h = h + F.linear(act(temb), *get(n, "Dense_0"))[:, :, None, None]
        h = F.conv2d(act(gn(h, *get(n, "GroupNorm_1"))), *get(n, "Conv_1"), padding=1)
        if f"module.all_modules.{n}.Conv_2.weight" in state:
            x = F.conv2d(x, *get(n, "Conv_2"))
        elif f"module.all_modules.{n}.NIN_0.W" in state:
            x = nin(x, *get(n, "NIN_0", ("W", "b")))
        return (x + h) * norm

    def attention(x: torch.Tensor) -> torch.Tensor:
        n = next(index)
        h = gn(x, *get(n, "GroupNorm_0"))
        q, k, v = (nin(h, *get(n, f"NIN_{i}", ("W", "b"))).flatten(2) for i in range(3))
        weights = torch.softmax(torch.einsum("bci,bcj->bij", q, k) / math.sqrt(x.shape[1]), dim=-1)
        h = torch.einsum("bij,bcj->bci", weights, v).reshape(x.shape)
        return (x + nin(h, *get(n, "NIN_3", ("W", "b")))) * norm

    def between(h: torch.Tensor, change: str) -> torch.Tensor:
        return block(h, change) if c.block == "biggan" else resample(h, change)

    def resample(h: torch.Tensor, change: str) -> torch.Tensor:
        w, b = get(next(index), "Conv2d_0" if c.fir else "Conv_0")
        return up_conv(h, w, b, c.fir) if change == "up" else down_conv(h, w, b, c.fir)

    def head(h: torch.Tensor) -> torch.Tensor:
        h = act(gn(h, *get(next(index))))
        return F.conv2d(h, *get(next(index)), padding=1)

    if c.embedding == "fourier":
        phase = 2 * math.pi * cond[:, None] * state[f"module.all_modules.{next(index)}.W"][None]
        features = torch.cat([phase.sin(), phase.cos()], 1)
    else:
        half = c.nf // 2
        rates = torch.tensor([10000 ** (-i / (half - 1)) for i in range(half)], dtype=x.dtype)
        features = torch.cat([(cond[:, None] * rates).sin(), (cond[:, None] * rates).cos()], 1)
    temb = F.linear(features, *get(next(index)))
    temb = F.linear(act(temb), *get(next(index)))

    pyramid = x
    h = F.conv2d(x, *get(next(index)), padding=1)
    skips = [h]
    last = len(c.multipliers) - 1
    for level in range(last + 1):
        for _ in range(c.blocks):
            h = block(skips[-1])
            if c.image_size // 2**level in c.attention:
                h = attention(h)
            skips.append(h)
        if level != last:
            h = between(h, "down")
            if c.progressive_input == "input_skip":
                pyramid = down(pyramid, c.fir)
                image = F.conv2d(pyramid, *get(next(index), "Conv_0"))
                h = torch.cat([image, h], 1) if c.combine == "cat" else image + h
            elif c.progressive_input == "residual":
                h = pyramid = (resample(pyramid, "down") + h) * norm
            skips.append(h)
    h = block(attention(block(h)))
    for level in range(last, -1, -1):
        for _ in range(c.blocks + 1):
            h = block(torch.cat([h, skips.pop()], 1))
        if c.image_size // 2**level in c.attention:
            h = attention(h)
        if c.progressive == "output_skip":
            pyramid = head(h) if level == last else up(pyramid, c.fir) + head(h)
        elif c.progressive == "residual":
            if level == last:
                pyramid = head(h)
            else:
                h = pyramid = (resample(pyramid, "up") + h) * norm
        if level:
            h = between(h, "up")
    assert not skips
    return pyramid if c.progressive == "output_skip" else head(h)


def published_file(path: Path, config: NCSNppConfig, seed: int = 0) -> tuple[dict, dict]:
    """Write a checkpoint; returns the tensors of `model` and those that `ema` stands for, in float64."""
    g = torch.Generator().manual_seed(seed)

    def draw(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name == "module.all_modules.0.W":
            return 16 * torch.randn(shape, generator=g)
        fan = shape[0] if len(shape) < 2 else torch.Size(shape[1:]).numel()
        values = torch.randn(shape, generator=g) / fan**0.5
        return values + 1 if "GroupNorm" in name and name.endswith("weight") else values

    shapes = layout(config)
    model = OrderedDict({"module.sigmas": torch.linspace(50, 0.01, 10, dtype=torch.float64)})
    model.update({name: draw(name, shape) for name, shape in shapes.items()})
    trained = [name for name in shapes if config.embedding == "positional" or name != "module.all_modules.0.W"]
    shadow = [draw(name, shapes[name]) for name in trained]
    optimizer = {
        "state": {0: {"step": 3, "exp_avg": shadow[0].clone()}},
        "param_groups": [{"lr": 2e-4, "params": [0]}],
    }
    ema = {"decay": 0.999, "num_updates": 77, "shadow_params": shadow}
    torch.save({"optimizer": optimizer, "model": model, "ema": ema, "step": 1234}, path)
    raw = {name: value.double() for name, value in model.items()}
    return raw, raw | {name: value.double() for name, value in zip(trained, shadow)}
