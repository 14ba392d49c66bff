"""Networks of the user's own, named by their import path ``module:Class``.

To import a module is to run it. So a path is imported only after the user has named it: on the command line, as an
argument in Python, or by allowing the one in a file (``--trust-code``). Until then a path in a checkpoint or a config
is text, and `find` refuses it. A checkpoint stores the path, the arguments and the weights, never code.
"""

import importlib
import inspect
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import nn

from anisodiff.networks.base import NetworkSpec, SpecFactory, module_spec

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_TRUSTED: dict[str, type[nn.Module] | None] = {}
"""What the user has named in this process; the class, where it was given itself."""
CALL = "forward(x, noise_level, labels=None, dropout_key=None)"


def is_path(name: Any) -> bool:
    """Whether a name is ``module:Class``."""
    return isinstance(name, str) and _PATH.fullmatch(name) is not None


def trust(config: Mapping[str, Any]) -> None:
    """Allow the network that the keys of a config name, ``network`` or ``network.name``; other names need nothing."""
    group = config.get("network")
    for name in (group, config.get("network.name"), group.get("name") if isinstance(group, Mapping) else None):
        if is_path(name):
            _TRUSTED.setdefault(str(name), None)


def as_keys(network: Any) -> Any:
    """A config's ``network`` with the import path in place of a class that was given itself, which is allowed."""
    if isinstance(network, nn.Module):
        raise ValueError(
            f"network: got a {type(network).__name__} that is built already; expected its class with its arguments, "
            f"such as network={{'name': {type(network).__name__}, 'width': 64}}"
        )
    if isinstance(network, type):
        return _given(network)
    if isinstance(network, Mapping) and isinstance(network.get("name"), type):
        return {**network, "name": _given(network["name"])}
    return network


def again(network: Any, saved: Mapping[str, Any]) -> Any:
    """``network`` as given to a run that goes on; the run's own, named by its name alone, keeps its arguments."""
    given = as_keys(network)
    return dict(saved) if isinstance(given, str) and given == saved.get("name") else given


def _given(kind: type) -> str:
    path = f"{kind.__module__}:{kind.__qualname__}"
    if not is_path(path):
        raise ValueError(f"network: {path} cannot be found by its name: define the class at the top of a module")
    _TRUSTED[path] = _checked(path, kind)
    return path


def find(path: str) -> type[nn.Module]:
    """The class of a path that the user has named."""
    if path not in _TRUSTED:
        raise ValueError(
            f"the network {path} is code outside of anisodiff, named by a file: nothing was imported; if you trust "
            "that module add --trust-code (in Python trust_code=True, or name the network yourself)"
        )
    found = _TRUSTED[path]
    if found is None:
        found = _TRUSTED[path] = _checked(path, imported(path, f"network {path}")[1])
    return found


def imported(path: str, what: str) -> tuple[ModuleType, Any]:
    """The module of a path, found as Python finds it or in the working folder, and what the path names in it."""
    module_name, _, name = path.partition(":")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module may raise anything while it is imported
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise ValueError(f"{what}: cannot import it ({reason})") from error
    finally:
        sys.path.remove(here)
    return module, found


def _checked(path: str, kind: Any) -> type[nn.Module]:
    """A module class that is called as `networks.base.Network` is."""
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ValueError(f"network {path}: expected a class of torch.nn.Module, got {type(kind).__name__}")
    try:
        call = inspect.signature(kind.forward)
        call.bind(None, "x", "noise_level", "labels", "dropout_key")
        call.bind(None, "x", "noise_level", labels=None, dropout_key=None)
    except TypeError:
        raise ValueError(f"network {path}: its call is forward{call}, expected {CALL}") from None
    try:
        made = inspect.signature(kind)
        made.bind_partial(in_channels=3, out_channels=3)
    except TypeError:
        raise ValueError(f"network {path}: got {kind.__name__}{made}, expected in_channels, out_channels") from None
    return kind


def own_spec(kind: type[nn.Module]) -> SpecFactory:
    """As `module_spec`; what is built is called once, so that a wrong output shows before any work."""
    build = module_spec(kind)

    def spec(name: str, size: tuple[int, int], inputs: int, outputs: int, keys: Mapping[str, Any]) -> NetworkSpec:
        found = build(name, size, inputs, outputs, keys)

        def make(arguments: Mapping[str, Any], generator: torch.Generator, recompute: bool) -> nn.Module:
            shapes_alone = torch.empty(0).is_meta  # then what needs values fails, and is built again with them
            try:
                network = found.make(arguments, generator, recompute)
                return network if shapes_alone else _tried(network, name, (inputs, *size), (outputs, *size))
            except ValueError:
                raise
            except Exception as error:  # the user's code may raise anything
                if shapes_alone:
                    raise RuntimeError(str(error)) from error
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                raise ValueError(f"network {name}: it cannot be built or called ({reason})") from error

        return replace(found, make=make)

    return spec


@torch.no_grad()
def _tried(network: nn.Module, name: str, given: tuple[int, ...], expected: tuple[int, ...]) -> nn.Module:
    """The network, after a call on one black image."""
    with torch.random.fork_rng(devices=[]):
        out = network.eval()(torch.zeros(1, *given), torch.zeros(1), None, None)
    network.train()
    got = list(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
    if got != [1, *expected]:
        raise ValueError(f"network {name}: its output is {got}, expected {[1, *expected]}, as out_channels says")
    return network
