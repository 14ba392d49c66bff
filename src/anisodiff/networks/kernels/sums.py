"""y = (x + h + b)·r at the end of a residual block, and its gradients: x' = h' = r·y', b' = Σ r·y' (Triton)."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from anisodiff.networks.kernels.layout import empty, rows

_ELEMENTS = 4096  # of a tile
_PROGRAMS = 2048  # each writes one row of the gradient of the bias


@triton.jit(do_not_specialize=["pixels", "scale"])
def _add(x, h, bias, y, x_pitch, h_pitch, channels, pixels, scale, TILE: tl.constexpr, WIDTH: tl.constexpr):
    """One tile of all pixels of the batch."""
    first = tl.program_id(0).to(tl.int64) * TILE
    p, c = tl.arange(0, TILE), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = (p < pixels - first)[:, None] & (c < channels)[None, :]
    value = tl.load(x + first * x_pitch + (p[:, None] * x_pitch + c[None, :]), inside, 0.0).to(tl.float32)
    value += tl.load(h + first * h_pitch + (p[:, None] * h_pitch + c[None, :]), inside, 0.0).to(tl.float32)
    value = (value + tl.load(bias + c, c < channels, 0.0).to(tl.float32)[None, :]) * scale
    tl.store(y + first * channels + (p[:, None] * channels + c[None, :]), value.to(y.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["pixels", "length", "scale"])
def _add_backward(
    dy, dx, sums, pitch, channels, pixels, length, scale, TILE: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """``length`` pixels per program, and their sum."""
    first = tl.program_id(0).to(tl.int64) * length
    p, c = tl.arange(0, TILE), tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    count = tl.minimum(pixels - first, length).to(tl.int32)
    dy += first * pitch
    dx += first * channels
    total = tl.zeros([TILE, WIDTH], tl.float32)
    for i in tl.range(0, count, TILE):
        inside = (i + p < count)[:, None] & (c < channels)[None, :]
        value = tl.load(dy + (i + p)[:, None] * pitch + c[None, :], inside, 0.0).to(tl.float32) * scale
        tl.store(dx + (i + p)[:, None] * channels + c[None, :], value.to(dx.dtype.element_ty), inside)
        total += value
    tl.store(sums + tl.program_id(0) * channels + c, tl.sum(total, 0), c < channels)


def _tile(channels: int) -> dict[str, int]:
    width = min(64, triton.next_power_of_2(channels))
    return {"TILE": _ELEMENTS // width, "WIDTH": width, "num_warps": 4}


class _AddScaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor, bias: Tensor, scale: float) -> Tensor:
        ctx.scale, ctx.dtypes = scale, (x.dtype, h.dtype, bias.dtype)
        (x, x_pitch), (h, h_pitch) = rows(x), rows(h)
        batch, channels, height, width = x.shape
        y = empty(x.shape, torch.promote_types(x.dtype, h.dtype), x.device)
        pixels, tile = batch * height * width, _tile(channels)
        grid = triton.cdiv(pixels, tile["TILE"]), triton.cdiv(channels, tile["WIDTH"])
        with torch.cuda.device_of(x):
            _add[grid](x, h, bias, y, x_pitch, h_pitch, channels, pixels, scale, **tile)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        dy, pitch = rows(dy)
        batch, channels, height, width = dy.shape
        pixels, tile = batch * height * width, _tile(channels)
        blocks = triton.cdiv(channels, tile["WIDTH"])
        length = max(1, pixels * blocks // (tile["TILE"] * _PROGRAMS)) * tile["TILE"]
        programs = triton.cdiv(pixels, length)
        dx = empty(dy.shape, dy.dtype, dy.device)
        sums = torch.empty(programs, channels, dtype=torch.float32, device=dy.device)
        with torch.cuda.device_of(dy):
            _add_backward[programs, blocks](dy, dx, sums, pitch, channels, pixels, length, ctx.scale, **tile)
        kinds = ctx.dtypes
        return dx.to(kinds[0]), dx.to(kinds[1]), sums.sum(0).to(kinds[2]), None


def add_scaled(x: Tensor, h: Tensor, bias: Tensor, scale: float) -> Tensor:
    """See `kernels.add_scaled`."""
    assert x.shape == h.shape, f"{list(x.shape)} and {list(h.shape)} cannot be added"
    out: Tensor = _AddScaled.apply(x, h, bias, scale)
    return out
