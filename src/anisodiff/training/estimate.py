"""What a run will cost: parameters, memory, time; answered within seconds on any machine.

The network is not compiled, and no more than a few passes are made: where one at full size would take too long,
smaller ones are timed (`timing`).
"""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anisodiff.latent.autoencoder import Autoencoder
from anisodiff.noise import KeyedNoise
from anisodiff.runtime.durations import about
from anisodiff.training.config import TrainConfig
from anisodiff.training.model import Execution, Plan
from anisodiff.training.setup import find_autoencoder, memory_in_one_line, prepare_device
from anisodiff.training.timing import Cost, Load, ascending, climb

_PASSES, _PAIRS, _ROWS, _ENCODED = 5.0, 1.0, 1.0, 2.0
"""Seconds that may be spent on the network, the forward process, the preconditioning and the autoencoder."""
_FARTHEST = 256  # times what was timed: beyond, nothing is said
_SLOW = 1.5  # seconds of a forward pass after which the backward pass is left out
_MOST = 64  # images
_SAMPLED = 1 << 22  # weights of which an update is timed


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes and seconds."""

    parameters: int
    state_bytes: int
    """Weights, gradients, Adam's moments, EMA."""
    activation_bytes: int
    """Kept for the backward pass of one part of a batch."""
    measured_bytes: int | None
    """Peak of the device's memory, where it was read at the run's own size."""
    batch: int
    """Images of the largest pass that was timed."""
    size: tuple[int, int]
    """Their height and width; smaller than the run's where that would take too long."""
    how: str
    """What was timed, in words."""
    seconds_before: float | None
    """Preconditioning and prior, before the first step; None where too little of it could be timed."""
    seconds_per_thousand: float
    seconds_in_all: float
    """Without ``seconds_before`` where that is None."""
    seconds_encoding: float = 0.0
    """Once, for the latents of all images."""

    @property
    def bytes(self) -> int:
        """Measured where possible."""
        return self.measured_bytes or self.state_bytes + self.activation_bytes


