"""From a config, or a checkpoint, to the objects of a run: process, objective, network, preconditioned model."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anisodiff.data import Dataset
from anisodiff.data.permutation import key, permute
from anisodiff.integrators import Exponential, Signal, TamedEuler
from anisodiff.io.checkpoint import Checkpoint, find
from anisodiff.models.base import Model
from anisodiff.networks import NCSNpp, NCSNppConfig, ncsnpp_config
from anisodiff.objectives import Regression
from anisodiff.processes import SPDE, Process
from anisodiff.processes.presets import process as process_named
from anisodiff.statistics import SpectralStatistics, channel_axes
from anisodiff.training.config import TrainConfig
from anisodiff.training.methods import Method, method_for

_CALIBRATION = 3  # a stream of the data's keys: which images the tables are measured on


def process_of(config: TrainConfig) -> Process:
    """The forward process."""
    keys = dict(config.process)
    process = process_named(str(keys.pop("preset")), max(config.size), **keys)
    if config.t_min >= process.T:
        raise ValueError(f"t_min: got {config.t_min:g}, expected less than T = {process.T:g}")
    return process


def network_config(config: TrainConfig, outputs: int) -> NCSNppConfig:
    """The network's configuration: a named size for these images, with the run's own keys over it."""
    keys = dict(config.network)
    size = str(keys.pop("size"))
    channels = {"in_channels": config.channels, "out_channels": config.channels * outputs}
    # of a rectangle either side may be the nominal one: the first whose levels fit both
    for side in (max(config.size), min(config.size)):
        try:
            found = dataclasses.replace(ncsnpp_config(size, image_size=side, **channels), **keys)
        except TypeError as error:
            raise ValueError(f"network: {error}") from None
        if all(length % found.factor == 0 for length in config.size):
            return found
    height, width = config.size
    raise ValueError(
        f"network: images of {height}×{width} cannot be halved {found.levels - 1} times; "
        f"choose sides that are multiples of {found.factor}, or fewer network.multipliers"
    )


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

    def forward(self, x: Tensor, condition: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        """The network's output in the precision of ``x``."""
        if self.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.half_precision):
            out: Tensor = self.run(x, condition, dropout_key)
        return out.to(x.dtype)


def _compiled(process: Process) -> Process:
    """The same law with compiled steps."""
    if not isinstance(process, SPDE) or not isinstance(process.step, Exponential | Signal | TamedEuler):
        return process
    return dataclasses.replace(process, step=dataclasses.replace(process.step, compile=True))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a config says before any data is seen."""

    config: TrainConfig
    process: Process
    method: Method
    network: NCSNppConfig

    @property
    def objective(self) -> Regression:
        """What is drawn for training."""
        return self.method.objective

    @classmethod
    def of(cls, config: TrainConfig, device: torch.device | None = None) -> "Plan":
        """Contradictions are refused here. ``device``: where the process will run.

        On CUDA its steps are compiled even where the network is not: seconds, and at 256² six times as fast.
        """
        process = process_of(config)
        if device is not None and device.type == "cuda":
            process = _compiled(process)
        method = method_for(process, config)
        network = network_config(config, method.outputs)
        return cls(config=config, process=process, method=method, network=network)

    @property
    def dtype(self) -> torch.dtype:
        """The precision of everything but the inside of the network."""
        return torch.float64 if self.config.precision == "fp64" else torch.float32

    def build(self, device: torch.device) -> NCSNpp:
        """The network with its first weights, drawn from the seed."""
        generator = torch.Generator().manual_seed(self.config.seed)
        network = NCSNpp(self.network, generator=generator, checkpoint=self.config.recompute)
        placed = network.to(device, self.dtype)
        if device.type == "cuda":
            placed = placed.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        assert isinstance(placed, NCSNpp)
        return placed

    def model(self, network: nn.Module, statistics: SpectralStatistics) -> Model:
        """The model around a network; the tables' place and precision are the model's."""
        tables = {
            f.name: value if value.dtype == torch.float64 else value.to(self.dtype)
            for f in dataclasses.fields(statistics)
            for value in [getattr(statistics, f.name)]
        }
        return self.method.model(network, SpectralStatistics(**tables))


def calibration_images(config: TrainConfig, dataset: Dataset, device: torch.device) -> Tensor:
    """Images [N, C, H, W] in [0, 1], chosen by the seed: what tables and prior are fitted to.

    A small set is repeated: its images meet other noise each time, so the tables still gain in precision.
    """
    places = torch.arange(config.calibration).numpy() % len(dataset)
    chosen = permute(places, len(dataset), key(config.seed, _CALIBRATION))
    return torch.from_numpy(dataset.images[chosen].copy()).to(device).float() / 255


def statistics_from(tensors: dict[str, Tensor], device: torch.device) -> SpectralStatistics:
    """The tables of a checkpoint's model file; an older one knows of no axes of the colors."""
    found = {
        name.removeprefix("statistics_"): value for name, value in tensors.items() if name.startswith("statistics_")
    }
    try:
        found = {**channel_axes(len(found["mean"]), found["data"]), **found}
        return SpectralStatistics(
            **{f.name: found[f.name].to(device) for f in dataclasses.fields(SpectralStatistics)}
        )
    except KeyError as error:
        raise ValueError(f"the checkpoint's model has no table {error}: it is of another version") from None


def model_tensors(model: Model, weights: dict[str, Tensor], network: NCSNpp) -> dict[str, Tensor]:
    """The model file: weights and frozen buffers of the network, tables of the preconditioning."""
    named = {f"network.{name}": value for name, value in {**dict(network.named_buffers()), **weights}.items()}
    return {**named, **{name: value for name, value in model.named_buffers() if not name.startswith("network.")}}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model ready to sample from, with everything it was trained for."""

    plan: Plan
    model: Model
    prior: dict[str, Tensor] | None
    meta: dict[str, Any]


def load_model(path: str | Path | Checkpoint, device: torch.device | str = "cpu") -> Trained:
    """The model of a run's newest checkpoint, or of a checkpoint (also of one without state, in half precision)."""
    saved = path if isinstance(path, Checkpoint) else find(path)
    where = torch.device(device)
    plan = Plan.of(TrainConfig.from_dict(saved.meta["config"]))
    tensors = saved.tensors("model")
    network = NCSNpp(plan.network).to(plan.dtype)
    weights = {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}
    network.load_state_dict(weights)
    model = plan.model(network, statistics_from(tensors, torch.device("cpu"))).to(where).eval()
    prior = saved.tensors("prior") if saved.has("prior") else None
    return Trained(plan=plan, model=model, prior=prior, meta=saved.meta)
