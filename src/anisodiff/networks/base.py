"""What a network is: any module with this call. It needs no base class.

A network is made from its registered name and plain keyword arguments, and these are what a checkpoint stores.
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

    labels       classes int64 [B], of which the number of classes is the null label (any class); None: null for all.
                 A class-conditional network takes the number of classes as its keyword ``classes``
    dropout_key  int64 [B] turns dropout on, one mask a key (`layers.keyed_mask`); None: no dropout
    """

    def __call__(
        self, x: Tensor, noise_level: Tensor, labels: Tensor | None = None, dropout_key: Tensor | None = None
    ) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class NetworkSpec:
    """A network before it is built."""

    name: str
    """Of the architecture: two networks of one name and equal arguments are the same."""
    arguments: Mapping[str, Any]
    """All keyword arguments, resolved: plain values."""
    recomputes: bool = False
    """Whether it can recompute activations in the backward pass."""
    make: Callable[[Mapping[str, Any], torch.Generator, bool], nn.Module] = field(repr=False, compare=False)

    def build(self, generator: torch.Generator | None = None, *, recompute: bool = False) -> nn.Module:
        """With first weights drawn from ``generator``; ``recompute`` activations in the backward pass."""
        return self.make(self.arguments, generator or torch.Generator().manual_seed(0), recompute)


SpecFactory = Callable[[str, tuple[int, int], int, int, Mapping[str, Any]], NetworkSpec]
"""(name, (H, W), in_channels, out_channels, keys of the config) → NetworkSpec."""


def module_spec(kind: type[nn.Module]) -> SpecFactory:
    """For a module class whose ``__init__`` takes in_channels, out_channels and further keyword arguments.

    The torch default generator is seeded while it is built, so that a run's seed fixes its first weights.
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
    """Seed torch's default generator from ``generator`` for a while: modules draw their first weights from it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator.initial_seed())
        yield


def _is_plain(value: Any) -> bool:
    """Whether a checkpoint can store a default; one that it cannot stays with the class."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
