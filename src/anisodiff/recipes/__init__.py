"""Recipes: a run is one function that returns one complete config."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from anisodiff import notation
from anisodiff.recipes import cifar10
from anisodiff.recipes.own import for_dataset, for_images
from anisodiff.train.config import TrainConfig

__all__ = ["RECIPES", "for_dataset", "for_images", "recipe"]

_FULL: dict[str, Callable[[], TrainConfig]] = {
    "cifar10-anisotropic": cifar10.anisotropic,
    "cifar10-anisotropic-paper": cifar10.anisotropic_paper,
    "cifar10-ve": cifar10.ve,
    "cifar10-heat": cifar10.heat,
}


def _shorter(
    shorten: Callable[[TrainConfig], TrainConfig], full: Callable[[], TrainConfig]
) -> Callable[[], TrainConfig]:
    return lambda: shorten(full())


RECIPES: Mapping[str, Callable[[], TrainConfig]] = MappingProxyType(
    _FULL
    | {f"{name}-base": _shorter(cifar10.base, full) for name, full in _FULL.items()}
    | {f"{name}-small": _shorter(cifar10.small, full) for name, full in _FULL.items()}
)


def recipe(name: str) -> TrainConfig:
    """A recipe by name."""
    if name not in RECIPES:
        raise ValueError(f"unknown recipe {name!r}; {notation.nearest(name, RECIPES)}")
    return RECIPES[name]()
