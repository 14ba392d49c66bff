"""Recipes: a run is one function that returns one complete config."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from anisodiff import notation
from anisodiff.registry import PROCESSES
from anisodiff.training.config import TrainConfig
from anisodiff.training.recipes import baselines, celeba64, cifar10, lsun256
from anisodiff.training.recipes.own import for_dataset, for_images

__all__ = ["RECIPES", "SUMMARY", "for_dataset", "for_images", "recipe"]

_SONG = "song"
_PROCESSES = ("anisotropic", "anisotropic-paper", "ve", "heat", *PROCESSES, _SONG)
_FULL = {"cifar10": cifar10.full, "celeba64": celeba64.full, "lsun256": lsun256.full}
_SHORT = {"base": cifar10.base, "small": cifar10.small}  # of CIFAR-10


def _made(make: Callable[[str], TrainConfig], process: str) -> TrainConfig:
    return baselines.song(make("ve")) if process == _SONG else baselines.paper(make(process))


RECIPES: Mapping[str, Callable[[], TrainConfig]] = MappingProxyType(
    {f"{data}-{process}": partial(_made, full, process) for data, full in _FULL.items() for process in _PROCESSES}
    | {
        f"cifar10-{process}-{size}": partial(_made, shorten, process)
        for size, shorten in _SHORT.items()
        for process in _PROCESSES
    }
    | {"cifar10-anisotropic-best": cifar10.best}
)
SUMMARY = (
    f"{', '.join(f'{data}-…' for data in _FULL)} with {', '.join(_PROCESSES)}; "
    f"cifar10-… also with {', '.join(f'-{size}' for size in _SHORT)} at the end; "
    "cifar10-anisotropic-best"
)
"""All of them in one line."""


def recipe(name: str) -> TrainConfig:
    """A recipe by name."""
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}; {notation.nearest(name, RECIPES)}")
    return RECIPES[name]()
