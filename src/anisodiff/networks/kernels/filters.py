"""The filter [1,3,3,1] at twice, half or the same rate, and its adjoint, by one kernel (Triton).

    y_i = Σ_a taps_a x̃_{down·i + a − pad},   x̃_{up·j} = x_j, 0 elsewhere           on both axes
    x'_j = Σ_a taps_a ỹ'_{up·j + a − (3 − pad)},   ỹ'_{down·i} = y'_i, 0 elsewhere      the taps are symmetric

The adjoint exchanges up and down and pads by 3 − pad. Taps on interleaved zeros are skipped.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from anisodiff.networks.kernels.layout import empty, rows

_ELEMENTS = 2048  # of a tile


@triton.jit
def _tap(i, k, size, gain, pad, UP: tl.constexpr, DOWN: tl.constexpr):
    """The k-th tap of output i: its index among ``size`` values, whether it is inside, its weight."""
    a = ((pad - DOWN * i) & 1) + 2 * k if UP == 2 else i * 0 + k
    place = DOWN * i + a - pad
    return place // UP, (place >= 0) & (place < UP * size), tl.where((a == 1) | (a == 2), 3.0 * gain, gain)


@triton.jit(do_not_specialize=["height", "width", "out_height", "out_width", "gain", "pad"])
def _filter(
    x, y, pitch, channels, height, width, out_height, out_width, gain, pad, UP: tl.constexpr, DOWN: tl.constexpr,
    TILE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    blocks, tiles = (channels + WIDTH - 1) // WIDTH, (out_height * out_width + TILE - 1) // TILE
    program = tl.program_id(0)  # channels side by side run side by side
    image = (program // blocks // tiles).to(tl.int64)
    c = program % blocks * WIDTH + tl.arange(0, WIDTH)
    p = program // blocks % tiles * TILE + tl.arange(0, TILE)
    row, column = p // out_width, p % out_width
    inside = (row < out_height)[:, None] & (c < channels)[None, :]
    x += image * height * width * pitch
    y += image * out_height * out_width * channels
    total = tl.zeros([TILE, WIDTH], tl.float32)
    for j in tl.static_range(0, 4 // UP):
        i, row_inside, row_tap = _tap(row, j, height, gain, pad, UP, DOWN)
        for k in tl.static_range(0, 4 // UP):
            l, column_inside, column_tap = _tap(column, k, width, gain, pad, UP, DOWN)  # noqa: E741
            there = (row_inside & column_inside)[:, None] & inside
            value = tl.load(x + (i * width + l)[:, None] * pitch + c[None, :], there, 0.0).to(tl.float32)
            total += value * (row_tap * column_tap)[:, None]
    tl.store(y + p[:, None] * channels + c[None, :], total.to(y.dtype.element_ty), inside)


def _launch(x: Tensor, size: tuple[int, int], gain: float, pad: int, up: int, down: int) -> Tensor:
    x, pitch = rows(x)
    batch, channels, height, width = x.shape
    y = empty((batch, channels, *size), x.dtype, x.device)
    block = min(64, triton.next_power_of_2(channels))
    tile = min(128, _ELEMENTS // block)
    programs = batch * triton.cdiv(channels, block) * triton.cdiv(size[0] * size[1], tile)
    with torch.cuda.device_of(x):
        _filter[programs,](
            x, y, pitch, channels, height, width, *size, gain, pad, UP=up, DOWN=down, TILE=tile, WIDTH=block,
            num_warps=4,
        )  # fmt: skip
    return y


class _Resample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, size: tuple[int, int], gain: float, pad: int, up: int, down: int) -> Tensor:
        ctx.settings = ((x.shape[2], x.shape[3]), gain, 3 - pad, down, up)
        return _launch(x, size, gain, pad, up, down)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        return _launch(dy, *ctx.settings), None, None, None, None, None


def resample(x: Tensor, gain: float, pad: tuple[int, int], up: int, down: int) -> Tensor:
    """See `kernels.resample`."""
    height, width = ((up * side + sum(pad) - 4) // down + 1 for side in x.shape[2:])
    out: Tensor = _Resample.apply(x, (height, width), gain, pad[0], up, down)
    return out
