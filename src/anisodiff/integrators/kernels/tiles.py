"""The tamed chain in Triton for images that one program cannot hold, in tiles.

A step is two kernels: the drift of all tiles and its squared norm, then the update. State and drift pass through
memory, five times the state in all; the noise is computed in registers. Samples that have reached their time are
skipped.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from anisodiff.integrators.kernels.chain import Rule, drift_and_scale, move
from anisodiff.keyed_kernels import mix64, normals
from anisodiff.noise import GOLDEN, KeyedNoise

_GOLDEN = tl.constexpr(GOLDEN)
_BLOCK = 1024
_WARPS = 8


# do not compile a kernel for each value of ``k`` and ``first``
@triton.jit(do_not_specialize=["k"])
def _drift(
    u, until, alpha1, inv_lambda1, inv_lambda2, nodes, drifts, slopes, squares, k,
    SIZE: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, STENCIL: tl.constexpr, ADDITIVE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """b and g2/α2 of one tile at node ``k``, and its part of ‖b‖²."""
    tile, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if tl.load(nodes + k) < tl.load(until + image):
        e = tile * BLOCK + tl.arange(0, BLOCK)
        inside = e < SIZE
        e = tl.minimum(e, SIZE - 1)
        square1, square2 = tl.load(inv_lambda1 + k).to(tl.float32), tl.load(inv_lambda2 + k).to(tl.float32)
        drift, slope = drift_and_scale(
            u + image * SIZE, e, square1 * square1, square2 * square2, HEIGHT, WIDTH, STENCIL
        )  # fmt: skip
        drift *= tl.load(alpha1 + k).to(tl.float32)
        tl.store(drifts + image * SIZE + e, drift, inside)
        if not ADDITIVE:
            tl.store(slopes + image * SIZE + e, slope, inside)
        share = tl.sum(tl.where(inside, drift * drift, 0.0), 0)
        tl.store(squares + image * tl.num_programs(0) + tile, share)


@triton.jit(do_not_specialize=["k", "first"])
def _update(
    u, until, alpha2, nodes, keys, drifts, slopes, squares, k, first, dt,
    SIZE: tl.constexpr, NOISY: tl.constexpr, ADDITIVE: tl.constexpr, NORM: tl.constexpr, GAMMA: tl.constexpr,
    TILES: tl.constexpr, SHARES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The state of the elements of one tile of words, lower and upper, at the end of step ``k``."""
    tile, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    HALF: tl.constexpr = (SIZE + 1) // 2
    now, end = tl.load(nodes + k), tl.load(until + image)
    if now < end:
        h = (tl.minimum(tl.load(nodes + k + 1), end) - now).to(tl.float32)
        share = tl.arange(0, SHARES)
        total = tl.sum(tl.load(squares + image * TILES + share, share < TILES, 0.0), 0)
        norm = tl.sqrt(total / SIZE) if NORM == "rms" else tl.sqrt(total)
        j = tile * BLOCK + tl.arange(0, BLOCK)
        strength = tl.load(alpha2 + k).to(tl.float32)
        one, other = 0.0, 0.0
        if NOISY:
            key = tl.load(keys + image).to(tl.uint64, bitcast=True)
            one, other = normals(mix64(key + (first + k).to(tl.uint64) * _GOLDEN), j)
        for upper in tl.static_range(2):
            e = image * SIZE + j + upper * HALF
            inside = (j < HALF) & (j + upper * HALF < SIZE)
            scale = strength if ADDITIVE else strength * tl.load(slopes + e, inside, 0.0)
            here, drift = tl.load(u + e, inside, 0.0), tl.load(drifts + e, inside, 0.0)
            normal = other if upper else one
            tl.store(u + e, move(here, drift, norm, scale, normal, h, dt, NORM, GAMMA), inside)


def integrate(
    u: Tensor, until: Tensor, steps: int, tables: tuple[Tensor, ...], noise: KeyedNoise | None, rule: Rule
) -> Tensor:
    """As `chain.integrate`, for images of any size."""
    alpha1, inv_lambda1, alpha2, inv_lambda2, nodes = tables
    u, until = u.clone(memory_format=torch.contiguous_format), until.contiguous()
    batch, channels, height, width = u.shape
    size = channels * height * width
    tiles = triton.cdiv(size, _BLOCK)
    drifts, squares = torch.empty_like(u), u.new_empty(batch * tiles)
    slopes = None if rule.additive else torch.empty_like(u)
    keys, first = (None, 0) if noise is None else (noise.keys.contiguous(), noise.reserve(steps))
    with torch.cuda.device_of(u):
        for k in range(steps if batch else 0):
            _drift[(tiles, batch)](
                u, until, alpha1, inv_lambda1, inv_lambda2, nodes, drifts, slopes, squares, k,
                size, height, width, rule.stencil, rule.additive, _BLOCK, num_warps=_WARPS,
            )  # fmt: skip
            _update[(triton.cdiv((size + 1) // 2, _BLOCK), batch)](
                u, until, alpha2, nodes, keys, drifts, slopes, squares, k, first, rule.dt,
                size, rule.noisy, rule.additive, rule.norm, rule.gamma, tiles, triton.next_power_of_2(tiles), _BLOCK,
                num_warps=_WARPS,
            )  # fmt: skip
    return u
