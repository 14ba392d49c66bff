"""How fast this device trains, samples and measures: a few timed steps, scaled to other networks by their arithmetic.

    seconds per image = R · F / F₀       R timed with a network of F₀ operations, F those of another network

An evaluation of the network counts as a third of a training step: the backward pass has twice the arithmetic of the
forward pass.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from anisodiff.metrics import FeatureNetwork, Settings
from anisodiff.training import Plan, TrainConfig
from anisodiff.training.estimate import estimate

ALLOWED = 6.0
"""Seconds to spend on timing; the first network is timed in any case."""
_SHOWN = 16
_FEATURES = 2048  # of Inception
_PUBLISHED = {"inception": 11.4e9, "dinov2": 162e9}
"""Operations of one image: Inception at 299², DINOv2 large at 224²."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Of one network and process on this device."""

    parameters: int
    training: float
    """Seconds per image."""
    timed_process: bool = True
    """False: the forward process is counted as that of the run this one is scaled from."""

    @property
    def evaluation(self) -> float:
        """Seconds per network evaluation of one image."""
        return self.training / 3


@dataclass(frozen=True, kw_only=True)
class _Timed:
    speed: Speed
    process: str
    operations: float
    took: float


class Speeds:
    """Speeds of configs on ``device``; configs whose steps cost the same are timed once."""

    def __init__(self, device: torch.device, clock: Callable[[], float] = time.perf_counter) -> None:
        self.device, self._clock, self._begun = device, clock, clock()
        self._timed: list[_Timed] = []
        self._known: dict[str, Speed] = {}

    def of(self, config: TrainConfig) -> Speed:
        plan = Plan.of(config)
        key = _key(plan)
        if key not in self._known:
            operations, parameters = count(plan)
            if operations is None or self._affordable(operations):
                self._known[key] = self._time(plan, operations)
            else:
                self._known[key] = self._scale(plan, operations, parameters)
        return self._known[key]

    def _affordable(self, operations: float) -> bool:
        if not self._timed:
            return True
        near = self._nearest(operations, self._timed)
        return self._clock() - self._begun + near.took * max(1.0, operations / near.operations) < ALLOWED

    def _time(self, plan: Plan, operations: float | None) -> Speed:
        begin, source, config = self._clock(), torch.Generator().manual_seed(0), plan.config
        cost = estimate(config, self.device, torch.rand(_SHOWN, *config.state_shape, generator=source))
        speed = Speed(parameters=cost.parameters, training=cost.seconds_per_thousand / 1000)
        if operations is not None:
            took, process = self._clock() - begin, str(plan.process.identity())
            self._timed.append(_Timed(speed=speed, process=process, operations=operations, took=took))
        return speed

    def _scale(self, plan: Plan, operations: float, parameters: int) -> Speed:
        """By the arithmetic of the network, from a run with the same forward process where one was timed."""
        same = [one for one in self._timed if one.process == str(plan.process.identity())]
        near = self._nearest(operations, same or self._timed)
        training = near.speed.training * operations / near.operations
        return Speed(parameters=parameters, training=training, timed_process=bool(same))

    @staticmethod
    def _nearest(operations: float, timed: list[_Timed]) -> _Timed:
        """The run whose network has the most similar arithmetic."""
        return min(timed, key=lambda one: abs(math.log(one.operations / operations)))


def _key(plan: Plan) -> str:
    """All that the time of a training step depends on."""
    config, network = plan.config, plan.network
    batch = config.batch // config.accumulation
    settings = (config.state_shape, batch, config.precision, config.compile, config.recompute, config.learns)
    return f"{network.name} {dict(network.arguments)} {settings} {plan.process.identity()}"


def count(plan: Plan) -> tuple[float | None, int]:
    """Operations of a forward pass of one image (None where they cannot be counted), and trained parameters."""
    config = plan.config
    try:
        with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
            network = plan.network.build()
            network(torch.empty(1, plan.inputs, *config.state_shape[1:]), torch.empty(1), None, None)
    except Exception:  # a network of the user's own may read values, which this device does not have
        return None, 0
    parameters = sum(p.numel() for p in network.parameters() if p.requires_grad)
    return counter.get_total_flops() * (4 / 3 if config.recompute else 1), parameters


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """Seconds that the metrics take."""

    feature: float
    """Per image, in the feature network."""
    product: float
    """Per operation of a matrix product in double precision."""
    roots: float
    """All Fréchet distances of one column, extrapolation included."""
    features: int = _FEATURES

    def seconds(self, images: int, reference: int) -> float:
        """One column: its features, and distances between the two sets."""
        n, m = (min(count, Settings().prdc_limit) for count in (images, reference))
        return images * self.feature + 2 * self.features * (n * n + m * m + n * m) * self.product + self.roots


def time_metrics(device: torch.device, network: FeatureNetwork | str, size: tuple[int, int]) -> Measuring:
    """``network``: one to time with images of ``size``; or the name of one that may have to be downloaded first."""
    features = _FEATURES
    if isinstance(network, str):
        layer, plane = torch.nn.Conv2d(192, 192, 3, padding=1).to(device), torch.rand(4, 192, 35, 35, device=device)
        rate = 2 * 4 * 192 * 192 * 9 * 35 * 35 / _best(device, lambda: layer(plane))
        feature = 2 * _PUBLISHED[network] / rate  # its other layers are slower
    else:
        few = torch.randint(0, 255, (4, 3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        features = network(few)[0].shape[1]
        feature = _best(device, lambda: network(few)) / len(few)
    side = min(features, 1024) or 1  # without a network there are none
    square = torch.rand(side, side, dtype=torch.float64, device=device)
    product = _best(device, lambda: square @ square) / (2 * side**3)
    root = _best(device, lambda: torch.linalg.eigvalsh(square @ square.T)) * (features / side) ** 3
    return Measuring(feature=feature, product=product, roots=root * (1 + Settings().fid_blocks), features=features)


@torch.no_grad()
def _best(device: torch.device, work: Callable[[], Any]) -> float:
    """Seconds of ``work``: the best of two, after a first one."""
    found = []
    for _ in range(3):
        begin = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - begin)
    return min(found[1:])
