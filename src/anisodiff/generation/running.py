"""Batches on their way back from u_t to images, watched step by step."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anisodiff.models.base import Model
from anisodiff.noise import KeyedNoise, combine
from anisodiff.runtime.cuda_graphs import Replayed
from anisodiff.samplers import Sampler
from anisodiff.training.model import Execution

_CLIPPED = 0.5
START, PATH = 1, 2
"""Streams of a seed: the terminal state, and the noise on the way back."""


@dataclass(frozen=True, kw_only=True)
class Route:
    """A sampler with its times, descending, and the evaluations of the network that they cost."""

    sampler: Sampler
    times: Tensor
    nfe: int


class Step(NamedTuple):
    """What a callback sees: the start (number 0), every step, and the images (number = of, t = 0)."""

    number: int
    of: int
    t: float
    state: Tensor
    """[B, C, H, W], on the device."""
    seeds: tuple[int, ...]


Callback = Callable[[Step], None]


def keys_of(seeds: tuple[int, ...], stream: int, device: torch.device) -> Tensor:
    """One key a sample, int64 [B]."""
    return combine(stream, torch.tensor(seeds, dtype=torch.int64)).to(device)


def cut(count: int, size: int, device: torch.device, *, fill: bool) -> Iterator[tuple[int, Tensor]]:
    """Rows 0 … count−1 in batches: how many, and which; with ``fill`` the last one repeats its last row.

    All batches of one shape run through the same kernels, compiled once.
    """
    if size < 1:
        raise ValueError(f"batch: got {size}, expected 1 or more")
    for rows in torch.split(torch.arange(count, device=device), size):
        filled = torch.cat([rows, rows[-1:].expand(size - len(rows))]) if fill else rows
        yield len(rows), filled


def run_back(
    model: Model, begin: Tensor, seeds: tuple[int, ...], keys: Tensor, route: Route, callback: Callback | None
) -> Tensor:
    """Images [B, C, H, W] in [0, 1] from states ``begin``, whose first B rows have ``seeds``."""
    times, few = [*route.times.tolist(), 0.0], len(seeds)

    def watch(step: int, state: Tensor) -> None:
        if callback is not None:
            callback(Step(step + 1, len(times) - 1, times[step + 1], state[:few], seeds))

    watch(-1, begin)
    images = route.sampler.run(model, begin, route.times, KeyedNoise(keys), callback=watch).images[:few]
    if not bool(images.isfinite().all()):
        raise ValueError(
            f"the images of seeds {seeds[0]} to {seeds[-1]} are not finite: {route.sampler} diverges with "
            f"{route.nfe} evaluations; take more steps, or another sampler"
        )
    if float(((images < 0) | (images > 1)).float().mean()) > _CLIPPED:
        warnings.warn(
            f"most pixels of seeds {seeds[0]} to {seeds[-1]} lie outside [0, 1]: {route.sampler} goes astray with "
            f"{route.nfe} evaluations; take more steps, or another sampler",
            stacklevel=2,
        )
    images = images.clamp(0, 1)
    watch(len(times) - 2, images)
    return images


def prepared(network: nn.Module, *, cuda: bool, half: bool, compile: bool) -> nn.Module:
    """The network as training runs it: half precision inside, channels last, compiled; on CUDA as a graph."""
    if cuda:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if compile:
        compiled = torch.compile(network, dynamic=False)
        assert isinstance(compiled, nn.Module)
        network = compiled
    execution = Execution(network, half=half, channels_last=cuda)
    return Replayed(execution) if cuda else execution
