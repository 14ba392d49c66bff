"""The contract of a network: any module with this call; it needs no base class.

A network is built from its registered name and plain keyword arguments, which a checkpoint stores.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Network(Protocol):
    """F(x, noise_level) on x [B, C, H, W] and noise_level [B] → [B, C·outputs, H, W].

    labels       classes int64 [B], 0 … K − 1, or K for the null label; None: the null label for all. A
                 class-conditional network has a keyword argument ``classes`` = K
    dropout_key  int64 [B] enables dropout, one mask per key (`dropout.keyed_mask`); None: no dropout
    """

    def __call__(
        self, x: Tensor, noise_level: Tensor, labels: Tensor | None = None, dropout_key: Tensor | None = None
    ) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class NetworkSpec:
    """A network before it is built."""

    name: str
    """The architecture: networks with equal names and arguments are equal."""
    arguments: Mapping[str, Any]
    """All keyword arguments, with defaults, as plain values."""
    recomputes: bool = False
    """Whether it supports gradient checkpointing."""
    make: Callable[[Mapping[str, Any], torch.Generator, bool], nn.Module] = field(repr=False, compare=False)

    def build(self, generator: torch.Generator | None = None, *, recompute: bool = False) -> nn.Module:
        """The network with initial weights from ``generator``; ``recompute``: gradient checkpointing."""
        return self.make(self.arguments, generator or torch.Generator().manual_seed(0), recompute)


SpecFactory = Callable[[str, tuple[int, int], int, int, Mapping[str, Any]], NetworkSpec]
"""(name, (H, W), in_channels, out_channels, keys of the config) → NetworkSpec."""


def module_spec(kind: type[nn.Module]) -> SpecFactory:
    """For a module class whose ``__init__`` takes in_channels, out_channels and further keyword arguments.

    Torch's default generator is seeded while it is built, so that the seed of a run fixes the initial weights.
    """
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(kind).parameters.items()
        if name not in ("in_channels", "out_channels")
    }
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    named = {name: p for name, p in parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    defaults = {name: p.default for name, p in named.items() if p.default is not p.empty and _is_plain(p.default)}

    def make(arguments: Mapping[str, Any], generator: torch.Generator, recompute: bool) -> nn.Module:
        with seeded(generator):
            return kind(**arguments)

    def spec(name: str, size: tuple[int, int], inputs: int, outputs: int, keys: Mapping[str, Any]) -> NetworkSpec:
        if "classes" in keys and "classes" not in parameters:
            raise ValueError(
                f"network: {name} is not class-conditional: give it a keyword 'classes', or set classes=none"
            )
        for key in keys:
            if key in ("in_channels", "out_channels") or not (open_ended or key in named):
                raise ValueError(f"network: {name} has no {key!r}; valid: {', '.join(named)}")
        if missing := [key for key, p in named.items() if p.default is p.empty and key not in keys]:
            raise ValueError(f"network: {name} needs {missing[0]!r}: give network.{missing[0]}=…")
        arguments = {"in_channels": inputs, "out_channels": outputs, **defaults, **keys}
        return NetworkSpec(name=name, arguments=arguments, make=make)

    return spec


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Seed torch's default generator from ``generator`` inside the context."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator.initial_seed())
        yield


def _is_plain(value: Any) -> bool:
    """Whether a checkpoint can store this default value."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
