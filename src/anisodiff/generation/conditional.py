"""The Gaussian approximation of U_T given an image, per DCT mode: Û_T ≈ μ_T + g·(Û_0 − μ_0) + √R ξ̂.

linear processes    g = e^{−A z}, R = q φ: exact
all others          g = E[x y]/E[x²], R = E(y − g x)² with x, y the centered modes of pairs (U_0, U_T), pooled over
                    channels: of all Gaussians whose mean is linear per frequency the one closest to the process
"""

from typing import Any

import torch

from anisodiff.dct import dct2
from anisodiff.gaussian_kernel import grid_decay
from anisodiff.generation.pool import Pool
from anisodiff.noise import KeyedNoise, combine
from anisodiff.priors import ConditionalPrior
from anisodiff.processes import Process

PAIRS = 512


def conditional_prior(process: Process, pool: Pool, device: torch.device, pairs: int = PAIRS) -> ConditionalPrior:
    """Exact for a linear process; else regressed on ``pairs`` simulated pairs (of at most that many images)."""
    if "closed_form" in process.capabilities:
        return _exact(process, pool, device)
    some = pool.some(pairs, device)
    images = some.repeat(-(-pairs // len(some)), 1, 1, 1)[:pairs]  # a small set meets other noise each time
    keys = combine(0xC09D, torch.arange(len(images), device=device))
    parts = zip(torch.split(images, 128), torch.split(keys, 128))
    states = torch.cat([process.simulate(part, process.T, KeyedNoise(key)) for part, key in parts])
    before, after = images.double().mean((0, 2, 3)), states.double().mean((0, 2, 3))
    x = dct2(images.double() - before[:, None, None])
    y = dct2(states.double() - after[:, None, None])
    gain = (x * y).mean((0, 1)) / x.square().mean((0, 1)).clamp(min=1e-300)
    rest = (y - gain * x).square().mean((0, 1))
    gain, rest, before, after = (value.to(images.dtype) for value in (gain, rest, before, after))
    return ConditionalPrior(pool.images, gain, rest, before, after)


def _exact(process: Any, pool: Pool, device: torch.device) -> ConditionalPrior:
    one = pool.some(1, device)
    end = torch.full((1,), process.T, dtype=torch.float64, device=device)
    gain = grid_decay(process.equation, torch.zeros_like(end), end, one)[0, 0]
    level = one.new_zeros(one.shape[1])
    return ConditionalPrior(pool.images, gain, process.variance(one, 0.0, process.T)[0, 0], level, level)
