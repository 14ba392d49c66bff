"""Edge weights and Chebyshev polynomials of the flux stencil in Triton, one program per channel (plane).

With one kernel per term, the recurrence T_{j+1} = 2X T_j − T_{j−1} of `integrators.chebyshev` moves two states
through memory for every term. Here a program keeps its plane in registers for all terms; neighboring pixels are
exchanged through a scratch plane in the cache.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _edge_weights(u, inv_lambda, wy, wx, channels, height, width, BLOCK: tl.constexpr):
    """w = 1/√(1 + |p/λ|²) of one plane: `stencils.flux.edge_weights`."""
    plane = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    row, column, inside = i // width, i % width, i < height * width
    right, down = inside & (column < width - 1), inside & (row < height - 1)
    inner_x, inner_y = right & (column > 0), down & (row > 0)
    u += plane * height * width
    scale = tl.load(inv_lambda + plane // channels)
    here = tl.load(u + i, inside, 0.0)
    below = tl.load(u + i + width, down, 0.0)
    beside = tl.load(u + i + 1, right, 0.0)
    # central differences dx of the pixel and of the one below, dy of the pixel and of the one beside
    dx = tl.where(inner_x, beside - tl.load(u + i - 1, inner_x, 0.0), 0.0)
    both = inner_x & down
    dx_below = tl.load(u + i + width + 1, both, 0.0) - tl.load(u + i + width - 1, both, 0.0)
    dy = tl.where(inner_y, below - tl.load(u + i - width, inner_y, 0.0), 0.0)
    both = inner_y & right
    dy_beside = tl.load(u + i + width + 1, both, 0.0) - tl.load(u + i - width + 1, both, 0.0)
    along_y, across_y = 2.0 * (below - here), 0.5 * (dx + dx_below)
    along_x, across_x = 2.0 * (beside - here), 0.5 * (dy + dy_beside)
    square = scale * scale
    weight_y = 1.0 / tl.sqrt(1.0 + (along_y * along_y + across_y * across_y) * square)
    weight_x = 1.0 / tl.sqrt(1.0 + (along_x * along_x + across_x * across_x) * square)
    tl.store(wy + plane * (height - 1) * width + i, weight_y, down)
    tl.store(wx + plane * height * (width - 1) + row * (width - 1) + column, weight_x, right)


@triton.jit
def _around(x, i, width, up, down, left, right, wu, wd, wl, wr):
    """Σ_n w_n x_n over the four neighbors."""
    total = wu * tl.load(x + i - width, up, 0.0) + wd * tl.load(x + i + width, down, 0.0)
    return total + wl * tl.load(x + i - 1, left, 0.0) + wr * tl.load(x + i + 1, right, 0.0)


# do not compile a kernel for each value of these
@triton.jit(do_not_specialize=["degree", "planes", "c_term", "c_function", "c_sample"])
def _polynomial(
    v, wy, wx, c, scratch, out, degree, planes, channels, c_term, c_function, c_sample, height, width,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Σ_j c_j T_j(X) v of one plane; planes are numbered (function, sample, channel)."""
    program = tl.program_id(0).to(tl.int64)
    plane = program % planes
    c += program // planes * c_function + plane // channels * c_sample
    size = height * width
    i = tl.arange(0, BLOCK)
    row, column, inside = i // width, i % width, i < size
    up, down = inside & (row > 0), inside & (row < height - 1)
    left, right = inside & (column > 0), inside & (column < width - 1)
    wy += plane * (height - 1) * width
    wx += plane * height * (width - 1) + row * (width - 1) + column
    wu, wd = tl.load(wy + i - width, up, 0.0), tl.load(wy + i, down, 0.0)
    wl, wr = tl.load(wx - 1, left, 0.0), tl.load(wx, right, 0.0)
    own = wu + wd + wl + wr
    v += program * size
    before = tl.load(v + i, inside, 0.0)
    now = 0.25 * (own * before - _around(v, i, width, up, down, left, right, wu, wd, wl, wr)) - before
    total = tl.load(c) * before + tl.load(c + c_term) * now
    scratch += program * 2 * size
    j = 2
    while j <= degree:  # a range would do on a GPU; Triton's interpreter cannot count to a number it is given
        # two scratch planes in turn: a barrier then separates writing one from the last reading of it
        shown = scratch + (j % 2) * size
        tl.store(shown + i, now, inside)
        tl.debug_barrier()
        around = _around(shown, i, width, up, down, left, right, wu, wd, wl, wr)
        following = 0.5 * (own * now - around) - 2.0 * now - before
        total += tl.load(c + j * c_term) * following
        before = now
        now = following
        j += 1
    tl.store(out + program * size + i, total, inside)


def _launch(pixels: int) -> dict[str, int]:
    block = triton.next_power_of_2(pixels)
    return {"BLOCK": block, "num_warps": max(1, min(16, block // 256))}


def edge_weights(u: Tensor, inv_lambda: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [B, C, H−1, W] and [B, C, H, W−1] of the state ``u`` [B, C, H, W]; ``inv_lambda`` one value, or [B]."""
    u = u.contiguous()
    batch, channels, height, width = u.shape
    scale = inv_lambda.to(u.dtype).expand(batch).contiguous()
    wy, wx = u.new_empty(batch, channels, height - 1, width), u.new_empty(batch, channels, height, width - 1)
    if batch:
        with torch.cuda.device_of(u):
            _edge_weights[(batch * channels,)](
                u, scale, wy, wx, channels, height, width, **_launch(height * width)
            )  # fmt: skip
    return wy, wx


def polynomial(wy: Tensor, wx: Tensor, v: Tensor, c: Tensor) -> Tensor:
    """Σ_j c_j T_j(X) v for ``v`` [F, B, C, H, W] and coefficients ``c`` [n+1, F, B or 1]."""
    v, wy, wx = v.contiguous(), wy.contiguous(), wx.contiguous()
    functions, batch, channels, height, width = v.shape
    c = c.expand(-1, functions, batch)
    out, scratch = torch.empty_like(v), v.new_empty(2 * v.numel())
    if batch:
        with torch.cuda.device_of(v):
            _polynomial[(functions * batch * channels,)](
                v, wy, wx, c, scratch, out, len(c) - 1, batch * channels, channels, *c.stride(), height, width,
                **_launch(height * width),
            )  # fmt: skip
    return out
