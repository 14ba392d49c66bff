"""The share of gradient energy that a process removes, and the α1 that removes a given share.

    removed = 1 − Σ|∇M_t|²/Σ|∇x0|²,      M_t the noise-free part of the state,   |∇x|² = Σ_k z_k x̂_k²

For comparisons of processes at equal smoothing: at equal α1 the smoothing depends on λ and on the operator.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from anisodiff.dct import dct2, frequencies
from anisodiff.noise import ZeroNoise
from anisodiff.processes.base import Process

_ROUNDS, _MOST = 40, 1e6


def _energy(x: Tensor) -> float:
    z = frequencies(x.shape[-2], x.shape[-1], torch.float64, x.device)
    return float((z * dct2(x.double()).square()).sum())


@torch.no_grad()
def removed_share(process: Process, images: Tensor, t: float) -> float:
    """The share of the gradient energy of ``images`` [N, C, H, W] that ``process`` removes up to ``t`` > 0.

    For processes with a known noise-free part: steps `exact`, `signal`, and one window.
    """
    if reason := process.path_obstacle:
        raise ValueError(f"the noise-free part of a state is not known: {reason}")
    when = torch.full((len(images),), t, dtype=torch.float64)
    no_noise = ZeroNoise(torch.zeros(len(images), dtype=torch.int64))
    return 1.0 - _energy(process.training_pair(images, when, no_noise).state) / _energy(images)


def diffusivity_for(build: Callable[[float], Process], images: Tensor, share: float, t: float) -> float:
    """a such that ``build``(a) removes ``share`` ∈ (0, 1) up to ``t``, by bisection; it must increase with a."""
    if not 0 < share < 1:
        raise ValueError(f"share: got {share:g}, expected a number in (0, 1)")
    high = 1.0
    while removed_share(build(high), images, t) < share:
        high *= 4
        if high > _MOST:
            raise ValueError(f"share: got {share:g}, which this process does not remove for any diffusivity")
    low = 0.0
    for _ in range(_ROUNDS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if removed_share(build(middle), images, t) < share else (low, middle)
        if high - low < 1e-4 * high:
            break
    return 0.5 * (low + high)
