"""What a run will cost: parameters, memory, time per thousand images."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from anisodiff.runtime.distributed import Distributed
from anisodiff.training.config import TrainConfig
from anisodiff.training.model import Plan, assemble
from anisodiff.training.setup import memory_named, prepare_device
from anisodiff.training.step import Stepper

_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Bytes and seconds."""

    parameters: int
    state_bytes: int
    """Weights, gradients, Adam's moments, EMA."""
    activation_bytes: int
    """Kept for the backward pass of one part of a batch."""
    measured_bytes: int | None
    """Peak of the device's memory, where it can be read."""
    batch: int
    """Images a step that was timed; smaller than the run's on a CPU."""
    seconds_per_thousand: float
    seconds_in_all: float

    @property
    def bytes(self) -> int:
        """Measured where possible."""
        return self.measured_bytes or self.state_bytes + self.activation_bytes


def estimate(
    config: TrainConfig, device: torch.device, images: Tensor, say: Callable[[str], None] = lambda _: None
) -> Estimate:
    """Build the run on a few ``images`` [N, C, H, W] and time its steps; nothing is written.

    A CPU times steps of at most four images (two above 64²), estimates the statistics on at most sixteen (two), and
    scales: neither time nor memory depends on the values of the statistics.
    """
    part = timed = config.batch // config.accumulation
    if device.type != "cuda":
        small = max(config.size) <= 64
        timed, images = min(part, 4 if small else 2), images[: 16 if small else 2]
    plan = Plan.of(replace(config, batch=timed, accumulation=1), device)
    for note in prepare_device(config, device):
        say(note)
    with memory_named(config):
        return _measured(config, plan, images, timed, _Single(device))


def _measured(config: TrainConfig, plan: Plan, images: Tensor, timed: int, distributed: Distributed) -> Estimate:
    """The estimate, by doing ``timed`` images a step."""
    device, part = distributed.device, config.batch // config.accumulation
    statistics = plan.statistics(images.to(device))
    network, execution, model = assemble(plan, statistics, distributed)
    stepper = Stepper(plan, model, network, execution, distributed)
    shown = images.to(device, plan.dtype)[torch.arange(plan.config.batch) % len(images)]
    kept = 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        stepper.step(0, shown)  # compiles; its peak is read below
    else:
        kept = _saved_bytes(lambda: stepper.step(0, shown))
    _wait(device)
    begin = time.perf_counter()
    for k in range(1, 1 + _STEPS):
        with stepper.ahead():  # as in the loop
            prepared = stepper.prepare(k, shown)
        stepper.step(k, prepared)
    _wait(device)
    seconds = (time.perf_counter() - begin) / (_STEPS * timed)
    parameters = sum(p.numel() for p in network.parameters())
    copies = 4 + len(config.ema)  # weights, gradients, two moments, EMA
    state = copies * parameters * torch.finfo(plan.dtype).bits // 8
    measured = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    return Estimate(
        parameters=parameters,
        state_bytes=state,
        activation_bytes=int(kept * part / timed) if measured is None else max(0, measured - state),
        measured_bytes=measured,
        batch=timed,
        seconds_per_thousand=1000 * seconds,
        seconds_in_all=seconds * config.images,
    )


class _Single(Distributed):
    """One process, even under `accelerate launch`."""

    def __init__(self, device: torch.device) -> None:
        self.world, self.rank, self.device, self._accelerator = 1, 0, device, None


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _saved_bytes(run: Callable[[], None]) -> int:
    """Bytes of all tensors kept for the backward pass while ``run`` goes, each storage once."""
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Any:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(seen.values())
