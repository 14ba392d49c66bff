"""From a config, or a checkpoint, to the objects of a run: process, network, model."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anisodiff import registry
from anisodiff.data import Dataset
from anisodiff.data.latents import Latents
from anisodiff.data.loader import key, permute
from anisodiff.io.checkpoint import Checkpoint, described, find
from anisodiff.io.records import differences
from anisodiff.models.base import Model
from anisodiff.networks.base import NetworkSpec
from anisodiff.processes import Process
from anisodiff.runtime.distributed import Distributed
from anisodiff.statistics import SpectralStatistics
from anisodiff.tensors import check_shapes, move_module
from anisodiff.training.config import TrainConfig
from anisodiff.training.run_folder import RunDescription, read_run

_CALIBRATION = 3  # a stream of the data's keys: which images the statistics are estimated on


def process_of(config: TrainConfig) -> Process:
    """The forward process."""
    keys = dict(config.process)
    process = registry.process(str(keys.pop("preset")), max(config.state_shape[1:]), **keys)
    if config.t_min >= process.T:
        raise ValueError(f"t_min: got {config.t_min:g}, expected less than T = {process.T:g}")
    return process


class Execution(nn.Module):
    """How the network is run inside the model: precision, memory layout. Weights stay with the network itself."""

    def __init__(self, run: nn.Module, *, half: bool, channels_last: bool) -> None:
        super().__init__()
        self._run = [run]  # in a list, so that the weights have one owner and one name
        self.half_precision, self.channels_last = half, channels_last

    @property
    def run(self) -> nn.Module:
        """The network, compiled or distributed as it may be."""
        return self._run[0]

    def forward(
        self, x: Tensor, noise_level: Tensor, labels: Tensor | None = None, dropout_key: Tensor | None = None
    ) -> Tensor:
        """The network's output in the precision of ``x``."""
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.half_precision):
            out: Tensor = self.run(x, noise_level, labels, dropout_key)
        return out.to(x.dtype)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The objects of a config that need no data: process, kind of model, network."""

    config: TrainConfig
    process: Process
    kind: type[Model]
    network: NetworkSpec

    @classmethod
    def of(cls, config: TrainConfig, device: torch.device | None = None) -> "Plan":
        """Refuses contradictions. ``device``: where the process will run.

        On CUDA its steps are compiled even where the network is not: it takes seconds, and at 256² they are six
        times as fast.
        """
        process, options = process_of(config), config.model_options
        if device is not None and device.type == "cuda":
            process = process.compiled()
        kind = registry.model_of(str(config.process["preset"]))
        kind.check(process, options)
        if config.latent and process.conditional:
            raise ValueError(
                "process.condition: it filters images, got latents; leave out --latent, or the condition"
            )
        keys = dict(config.network)
        if registry.is_ncsnpp(str(keys["name"])):  # what belongs to the method, unless it is set
            keys = {**registry.network_keys(str(config.process["preset"])), **keys}
        if "classes" in keys:
            raise ValueError(
                "network.classes: it follows from the data; set classes=auto, or the names of the classes"
            )
        if config.classes:
            keys["classes"] = 2 if config.asks_classes else len(config.classes)  # two at least: the data are to say
        channels, *size = config.state_shape
        outputs, inputs = channels * kind.outputs(process, options), channels * kind.inputs(process, options)
        network = registry.build_network(str(keys.pop("name")), (size[0], size[1]), inputs, outputs, keys)
        if config.recompute and not network.recomputes:
            raise ValueError(f"network {network.name} cannot recompute its activations; set recompute=false")
        return cls(config=config, process=process, kind=kind, network=network)

    @property
    def provided(self) -> frozenset[str]:
        """What samplers may ask of the model, see `samplers.base.CAPABILITIES`."""
        return self.kind.provides(self.process, self.config.model_options)

    @property
    def inputs(self) -> int:
        """Channels that the network sees."""
        return self.config.state_shape[0] * self.kind.inputs(self.process, self.config.model_options)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of everything but the inside of the network."""
        return torch.float64 if self.config.precision == "fp64" else torch.float32

    def build(self, device: torch.device) -> nn.Module:
        """The network with its first weights, drawn from the seed."""
        generator = torch.Generator().manual_seed(self.config.seed)
        network = self.network.build(generator, recompute=self.config.recompute).to(device, self.dtype)
        if device.type == "cuda":
            network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return network

    def statistics(self, images: Tensor, progress: Callable[[int, int], None] | None = None) -> SpectralStatistics:
        """Estimated on ``images`` [N, C, H, W] in [0, 1]."""
        return self.process.estimate_statistics(
            images, seed=self.config.seed, channel_pca=self.config.channel_pca, progress=progress
        )

    def model(self, network: nn.Module, statistics: SpectralStatistics) -> Model:
        """The model around a network, with the statistics in its precision."""
        tables = {
            f.name: value if value.dtype == torch.float64 else value.to(self.dtype)
            for f in dataclasses.fields(statistics)
            for value in [getattr(statistics, f.name)]
        }
        return self.kind.build(network, self.process, SpectralStatistics(**tables), self.config.model_options)


