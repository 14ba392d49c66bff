"""How fast this device trains, samples and measures: a few steps are timed.

An evaluation of the network counts as a third of a training step: the backward pass has twice the arithmetic of the
forward pass.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from anisodiff.metrics import FeatureNetwork, Settings
from anisodiff.training import Plan, TrainConfig
from anisodiff.training.estimate import estimate

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

    @property
    def evaluation(self) -> float:
        """Seconds per network evaluation of one image."""
        return self.training / 3


class Speeds:
    """Speeds of configs on ``device``; configs whose steps cost the same are timed once."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._known = device, dict[str, Speed]()

    def of(self, config: TrainConfig) -> Speed:
        if (key := _key(Plan.of(config))) not in self._known:
            few = torch.rand(_SHOWN, *config.state_shape, generator=torch.Generator().manual_seed(0))
            cost = estimate(config, self.device, few)
            self._known[key] = Speed(parameters=cost.parameters, training=cost.seconds_per_thousand / 1000)
        return self._known[key]


def _key(plan: Plan) -> str:
    """All that the time of a training step depends on."""
    config, network = plan.config, plan.network
    batch = config.batch // config.accumulation
    settings = (config.state_shape, batch, config.precision, config.compile, config.recompute, config.learns)
    return f"{network.name} {dict(network.arguments)} {settings} {plan.process.identity()}"


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
