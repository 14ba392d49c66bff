"""Before the first step: does the data fit, what is this run called, is it the run that lies in the folder."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from anisodiff.data import Dataset
from anisodiff.io import records
from anisodiff.models.base import Model
from anisodiff.runtime.distributed import Distributed
from anisodiff.statistics import SpectralStatistics
from anisodiff.training.config import FREE, TrainConfig, completed
from anisodiff.training.model import Execution, Plan
from anisodiff.version import __version__


def check_data(config: TrainConfig, dataset: Dataset) -> None:
    """The images must be what the network is built for."""
    got, expected = (dataset.channels, *dataset.size), (config.channels, *config.size)
    if got != expected:
        raise ValueError(
            f"the data are {'×'.join(map(str, got))} (channels, height, width), the recipe expects "
            f"{'×'.join(map(str, expected))}; --set size=… channels=…, or prepare the data anew"
        )


def prepare_device(config: TrainConfig, device: torch.device) -> list[str]:
    """Global switches; what of the config does not apply here, in words."""
    if device.type == "cuda":
        # TF32 for convolutions only: the DCT of the preconditioning is a matrix product and needs all of float32
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = not config.deterministic
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True)
        return []
    wanted = [word for word, on in (("bf16", config.precision == "bf16"), ("compile", config.compile)) if on]
    if not wanted:
        return []
    return [f"on a {device.type} without {' and '.join(wanted)}: the network runs as it is, in float32"]


def remarks(config: TrainConfig) -> list[str]:
    """What is allowed but hardly meant, in words."""
    seen = config.steps * config.batch
    if seen >= config.warm_up or not seen:  # without a step there is no learning rate
        return []
    return [
        f"the warm-up of {config.warm_up} images is longer than the run of {config.images}: the learning rate ends "
        f"at {config.lr * seen / config.warm_up:.2g}, not {config.lr:g}; try --set warm_up={config.images // 20}"
    ]


@contextmanager
def memory_named(config: TrainConfig, world: int = 1) -> Iterator[None]:
    """Too little memory as one line, with a remedy that changes no result: the run can be continued with it."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        share = world
        finer = [n for n in range(config.accumulation + 1, config.batch + 1) if config.batch % (n * share) == 0]
        remedy = "take a smaller network or smaller images" if config.recompute else "--set recompute=true"
        if finer:
            remedy = f"--set accumulation={finer[0]} or more: smaller parts of the same batch"
        raise MemoryError(
            f"not enough memory for {config.batch // (world * config.accumulation)} images at a time; {remedy}"
        ) from error


def assemble(
    plan: Plan, statistics: SpectralStatistics, distributed: Distributed
) -> tuple[nn.Module, Execution, Model]:
    """The network with its weights, how it is run (compiled, distributed, in half precision), and the model of it."""
    network = plan.build(distributed.device)
    cuda = distributed.device.type == "cuda"
    running: nn.Module = network
    if plan.config.compile and cuda:
        compiled = torch.compile(network, dynamic=False)
        assert isinstance(compiled, nn.Module)
        running = compiled
    half = plan.config.precision == "bf16" and cuda
    execution = Execution(distributed.wrap(running), half=half, channels_last=cuda)
    model = plan.model(execution, statistics)
    distributed.equalize(model.buffers())
    return network, execution, model


def describe(plan: Plan, dataset: Dataset) -> dict[str, Any]:
    """What config.json says of a run, whatever its step."""
    described = {
        "version": __version__,
        "config": plan.config.to_dict(),
        "process": plan.process.identity(),
        "network": dict(plan.network.arguments),
        "data": {
            "fingerprint": dataset.fingerprint,
            "images": len(dataset),
            "source": str(dataset.meta.get("source", "")),
        },
        "start": None,  # or what the first weights were taken from
    }
    plain: dict[str, Any] = json.loads(json.dumps(described))  # lists for tuples, as they will be read back
    return plain


def differences(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """What keeps a run from being continued as another, each difference in words."""
    # process and network are compared as resolved: two notations of one process are equal
    old, new = (
        {key: record.get(key, {}) for key in ("process", "config", "network", "data")} for record in (saved, wanted)
    )
    old["config"] = completed(old["config"])
    free = (*(f"config.{key}" for key in (*FREE, "process", "network")), "data.images", "data.source")
    return [line.removeprefix("config.") for line in records.differences(old, new, may_change=free)]