def assemble(
    plan: Plan, statistics: SpectralStatistics, distributed: Distributed
) -> tuple[nn.Module, Execution, Model]:
    """The network with its first weights, how it is run (compiled, distributed, in half precision), and its model."""
    network = plan.build(distributed.device)
    sharded = plan.config.shard and distributed.world > 1
    if sharded:
        network = distributed.shard(network.to(memory_format=torch.contiguous_format))  # type: ignore[call-overload]
    cuda = distributed.device.type == "cuda"
    running: nn.Module = network
    if plan.config.compile and cuda:
        compiled = torch.compile(network, dynamic=False)
        assert isinstance(compiled, nn.Module)
        running = compiled
    half = plan.config.precision == "bf16" and cuda
    execution = Execution(running if sharded else distributed.wrap(running), half=half, channels_last=cuda)
    model = plan.model(execution, statistics)
    distributed.equalize(model.buffers())
    return network, execution, model


def calibration_images(
    config: TrainConfig, dataset: Dataset, device: torch.device, latents: Latents | None = None
) -> Tensor:
    """Images [N, C, H, W] in [0, 1], or states, chosen by the seed: statistics and prior are estimated on them.

    A small set is repeated: its images get new noise each time, so the estimates still gain precision.
    """
    places = torch.arange(config.calibration).numpy() % len(dataset)
    chosen = permute(places, len(dataset), key(config.seed, _CALIBRATION))
    if latents is not None:
        keys = torch.from_numpy(key(config.seed, _CALIBRATION, np.arange(len(chosen))).view(np.int64)).to(device)
        return latents.states(torch.from_numpy(latents.rows[chosen].copy()).to(device), None, keys)
    return torch.from_numpy(dataset.images[chosen].copy()).to(device).float() / 255


