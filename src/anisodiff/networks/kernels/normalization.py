"""y = D swish GN(x + s) in one kernel, and its gradients in another (Triton).

A program computes up to 32 channels (whole groups) of one image. It reads its pixels twice, for the sums and for the
values; the second time from the cache. If images are few and large, their pixels are divided among programs: then one
launch computes the sums of every part, and another the values.

    n = (x + s − μ)ρ,   u = wn + b,   y = mσ(u)u                    ρ = (σ² + ε)^{−1/2} of a group, m the mask
    u' = m y' (σ + uσ(1 − σ)),   w' = Σ nu',   b' = Σ u'            over pixels
    x' = ρ(wu' − A − nQ),   A = mean of wu',   Q = mean of nwu'     over a group
    s' = Σ x' = ρ(wb' − NA − Q Σ n)                                 over N pixels: no further pass

The variance is computed from deviations from the mean of the first pixels of a channel, and channels are combined by
their means (Chan et al. 1983), without cancellation. The mask equals `dropout.keyed_mask` bit by bit.
"""

from math import gcd
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from anisodiff.keyed_kernels import channel_words, kept_units
from anisodiff.networks.kernels.layout import empty, rows

_WIDTH, _TILE = 32, 64  # channels and pixels of a tile; more channels where a group has more
_BUSY = 528  # programs: four for each multiprocessor of a large GPU
_LEAST = 1024  # pixels a program is started for

_WHOLE = tl.constexpr(0)  # sums and values
_SUMS = tl.constexpr(1)
_VALUES = tl.constexpr(2)
_PARTS = tl.constexpr(64)  # of an image, at most


@triton.jit
def _over_group(values, group, WIDTH: tl.constexpr):
    """For each channel [WIDTH] the sum over its group."""
    c = tl.arange(0, WIDTH) // group
    return tl.sum(tl.where(c[:, None] == c[None, :], values[None, :], 0.0), 1)


