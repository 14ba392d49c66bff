"""User-defined networks, named by their import path ``module:Class``.

Importing a module runs its code. So a path is imported only if the user named it, on the command line or in Python,
or allowed the one in a file (``--trust-code``). Otherwise a path in a checkpoint or config is text, and `find`
refuses it. A checkpoint stores the path, the arguments and the weights, never code.
"""

import importlib
import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

import torch
from torch import nn

from anisodiff.networks.base import NetworkSpec, SpecFactory, module_spec

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_TRUSTED: dict[str, type[nn.Module] | None] = {}
"""Paths that the user named in this process; the class, if it was given as an object or imported already."""
_NOT_THEIRS = ("<", str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
"""How the files of frozen modules, of this package, of Python and of what is installed begin."""
CALL = "forward(x, noise_level, labels=None, dropout_key=None)"


def is_path(name: Any) -> bool:
    """Whether a name is ``module:Class``."""
    return isinstance(name, str) and _PATH.fullmatch(name) is not None


def trust(config: Mapping[str, Any]) -> None:
    """Allow the import path in ``network`` or ``network.name`` of a config, if it is one."""
    group = config.get("network")
    for name in (group, config.get("network.name"), group.get("name") if isinstance(group, Mapping) else None):
        if is_path(name):
            _TRUSTED.setdefault(str(name), None)


def as_keys(network: Any) -> Any:
    """The ``network`` of a config with a class replaced by its import path, which is then allowed."""
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
    """``network`` for a resumed run; the network of the run, given by its name, keeps its arguments."""
    given = as_keys(network)
    return dict(saved) if isinstance(given, str) and given == saved.get("name") else given


def _given(kind: type) -> str:
    path = f"{kind.__module__}:{kind.__qualname__}"
    if not is_path(path):
        raise ValueError(f"network: {path} cannot be found by its name: define the class at the top of a module")
    _TRUSTED[path] = _checked(path, kind)
    return path


def find(path: str) -> type[nn.Module]:
    """The class of an allowed path."""
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
    """The module of a path, searched in the working folder first, and the object that the path names."""
    module_name, _, name = path.partition(":")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
        found: Any = module
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module may raise anything while it is imported
        raise ValueError(f"{what}: cannot import it ({_reason(error)})") from error
    finally:
        sys.path.remove(here)
    return module, found


def _reason(error: Exception) -> str:
    """The error of a user's code with the last place in a file that is neither ours nor installed."""
    calls = [call for call in extract_tb(error.__traceback__) if not call.filename.startswith(_NOT_THEIRS)]
    place = f", at {Path(calls[-1].filename).name}:{calls[-1].lineno}" if calls else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}{place}"


def _checked(path: str, kind: Any) -> type[nn.Module]:
    """``kind`` if it is a module class with the call of `networks.base.Network`; else a ValueError."""
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
    """As `module_spec`; the built network is called once to check the shape of its output."""
    build = module_spec(kind)

    def spec(name: str, size: tuple[int, int], inputs: int, outputs: int, keys: Mapping[str, Any]) -> NetworkSpec:
        found = build(name, size, inputs, outputs, keys)

        def make(arguments: Mapping[str, Any], generator: torch.Generator, recompute: bool) -> nn.Module:
            shapes_alone = torch.empty(0).is_meta  # code that needs values fails on the meta device
            try:
                network = found.make(arguments, generator, recompute)
                return network if shapes_alone else _tried(network, name, (inputs, *size), (outputs, *size))
            except ValueError:
                raise
            except Exception as error:  # the user's code may raise anything
                if shapes_alone:
                    raise RuntimeError(str(error)) from error
                raise ValueError(f"network {name}: it cannot be built or called ({_reason(error)})") from error

        return replace(found, make=make)

    return spec


@torch.no_grad()
def _tried(network: nn.Module, name: str, given: tuple[int, ...], expected: tuple[int, ...]) -> nn.Module:
    """The network, after a call on one black image."""
    with torch.random.fork_rng(devices=[]):
        out = network.eval()(torch.zeros(1, *given), torch.zeros(1), None, None)
    network.train()
    for key, p in network.named_parameters():
        if not p.is_floating_point():
            raise ValueError(f"network {name}: its parameter {key} is {p.dtype}, expected floats; make it a buffer")
    got = list(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
    if got != [1, *expected]:
        raise ValueError(f"network {name}: its output is {got}, expected {[1, *expected]}, as out_channels says")
    return network
