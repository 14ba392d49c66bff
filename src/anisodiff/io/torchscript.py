"""The tensors of a TorchScript file, without its code: nothing of the file is compiled or run.

A TorchScript file is a zip: NAME/code/ (programs, not read here), NAME/data.pkl (a pickle of modules, their
attributes, and references to storages), NAME/data/KEY (storages as raw bytes). Modules become dicts; tensors are
made here, from storages whose size in the archive is what the tensor needs.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisodiff.io import pickles
from anisodiff.io.archives import open_zip, read_member

LARGEST_PICKLE, LARGEST_TOTAL, DEEPEST = 1 << 20, 1 << 27, 32
"""Bytes of the pickle and of all tensors, levels of modules; the published file has 28 kB, 87 MB and 6."""
_STORAGES = {
    "FloatStorage": torch.float32, "HalfStorage": torch.float16, "DoubleStorage": torch.float64,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}  # fmt: skip


class _Module(pickles.StandIn):
    """Stand-in for a module of any class: its attributes by name."""

    state: dict[str, Any] | None = None

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise ValueError("a module without attributes")
        self.state = state


@dataclass(frozen=True)
class _Values:
    """Stand-in for a storage or a tensor, so that the pickle can call no method of it."""

    tensor: Tensor


def _tensor(storage: _Values, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> _Values:
    """Stand-in for ``torch._utils._rebuild_tensor_v2``: contiguous tensors that fill their storage."""
    if len(size) > 8 or not all(isinstance(n, int) for n in size):
        raise ValueError("a tensor of an unknown shape")
    dense = [math.prod(size[i + 1 :]) for i in range(len(size))]
    if offset or list(stride) != dense or storage.tensor.numel() != math.prod(size):
        raise ValueError("a tensor that is not all of its storage")
    return _Values(storage.tensor.reshape(size))


def _same(items: list[Any]) -> list[Any]:
    return items


def _admitted(module: str, name: str) -> Any:
    if module == "torch" and name in _STORAGES:
        return _STORAGES[name]
    if module == "__torch__" or module.startswith("__torch__."):
        return _Module
    return {
        ("torch._utils", "_rebuild_tensor_v2"): _tensor, ("collections", "OrderedDict"): pickles.Fields,
        ("torch.jit._pickle", "build_intlist"): _same, ("torch.jit._pickle", "build_tensorlist"): _same,
    }[module, name]  # fmt: skip


def _named(value: Any, name: str, found: dict[str, Tensor], depth: int = 0) -> None:
    if depth > DEEPEST:
        raise ValueError(f"modules nested deeper than {DEEPEST}")
    if isinstance(value, _Values):
        found[name] = value.tensor
    elif isinstance(value, _Module):
        state, value.state = value.state, None
        if state is None:
            raise ValueError("a module without attributes, or in two places")
        for key, inner in state.items():
            _named(inner, f"{name}.{key}" if name else str(key), found, depth + 1)


def script_tensors(path: Path) -> dict[str, Tensor]:
    """Parameters and buffers by name, as stored; a file of any other kind is a ValueError of one line."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        with open_zip(path) as archive:
            roots = [name.removesuffix("/data.pkl") for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(roots) != 1:
                raise ValueError("it holds no modules")
            left = LARGEST_TOTAL

            def storage(reference: Any) -> _Values:
                nonlocal left
                kind, dtype, key, _, count = reference
                typed = isinstance(dtype, torch.dtype) and isinstance(key, str) and isinstance(count, int)
                if kind != "storage" or not typed:
                    raise ValueError("a reference that is no storage")
                left -= (size := count * dtype.itemsize)
                if count < 0 or left < 0:
                    raise ValueError(f"more than {LARGEST_TOTAL:,} bytes of tensors")
                held = bytearray(read_member(archive, f"{roots[0]}/data/{key}", size))
                if len(held) != size:
                    raise ValueError(f"storage {key} has {len(held)} bytes, expected {size}")
                return _Values(torch.frombuffer(held, dtype=dtype) if size else torch.empty(0, dtype=dtype))

            program = read_member(archive, f"{roots[0]}/data.pkl", LARGEST_PICKLE)
            top = pickles.load(program, _admitted, outside=storage)
            if not isinstance(top, _Module):
                raise ValueError("it holds no modules")
            found: dict[str, Tensor] = {}
            _named(top, "", found)
            if sum(tensor.nbytes for tensor in found.values()) > LARGEST_TOTAL:
                raise ValueError(f"more than {LARGEST_TOTAL:,} bytes of tensors")
    except ValueError as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise ValueError(f"{path}: not a TorchScript file ({reason})") from error
    return found