@triton.jit
def _place(channels, length, pixels, USED: tl.constexpr, WIDTH: tl.constexpr):
    """Image, first channel, mask of channels, first pixel and end of the pixels of this program."""
    blocks = (channels + USED - 1) // USED
    program = tl.program_id(0)
    start = program % blocks * USED
    c = tl.arange(0, WIDTH)
    first = tl.program_id(1) * length
    last = tl.minimum(first + length, pixels)
    return (program // blocks).to(tl.int64), start, (c < USED) & (start + c < channels), first, last


_RUNTIME = ["images", "pixels", "width", "group", "length", "chunks", "eps", "threshold", "kept"]


# do not compile a kernel for each value of these
@triton.jit(do_not_specialize=_RUNTIME)
def _forward(
    x, shift, weight, bias, key, y, mean, rstd, parts, x_pitch, channels, pixels, width, group, length, chunks, eps,
    threshold, kept, SWISH: tl.constexpr, PHASE: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr,
    USED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    image, start, there, first, last = _place(channels, length, pixels, USED, WIDTH)
    c, p = tl.arange(0, WIDTH), tl.arange(0, TILE)
    x += image * pixels * x_pitch + start
    if PHASE != _VALUES:
        inside = (first + p < last)[:, None] & there[None, :]
        begin = tl.load(x + (first + p)[:, None] * x_pitch + c[None, :], inside, 0.0).to(tl.float32)
        pivot = tl.sum(begin, 0) / tl.minimum(TILE, last - first)
        total, square = tl.zeros([TILE, WIDTH], tl.float32), tl.zeros([TILE, WIDTH], tl.float32)
        for i in tl.range(first, last, TILE, num_stages=STAGES):
            inside = (i + p < last)[:, None] & there[None, :]
            value = tl.load(x + (i + p)[:, None] * x_pitch + c[None, :], inside, 0.0).to(tl.float32)
            value = tl.where(inside, value - pivot[None, :], 0.0)
            total += value
            square += value * value
        moved = tl.sum(total, 0)
        means = pivot + moved / (last - first)
        squares = tl.sum(square, 0) - moved * moved / (last - first)
    if PHASE == _SUMS:
        parts += (image * chunks + tl.program_id(1)) * 2 * channels + start
        tl.store(parts + c, means, there)
        tl.store(parts + channels + c, squares, there)
    else:
        if PHASE == _VALUES:
            k = tl.arange(0, _PARTS)
            known = (k < chunks)[:, None] & there[None, :]
            parts += image * chunks * 2 * channels + start
            part_means = tl.load(parts + k[:, None] * 2 * channels + c[None, :], known, 0.0)
            part_squares = tl.load(parts + k[:, None] * 2 * channels + channels + c[None, :], known, 0.0)
            count = tl.maximum(tl.minimum(length, pixels - k * length), 0).to(tl.float32)[:, None]
            means = tl.sum(part_means * count, 0) / pixels
            off = part_means - means[None, :]
            squares = tl.sum(part_squares + count * off * off, 0)
        added = tl.zeros([WIDTH], tl.float32)
        if shift is not None:
            added = tl.load(shift + image * channels + start + c, there, 0.0).to(tl.float32)
        means = tl.where(there, means + added, 0.0)
        center = _over_group(means, group, WIDTH) / group
        off = means - center
        spread = _over_group(tl.where(there, squares + pixels * off * off, 0.0), group, WIDTH)
        scale = 1.0 / tl.sqrt(spread / (group * pixels) + eps)
        if tl.program_id(1) == 0:
            place = image * (channels // group) + (start + c) // group
            leads = there & (c % group == 0)
            tl.store(mean + place, center, leads)
            tl.store(rstd + place, scale, leads)
        y += image * pixels * channels + start
        gain = tl.load(weight + start + c, there, 0.0).to(tl.float32) * scale
        level = tl.load(bias + start + c, there, 0.0).to(tl.float32)
        center -= added
        if key is not None:
            seed = tl.load(key + image).to(tl.uint64, bitcast=True)
            by_channel = channel_words(seed, start + c)
        for i in tl.range(first, last, TILE, num_stages=STAGES):
            inside = (i + p < last)[:, None] & there[None, :]
            value = tl.load(x + (i + p)[:, None] * x_pitch + c[None, :], inside, 0.0).to(tl.float32)
            value = (value - center[None, :]) * gain[None, :] + level[None, :]
            if SWISH:
                value *= tl.sigmoid(value)
            if key is not None:
                value = tl.where(kept_units(seed, by_channel, i + p, width, threshold), value * kept, 0.0)
            tl.store(y + (i + p)[:, None] * channels + c[None, :], value.to(y.dtype.element_ty), inside)


@triton.jit
def _chain(x, dy, center, scale, gain, level, SWISH: tl.constexpr):
    """n and u' of a tile, before dropout."""
    normal = (x - center[None, :]) * scale[None, :]
    if SWISH:
        u = normal * gain[None, :] + level[None, :]
        s = tl.sigmoid(u)
        dy = dy * s * (1.0 + u * (1.0 - s))
    return normal, dy


@triton.jit(do_not_specialize=_RUNTIME)
def _backward(
    x, shift, weight, bias, key, mean, rstd, dy, also, dx, sums, parts, x_pitch, dy_pitch, also_pitch, images,
    channels, pixels, width, group, length, chunks, threshold, kept, SWISH: tl.constexpr, PHASE: tl.constexpr,
    TILE: tl.constexpr, WIDTH: tl.constexpr, USED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    image, start, there, first, last = _place(channels, length, pixels, USED, WIDTH)
    c, p = tl.arange(0, WIDTH), tl.arange(0, TILE)
    x += image * pixels * x_pitch + start
    dy += image * pixels * dy_pitch + start
    place = image * (channels // group) + (start + c) // group
    scale = tl.load(rstd + place, there, 0.0)
    center = tl.load(mean + place, there, 0.0)
    if shift is not None:
        center -= tl.load(shift + image * channels + start + c, there, 0.0).to(tl.float32)
    gain = tl.load(weight + start + c, there, 0.0).to(tl.float32)
    level = tl.load(bias + start + c, there, 0.0).to(tl.float32)
    if key is not None:
        seed = tl.load(key + image).to(tl.uint64, bitcast=True)
        by_channel = channel_words(seed, start + c)
    if PHASE != _VALUES:
        by_gain, by_level = tl.zeros([TILE, WIDTH], tl.float32), tl.zeros([TILE, WIDTH], tl.float32)
        normals = tl.zeros([TILE, WIDTH], tl.float32)
        for i in tl.range(first, last, TILE, num_stages=STAGES):
            inside = (i + p < last)[:, None] & there[None, :]
            value = tl.load(x + (i + p)[:, None] * x_pitch + c[None, :], inside, 0.0).to(tl.float32)
            given = tl.load(dy + (i + p)[:, None] * dy_pitch + c[None, :], inside, 0.0).to(tl.float32)
            normal, given = _chain(value, given, center, scale, gain, level, SWISH)
            if key is not None:
                given = tl.where(kept_units(seed, by_channel, i + p, width, threshold), given * kept, 0.0)
            by_gain += normal * given
            by_level += given
            normals += tl.where(inside, normal, 0.0)
        d_gain, d_level, normal_sum = tl.sum(by_gain, 0), tl.sum(by_level, 0), tl.sum(normals, 0)
    if PHASE == _SUMS:
        parts += (image * chunks + tl.program_id(1)) * 3 * channels + start
        tl.store(parts + c, d_gain, there)
        tl.store(parts + channels + c, d_level, there)
        tl.store(parts + 2 * channels + c, normal_sum, there)
    else:
        if PHASE == _VALUES:
            k = tl.arange(0, _PARTS)
            known = (k < chunks)[:, None] & there[None, :]
            parts += image * chunks * 3 * channels + start
            d_gain = tl.sum(tl.load(parts + k[:, None] * 3 * channels + c[None, :], known, 0.0), 0)
            d_level = tl.sum(tl.load(parts + k[:, None] * 3 * channels + channels + c[None, :], known, 0.0), 0)
            normal_sum = tl.sum(tl.load(parts + k[:, None] * 3 * channels + 2 * channels + c[None, :], known, 0.0), 0)
        a = _over_group(gain * d_level, group, WIDTH) / (group * pixels)
        q = _over_group(gain * d_gain, group, WIDTH) / (group * pixels)
        if tl.program_id(1) == 0:
            sums += image * channels + start
            kind = images.to(tl.int64) * channels
            tl.store(sums + c, d_gain, there)
            tl.store(sums + kind + c, d_level, there)
            tl.store(sums + 2 * kind + c, scale * (gain * d_level - pixels * a - q * normal_sum), there)
        dx += image * pixels * channels + start
        if also is not None:
            also += image * pixels * also_pitch + start
        for i in tl.range(first, last, TILE, num_stages=STAGES):
            inside = (i + p < last)[:, None] & there[None, :]
            value = tl.load(x + (i + p)[:, None] * x_pitch + c[None, :], inside, 0.0).to(tl.float32)
            given = tl.load(dy + (i + p)[:, None] * dy_pitch + c[None, :], inside, 0.0).to(tl.float32)
            normal, given = _chain(value, given, center, scale, gain, level, SWISH)
            if key is not None:
                given = tl.where(kept_units(seed, by_channel, i + p, width, threshold), given * kept, 0.0)
            value = scale[None, :] * (given * gain[None, :] - a[None, :] - normal * q[None, :])
            if also is not None:
                value += tl.load(also + (i + p)[:, None] * also_pitch + c[None, :], inside, 0.0).to(tl.float32)
            tl.store(dx + (i + p)[:, None] * channels + c[None, :], value.to(dx.dtype.element_ty), inside)


def _used(group: int, width: int) -> int:
    """Channels of a block: whole groups, at most ``width``, a multiple of 8 if possible (vectors of 16 bytes)."""
    return max(range(group, width + 1, group), key=lambda n: (gcd(n, 8), n))


class _Launch:
    """The launch grid of both directions."""

    def __init__(self, x: Tensor, groups: int, key: Tensor | None, rate: float) -> None:
        self.batch, self.channels, height, self.width = x.shape
        self.pixels, self.group = height * self.width, self.channels // groups
        width = max(_WIDTH, triton.next_power_of_2(self.group))
        most, used = max(1, _TILE * _WIDTH // width), _used(self.group, width)
        programs = self.batch * triton.cdiv(self.channels, used)
        wanted = min(triton.cdiv(self.pixels, _LEAST), triton.cdiv(_BUSY, programs), _PARTS.value)
        self.length = triton.cdiv(triton.cdiv(self.pixels, wanted), most) * most
        self.chunks = triton.cdiv(self.pixels, self.length)
        self.grid = (programs, self.chunks)
        tile = min(most, triton.next_power_of_2(self.pixels))
        self.constants = {
            "TILE": tile, "WIDTH": width, "USED": used, "STAGES": 3 if tile == most else 1,  # loads under way
            "num_warps": max(1, tile * width // 256),
        }  # fmt: skip
        self.threshold = min(round(rate * 2**32), 2**32 - 1) - 2**31
        self.kept, self.key = 1 / (1 - rate), key
        self.phases = (_WHOLE.value,) if self.chunks == 1 else (_SUMS.value, _VALUES.value)

    def parts(self, kinds: int, x: Tensor) -> Tensor:
        shape = (self.batch, self.chunks, kinds, self.channels) if self.chunks > 1 else (1,)
        return torch.empty(shape, dtype=torch.float32, device=x.device)


class _Normalize(torch.autograd.Function):
    """The second output is x, so that the gradient of the path around the kernel is added in it."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, shift: Tensor | None, key: Tensor | None,
        settings: tuple[int, float, bool, float, torch.dtype],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        groups, eps, swish, rate, dtype = settings
        given, pitch = rows(x)
        cut = _Launch(given, groups, key, rate)
        shift = None if shift is None else shift.contiguous()
        key = None if key is None else key.contiguous()
        y = empty(x.shape, dtype, x.device)
        mean, rstd = torch.empty(2, len(x), groups, dtype=torch.float32, device=x.device)
        parts = cut.parts(2, x)
        with torch.cuda.device_of(x):
            for phase in cut.phases:
                _forward[cut.grid](
                    given, shift, weight, bias, key, y, mean, rstd, parts, pitch, cut.channels, cut.pixels,
                    cut.width, cut.group, cut.length, cut.chunks, eps, cut.threshold, cut.kept, SWISH=swish,
                    PHASE=phase, **cut.constants,
                )  # fmt: skip
        ctx.save_for_backward(given, weight, bias, shift, key, mean, rstd)
        ctx.settings, ctx.pitch = settings, pitch
        ctx.set_materialize_grads(False)
        return y, x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, also: Tensor | None) -> tuple[Tensor | None, ...]:
        x, weight, bias, shift, key, mean, rstd = ctx.saved_tensors
        groups, _, swish, rate, _ = ctx.settings
        cut = _Launch(x, groups, key, rate)
        dy, dy_pitch = rows(dy)
        also, also_pitch = (None, 0) if also is None else rows(also)
        dx = empty(x.shape, x.dtype, x.device)
        sums = torch.empty(3, len(x), cut.channels, dtype=torch.float32, device=x.device)
        parts = cut.parts(3, x)
        with torch.cuda.device_of(x):
            for phase in cut.phases:
                _backward[cut.grid](
                    x, shift, weight, bias, key, mean, rstd, dy, also, dx, sums, parts, ctx.pitch, dy_pitch,
                    also_pitch, cut.batch, cut.channels, cut.pixels, cut.width, cut.group, cut.length, cut.chunks,
                    cut.threshold, cut.kept, SWISH=swish, PHASE=phase, **cut.constants,
                )  # fmt: skip
        d_weight, d_bias = sums[:2].sum(1)
        d_shift = None if shift is None else sums[2].to(shift.dtype)
        return dx, d_weight.to(weight.dtype), d_bias.to(bias.dtype), d_shift, None, None


def normalize(
    x: Tensor, norm: nn.GroupNorm, shift: Tensor | None, swish: bool, key: Tensor | None, rate: float
) -> tuple[Tensor, Tensor]:
    """See `kernels.normalize`."""
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
    out: tuple[Tensor, Tensor] = _Normalize.apply(
        x, norm.weight, norm.bias, shift, key, (norm.num_groups, norm.eps, swish, rate, dtype)
    )
    return out
