"""All steps of a tamed Euler–Maruyama chain in one Triton kernel, one program per image.

The plain form (`integrators.tamed_euler`) launches several kernels for each step and moves state, drift and noise
through memory. Here a program computes all steps of its image: neighboring pixels are exchanged through scratch
images in the cache, the norm of the drift is a sum inside the program, and the noise is computed in registers from
the words of `noise.KeyedNoise`.

Word j < n/2 of an image of n values gives the normals of elements j and j + n/2 (`noise.keyed_normal`). A program
divides the words into PARTS blocks; a block of words has a lower and an upper block of elements.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from anisodiff.keyed_kernels import mix64, normals
from anisodiff.noise import GOLDEN, KeyedNoise

_GOLDEN = tl.constexpr(GOLDEN)


@triton.jit
def damping(along, across, square):
    """`stencils.gradient.damping`; ``square`` = 1/λ²."""
    return tl.rsqrt(1.0 + (along * along + across * across) * square)


@triton.jit
def drift_and_scale(shown, e, square1, square2, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STENCIL: tl.constexpr):
    """∇·(g1∇u)/α1 and g2/α2 at elements ``e`` of the image ``shown``.

    A neighbor outside the grid is replaced by the opposite one, so the central difference along that axis is zero.
    """
    row, column = e % (HEIGHT * WIDTH) // WIDTH, e % WIDTH
    up, down = tl.where(row > 0, -WIDTH, WIDTH), tl.where(row < HEIGHT - 1, WIDTH, -WIDTH)
    left, right = tl.where(column > 0, -1, 1), tl.where(column < WIDTH - 1, 1, -1)
    at = shown + e
    here = tl.load(at)
    above, below, before, behind = tl.load(at + up), tl.load(at + down), tl.load(at + left), tl.load(at + right)
    above_before, above_behind = tl.load(at + up + left), tl.load(at + up + right)
    below_before, below_behind = tl.load(at + down + left), tl.load(at + down + right)
    dx, dx_above, dx_below = behind - before, above_behind - above_before, below_behind - below_before
    dy, dy_before, dy_behind = below - above, below_before - above_before, below_behind - above_behind
    slope = damping(dx, dy, square2)
    above, below, before, behind = above - here, below - here, before - here, behind - here
    if STENCIL == "paper":
        # along an axis: the pixel beyond the neighbor, clamped to the grid
        drift = damping(tl.load(at - tl.minimum(row, 2) * WIDTH) - here, dx_above, square1) * above
        drift += damping(tl.load(at + tl.minimum(HEIGHT - 1 - row, 2) * WIDTH) - here, dx_below, square1) * below
        drift += damping(tl.load(at - tl.minimum(column, 2)) - here, dy_before, square1) * before
        drift += damping(tl.load(at + tl.minimum(WIDTH - 1 - column, 2)) - here, dy_behind, square1) * behind
    else:
        drift = tl.where(row > 0, damping(2.0 * above, 0.5 * (dx + dx_above), square1) * above, 0.0)
        drift += tl.where(row < HEIGHT - 1, damping(2.0 * below, 0.5 * (dx + dx_below), square1) * below, 0.0)
        drift += tl.where(column > 0, damping(2.0 * before, 0.5 * (dy + dy_before), square1) * before, 0.0)
        drift += tl.where(column < WIDTH - 1, damping(2.0 * behind, 0.5 * (dy + dy_behind), square1) * behind, 0.0)
    return drift, slope


@triton.jit
def _elements(part: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """Words j of a part, its elements clamped to the image, and a mask of those inside it."""
    HALF: tl.constexpr = (SIZE + 1) // 2
    j = part % PARTS * BLOCK + tl.arange(0, BLOCK)
    e = j + part // PARTS * HALF
    return j, tl.minimum(e, SIZE - 1), (j < HALF) & (e < SIZE)


@triton.jit
def move(here, drift, norm, scale, normal, h, dt, NORM: tl.constexpr, GAMMA: tl.constexpr):
    """u + h·b/(1 + Δt‖b‖^γ) + √h·g2·ξ (`tamed_euler.euler_update`); ``norm`` is that of the whole image."""
    if NORM == "element":
        norm = tl.abs(drift)
    if GAMMA != 1.0:
        norm = tl.exp2(GAMMA * tl.log2(norm))
    gain = h if NORM == "none" else h / (1.0 + dt * norm)
    return here + gain * drift + tl.sqrt(h) * scale * normal


# do not compile a kernel for each value of ``first``
@triton.jit(do_not_specialize=["first"])
def _chain(
    u, until, alpha1, inv_lambda1, alpha2, inv_lambda2, nodes, keys, scratch, out, first, dt,
    CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STENCIL: tl.constexpr, SMOOTHS: tl.constexpr,
    NOISY: tl.constexpr, ADDITIVE: tl.constexpr, NORM: tl.constexpr, GAMMA: tl.constexpr,
    BLOCK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One image from time 0 to its time ``until``; the noise of step k is draw ``first`` + k."""
    image = tl.program_id(0).to(tl.int64)
    SIZE: tl.constexpr = CHANNELS * HEIGHT * WIDTH
    u += image * SIZE
    out += image * SIZE
    scratch += image * 2 * SIZE
    end = tl.load(until + image)
    if NOISY:
        key = tl.load(keys + image).to(tl.uint64, bitcast=True)
    for part in tl.static_range(2 * PARTS):
        _, e, inside = _elements(part, SIZE, BLOCK, PARTS)
        tl.store(scratch + e, tl.load(u + e), inside)
    k = 0
    now = tl.load(nodes)
    while now < end:
        following = tl.load(nodes + k + 1)
        h = (tl.minimum(following, end) - now).to(tl.float32)
        square1, square2 = tl.load(inv_lambda1 + k).to(tl.float32), tl.load(inv_lambda2 + k).to(tl.float32)
        square1, square2 = square1 * square1, square2 * square2
        # two scratch images in turn: the one written now was last read before the barrier
        shown, moved = scratch + k % 2 * SIZE, scratch + (1 - k % 2) * SIZE
        tl.debug_barrier()
        drifts, slopes = (), ()
        total = tl.zeros((BLOCK,), tl.float32)
        for part in tl.static_range(2 * PARTS):
            _, e, inside = _elements(part, SIZE, BLOCK, PARTS)
            drift, slope = drift_and_scale(shown, e, square1, square2, HEIGHT, WIDTH, STENCIL)
            drift = drift * tl.load(alpha1 + k).to(tl.float32) if SMOOTHS else tl.zeros((BLOCK,), tl.float32)
            drifts, slopes = drifts + (drift,), slopes + (slope,)  # noqa: RUF005 - Triton knows no star
            total += tl.where(inside, drift * drift, 0.0)
        norm = tl.sqrt(tl.sum(total, 0) / SIZE) if NORM == "rms" else tl.sqrt(tl.sum(total, 0))
        strength = tl.load(alpha2 + k).to(tl.float32)
        if NOISY:
            stream = mix64(key + (first + k).to(tl.uint64) * _GOLDEN)
        for part in tl.static_range(PARTS):
            j, low, low_inside = _elements(part, SIZE, BLOCK, PARTS)
            _, high, high_inside = _elements(part + PARTS, SIZE, BLOCK, PARTS)
            one, other = normals(stream, j) if NOISY else (0.0, 0.0)
            scale = strength if ADDITIVE else strength * slopes[part]
            lower = move(tl.load(shown + low), drifts[part], norm, scale, one, h, dt, NORM, GAMMA)
            tl.store(moved + low, lower, low_inside)
            scale = strength if ADDITIVE else strength * slopes[part + PARTS]
            upper = move(tl.load(shown + high), drifts[part + PARTS], norm, scale, other, h, dt, NORM, GAMMA)
            tl.store(moved + high, upper, high_inside)
        now = following
        k += 1
    tl.debug_barrier()
    for part in tl.static_range(2 * PARTS):
        _, e, inside = _elements(part, SIZE, BLOCK, PARTS)
        tl.store(out + e, tl.load(scratch + k % 2 * SIZE + e), inside)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The constants of a chain; a kernel is compiled for each combination."""

    stencil: str
    smooths: bool
    noisy: bool
    additive: bool
    dt: float
    gamma: float
    norm: str


def integrate(
    u: Tensor, until: Tensor, steps: int, tables: tuple[Tensor, ...], noise: KeyedNoise | None, rule: Rule
) -> Tensor:
    """From ``u`` [B, C, H, W] at time 0 to the times ``until``, float64 [B], in at most ``steps`` steps.

    ``tables``: α1, 1/λ1, α2, 1/λ2 at the nodes, and the nodes, float64 [K+1] each. ``noise``: None for no noise.
    """
    u = u.contiguous()
    batch, channels, height, width = u.shape
    words = (channels * height * width + 1) // 2
    block = max(32, triton.next_power_of_2(words) // 4)  # three parts for RGB and sides that are powers of two
    out, scratch = torch.empty_like(u), u.new_empty(2 * u.numel())
    keys, first = (None, 0) if noise is None else (noise.keys.contiguous(), noise.reserve(steps))
    if batch:
        with torch.cuda.device_of(u):
            _chain[(batch,)](
                u, until.contiguous(), *tables, keys, scratch, out, first, rule.dt,
                channels, height, width, rule.stencil, rule.smooths, rule.noisy, rule.additive, rule.norm,
                rule.gamma, block, triton.cdiv(words, block),
                # with 64 registers a multiprocessor holds four images of 3×32², or one of 3×64²
                num_warps=max(1, min(32, block // 64)), maxnreg=64,
            )  # fmt: skip
    return out
