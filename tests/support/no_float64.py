"""A device without float64, as Apple's MPS is one, on the CPU: tensors say they are elsewhere and hold one here.

Making one of float64 there, or mixing the two places in one operation, is the error that MPS gives. A program that
imports this has the device until it ends: run it in a process of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

from anisodiff import tensors

NAME = "nodouble"
_COPIES = ("aten::_to_copy", "aten::copy_", "aten::index", "aten::index_put_", "aten::index_put")
"""Operations that may see both places: copies, and indices of the host."""


class There(Tensor):
    """A tensor of the device; ``held`` has its values."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "There":
        if held.dtype in (torch.float64, torch.complex128):
            raise TypeError(
                "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64"
            )
        made = Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=torch.device(NAME, 0),
        )  # fmt: skip
        made.held = held
        return made

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), named: Any = None) -> Any:
        return _call(function, args, named or {})


class _Literals(TorchFunctionMode):
    """Tensors of Python's numbers, which torch makes without asking a dispatch mode."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), named: Any = None) -> Any:
        named = named or {}
        wanted = named.get("device")
        if function in (torch.tensor, torch.as_tensor) and wanted is not None and torch.device(wanted).type == NAME:
            return function(*args, **{**named, "device": "cpu"}).to(NAME)
        return function(*args, **named)


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), named: Any = None) -> Any:
        return _call(function, args, named or {})


@contextmanager
def simulated() -> Iterator[None]:
    """Inside, ``torch.device(NAME)`` exists."""
    with _Literals(), _Operations():
        yield


def _call(function: Any, args: Any, named: dict[str, Any]) -> Any:
    found = [x for x in tree_leaves((args, named)) if isinstance(x, Tensor)]
    theirs = [x for x in found if isinstance(x, There)]
    wanted = named.get("device")
    there = bool(theirs) if wanted is None else torch.device(wanted).type == NAME
    strangers = [x for x in found if not isinstance(x, There) and x.dim()]
    if theirs and strangers and function._schema.name not in _COPIES:
        raise RuntimeError(f"{function}: expected all tensors on one device, found one on {strangers[0].device}")
    if not theirs and not there:
        return function(*args, **named)
    here = {**named, **({} if wanted is None else {"device": torch.device("cpu")})}
    held_args, held_named = tree_map_only(There, lambda x: x.held, (args, here))
    out = function(*held_args, **held_named)
    if there and function._schema.name != "aten::_local_scalar_dense":
        out = tree_map_only(Tensor, There, out)
    return return_and_correct_aliasing(function, args, named, out) if theirs and there else out


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


def register() -> torch.device:
    """Make the device known to torch, and to the package as one without float64."""
    _setup_privateuseone_for_python_backend(NAME, _Module())
    tensors.WITHOUT_FLOAT64.add(NAME)
    return torch.device(NAME, 0)