def estimate(
    config: TrainConfig,
    device: torch.device,
    images: Tensor,
    say: Callable[[str], None] = lambda _: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Estimate:
    """Time parts of the run on a few ``images`` [N, C, H, W]; nothing is written."""
    plan = Plan.of(config)
    for note in prepare_device(config, device):
        say(note)
    with memory_in_one_line(config):
        return _measured(plan, device, images, clock)


def _measured(plan: Plan, device: torch.device, images: Tensor, clock: Callable[[], float]) -> Estimate:
    config, cuda = plan.config, device.type == "cuda"
    part = config.batch // config.accumulation
    network = plan.build(device)
    execution = Execution(network, half=cuda and config.precision == "bf16", channels_last=cuda)
    passes = _Passes(plan, execution, device, clock)
    cost = climb(ascending(config.state_shape[1:], part if cuda else min(part, 4)), passes.run, _PASSES, clock)
    before, pairs = _process_seconds(plan, images.to(device, plan.dtype), clock)
    parameters = sum(p.numel() for p in network.parameters())
    update = _update_seconds(parameters, len(config.ema), device, clock)
    whole = Load(part, *config.state_shape[1:])
    seconds = (cost.of(whole.pixels) + pairs.of(whole.pixels)) / part + update / config.batch
    copies = 4 + len(config.ema)  # weights, gradients, two moments, EMA
    state = copies * parameters * torch.finfo(plan.dtype).bits // 8
    largest, _ = cost.timed[-1]
    kept = int(passes.kept * whole.pixels / largest.pixels)
    return Estimate(
        parameters=parameters,
        state_bytes=state,
        activation_bytes=kept,
        measured_bytes=state + kept if cuda and largest == whole else None,
        batch=largest.count,
        size=(largest.height, largest.width),
        how=_words(cost, pairs, whole, forward_only=passes.forward_only, compiled=cuda and config.compile),
        seconds_before=before,
        seconds_per_thousand=1000 * seconds,
        seconds_in_all=(before or 0.0) + seconds * config.images_seen,
    )


def _words(cost: Cost, pairs: Cost, whole: Load, *, forward_only: bool, compiled: bool) -> str:
    load, seconds = cost.timed[-1]
    kind = "forward pass" if forward_only else "pass"
    images = f"{load.count} image{'s' * (load.count > 1)} of {load.height}×{load.width}"
    verb = "measured in" if load == whole and not forward_only else "estimated from"
    rough = [name for name, one in (("passes", cost), ("simulations", pairs)) if one.rough(whole.pixels)]
    also = f"; a rough upper bound: {' and '.join(rough)} of only one size could be timed" if rough else ""
    also += "; without compilation: compiled steps are faster" if compiled else ""
    return f"{verb} a {kind} of {images}, {about(seconds)} a pass{also}"


class _Passes:
    """Forward and backward passes of the network on noise."""

    def __init__(self, plan: Plan, execution: Execution, device: torch.device, clock: Callable[[], float]) -> None:
        self.plan, self.execution, self.device, self.clock = plan, execution, device, clock
        self.kept = 0
        """Bytes that the last one kept for its backward pass."""
        self.forward_only = False
        """Whether the last one was too slow for a backward pass, which was taken as two forward passes."""

    def run(self, load: Load) -> float:
        """Seconds of one pass; where it is short, the second one, which finds everything set up."""
        x = torch.randn(load.count, self.plan.inputs, load.height, load.width).to(self.device, self.plan.dtype)
        first = self._one(x)
        return self._one(x) if first < 0.5 or self.device.type == "cuda" else first

    def _one(self, x: Tensor) -> float:
        key = torch.arange(len(x), device=x.device)
        level = torch.zeros(len(x), dtype=x.dtype, device=x.device)
        base = _allocated(x.device)
        begin = self.clock()
        if base is None:
            seen: dict[int, int] = {}
            with torch.autograd.graph.saved_tensors_hooks(_noting(seen), lambda tensor: tensor):
                out = self.execution(x, level, None, key)
            weights = {p.untyped_storage().data_ptr() for p in self.execution.run.parameters()}
            self.kept = sum(size for place, size in seen.items() if place not in weights)
        else:
            out = self.execution(x, level, None, key)
        _wait(x.device)
        forward = self.clock() - begin
        self.forward_only = forward > _SLOW
        if self.forward_only:
            seconds = forward * (4 if self.plan.config.recompute else 3)
        else:
            torch.autograd.backward(out.square().mean())
            _wait(x.device)
            seconds = self.clock() - begin
        if base is not None:
            gradients = sum(p.numel() * p.element_size() for p in self.execution.run.parameters())
            self.kept = max(0, torch.cuda.max_memory_allocated(x.device) - base - gradients)
        for p in self.execution.run.parameters():
            p.grad = None
        return seconds


def _process_seconds(plan: Plan, images: Tensor, clock: Callable[[], float]) -> tuple[float | None, Cost]:
    """Seconds before the first step, and those of a simulation."""
    process, config = plan.process, plan.config
    shares = [1 / 16]  # of the time axis, of which a simulation is timed

    def shown(load: Load) -> Tensor:
        return images[torch.arange(load.count) % len(images), :, : load.height, : load.width]

    def pair(load: Load) -> float:
        t = process.snap_to_grid(torch.full((load.count,), shares[-1] * process.T, dtype=torch.float64))
        noise = KeyedNoise(torch.arange(load.count, device=images.device))  # as in training: fused kernels need it
        begin = clock()
        process.training_pair(shown(load), t, noise)
        _wait(images.device)
        return (clock() - begin) / shares[-1]

    def statistics(load: Load) -> float:
        begin, parts = clock(), [1.0]

        def enough(done: int, total: int) -> None:
            parts[0] = total / done
            if clock() - begin > _ROWS / 10:
                raise _Enough

        with contextlib.suppress(_Enough):
            plan.statistics(shown(load), enough)
        return (clock() - begin) * parts[0]

    loads = ascending(config.state_shape[1:], _MOST)
    if min(pair(loads[0]), pair(loads[0])) < _PAIRS / 4:  # the first one sets up
        shares.append(1.0)
    pairs, rows = climb(loads, pair, _PAIRS, clock), climb(loads, statistics, _ROWS, clock)
    calibrated = math.prod(config.state_shape[1:]) * config.calibration
    enough = len(rows.timed) > 1 and rows.timed[-1][0].pixels * _FARTHEST >= calibrated
    before = rows.of(calibrated) + pairs.of(calibrated) if enough else None
    return before, pairs


def encoding_seconds(config: TrainConfig, device: torch.device) -> float:
    """Seconds to encode an image and its mirror image, by the autoencoder of a config with latents."""
    autoencoder = Autoencoder(find_autoencoder(config), device)

    def encode(load: Load) -> float:
        images = torch.zeros(load.count, config.channels, load.height, load.width)
        begin = time.perf_counter()
        autoencoder.encode(images)
        _wait(device)
        return time.perf_counter() - begin

    loads = ascending(config.size, 16)
    return 2 * climb(loads, encode, _ENCODED).of(loads[-1].pixels) / loads[-1].count


class _Enough(Exception):
    """A measurement that has seen enough."""


def _update_seconds(parameters: int, averages: int, device: torch.device, clock: Callable[[], float]) -> float:
    """Seconds of Adam and the EMA, in proportion to some of the weights."""
    weights = torch.nn.Parameter(torch.zeros(min(parameters, _SAMPLED), device=device))
    weights.grad = torch.zeros_like(weights)
    averaged = [torch.zeros_like(weights) for _ in range(averages)]
    adam, seconds = torch.optim.Adam([weights], fused=True), 0.0
    for _ in range(2):
        begin = clock()
        adam.step()
        for average in averaged:
            average.lerp_(weights.detach(), 0.5)
        _wait(device)
        seconds = clock() - begin
    return seconds * parameters / len(weights)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _allocated(device: torch.device) -> int | None:
    """Bytes on a GPU, whose peak is read from here on; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _noting(seen: dict[int, int]) -> Callable[[Tensor], Any]:
    """Note the bytes of every storage that is kept for the backward pass, once."""

    def pack(tensor: Tensor) -> Any:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    return pack
