"""What the baselines' own recipes have instead of ours; see docs/baselines.md for where each number is from."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from anisodiff.registry import PROCESSES
from anisodiff.training.config import TrainConfig

_ENDS = {"t_min": 1e-5}  # they end at t = 0 themselves: this is only how short an edit may be

_PUBLISHED: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # Lipman et al. 2023, public settings for CIFAR-10: 400 k steps of 128, EMA 0.9999, dropout 0.1
        "flow-matching": {"images": 51_200_000},
        # Rissanen et al. 2023: 1.3 M steps of 128, EMA 0.999, dropout 0.1, no flips
        "heat-dissipation": {"ema": ("constant(0.999)", "power(0.05)", "power(0.1)"), "flip": False},
        # Vandersanden et al. 2024 publish none for CIFAR-10: the length and EMA of the others
        "edge-preserving": {},
    }
)

_SONG = {"parameterization": "ve", "weighting": "noise", "times": "uniform"}


def song(config: TrainConfig) -> TrainConfig:
    """A run of `ve` as Song et al. 2021 train it: their network's input and output, ‖σs + ξ‖², t uniform.

    Their average of the weights is 0.999 for `ve`; in short runs that of all others.
    """
    first = config.ema[0].replace("0.9999", "0.999")
    return config.changed({**_SONG, "ema": (first, *config.ema[1:])})


def paper(config: TrainConfig) -> TrainConfig:
    """A run of `…-paper` as the paper has it: the score alone is learned, the drift is its stencil's."""
    return config.changed({"learns": "score"} if str(config.process["preset"]).endswith("-paper") else {})


def ended(config: TrainConfig) -> TrainConfig:
    """The run of a baseline, in everything but the method that of ours; other processes are left as they are."""
    return config.changed(_ENDS) if config.process["preset"] in PROCESSES else config


def published(config: TrainConfig) -> TrainConfig:
    """The same with what the baseline's authors publish for CIFAR-10."""
    return ended(config).changed(_PUBLISHED.get(str(config.process["preset"]), {}))