def stripped(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def statistics_from(saved: Checkpoint, shape: tuple[int, int, int]) -> SpectralStatistics:
    """The statistics in a checkpoint's model file, for states of this shape, on the CPU."""
    found = stripped(saved.tensors("model"), "statistics_")
    names = [f.name for f in dataclasses.fields(SpectralStatistics)]
    if lacking := [name for name in names if name not in found]:
        raise ValueError(f"the checkpoint's model lacks the table {lacking[0]!r}: it is of another version")
    own = {name: found[name] for name in names}
    (channels, *size), intervals, phases = shape, own["edges"].numel() - 1, own["phases"].numel()
    like = {name: torch.empty(max(intervals, 1), max(phases, 2), *size, device="meta") for name in names} | {
        "edges": torch.empty(max(intervals, 1) + 1), "phases": torch.empty(max(phases, 2)),
        "mean": torch.empty(channels), "axes": torch.empty(channels, channels), "data": torch.empty(*size),
        "shares": torch.empty(channels if own["shares"].shape[:1] == (channels,) else 1, *size),
    }  # fmt: skip
    check_shapes(f"{saved.path}: the tables in model.safetensors are damaged", own, like)
    return SpectralStatistics(**own)


def network_tensors(network: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a checkpoint stores of ``network`` with these ``weights``: buffers, and shared weights by each name."""
    first = {id(p): name for name, p in network.named_parameters()}
    again = {name: weights[first[id(p)]] for name, p in network.named_parameters(remove_duplicate=False)}
    return {**stored_buffers(network), **weights, **again}


def stored_buffers(network: nn.Module) -> dict[str, Tensor]:
    """The buffers that belong to a network's state; others follow from its arguments."""
    stored = network.state_dict().keys()
    return {name: buffer for name, buffer in network.named_buffers() if name in stored}


def model_tensors(model: Model, network: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model file: weights and frozen buffers of the network, and the statistics."""
    named = {f"network.{name}": value for name, value in network.items()}
    return {**named, **{name: value for name, value in model.named_buffers() if not name.startswith("network.")}}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model ready to sample from, with everything it was trained for."""

    plan: Plan
    model: Model
    prior: dict[str, Tensor] | None
    meta: dict[str, Any]


def check_tensors(plan: Plan, weights: Mapping[str, Tensor], where: Path) -> None:
    """Compare the network of a config with the tensors beside it, before any memory is taken for it."""
    try:
        with torch.device("meta"):
            built = plan.network.build()
    except (RuntimeError, NotImplementedError):
        built = plan.network.build()  # a network of one's own may read values as it is built
    what = f"{where}: config.json describes another network than model.safetensors"
    check_shapes(what, weights, built.state_dict())


def as_trained(config: TrainConfig, saved: Mapping[str, Any]) -> TrainConfig:
    """The config with the process that a run was trained with, where its preset has other parameters today.

    ``saved`` is the run's config.json. A config whose keys of the process differ from the run's is left as it is.
    """
    if TrainConfig.from_dict({"process": saved["config"].get("process", {})}).process != config.process:
        return config
    today, valid = process_of(config).identity(), registry.process_keys(str(config.process["preset"]))
    keys = {key: value for key, value in saved["process"].items() if key in valid and value != today.get(key)}
    return replace(config, process={**config.process, **keys}) if keys else config


def read_trained(path: Path) -> RunDescription:
    """`read_run`, with the process that the run was trained with, where it has begun."""
    run, saved = read_run(path), described(path if path.is_dir() else path.parent)
    return run if saved is None else replace(run, config=as_trained(run.config, saved))


def _plan_of(saved: Checkpoint) -> Plan:
    """The plan of a checkpoint, with the process it was trained with."""
    plan = Plan.of(as_trained(TrainConfig.from_dict(saved.meta["config"]), saved.meta))
    if different := differences(saved.meta["process"], plan.process.identity()):
        raise ValueError(f"{saved.path} was trained with another process than its config describes: {different[0]}")
    return plan


def load_model(path: str | Path | Checkpoint, device: torch.device | str = "cpu") -> Trained:
    """The model of a run's newest checkpoint, or of a checkpoint (also of one without state, in half precision)."""
    saved = path if isinstance(path, Checkpoint) else find(path)
    where = torch.device(device)
    plan = _plan_of(saved)
    tensors = saved.tensors("model")
    weights = stripped(tensors, "network.")
    check_tensors(plan, weights, saved.path)
    network = plan.network.build().to(plan.dtype)
    network.load_state_dict(weights)
    model = move_module(plan.model(network, statistics_from(saved, plan.config.state_shape)), where).eval()
    prior = saved.tensors("prior") if saved.has("prior") else None
    return Trained(plan=plan, model=model, prior=prior, meta=saved.meta)
