"""Files of a checkpoint: written through to the disk, with the sha256 of what should be there.

Tensors go into the safetensors format (8 bytes of length, a JSON header, raw data), one tensor in memory at a time
and by plain writes: a full disk then raises OSError, where a memory map would kill the process.
"""

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from anisodiff.io.records import json_text

Observe = Callable[[str], None]
"""Called with the name of every effect on the disk, just before it; tests count effects and fail them."""

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_BLOCK = 1 << 22


def unobserved(_: str) -> None:
    """Do nothing."""


def _put(path: Path, parts: Iterable[bytes | memoryview], observe: Observe) -> str:
    """Write a new file to the disk; the sha256 of its contents."""
    code = hashlib.sha256()
    observe(f"create {path.name}")
    with path.open("xb", buffering=0) as file:
        for number, part in enumerate(parts):
            if number < 2:  # the first two writes: an empty file, and one cut off in the middle
                observe(f"write {path.name}")
            code.update(part)
            _write(file, memoryview(part).cast("B"))
        observe(f"sync {path.name}")
        os.fsync(file.fileno())
    return code.hexdigest()


def _write(file: IO[bytes], part: memoryview) -> None:
    while part:
        part = part[file.write(part[: 64 * _BLOCK]) :]


def put_json(path: Path, values: Any, observe: Observe = unobserved) -> str:
    """Write plain values."""
    return _put(path, [json_text(values)], observe)


def put_tensors(path: Path, tensors: Mapping[str, Tensor], observe: Observe = unobserved) -> str:
    """Write tensors as safetensors."""
    header: dict[str, Any] = {}
    position = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [position, position + size],
        }  # fmt: skip
        position += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def parts() -> Iterable[bytes | memoryview]:
        yield struct.pack("<Q", len(text)) + text
        for tensor in tensors.values():
            if tensor.numel():
                flat = tensor.detach().cpu().contiguous().reshape(-1)
                yield flat.view(torch.uint8).numpy().data

    return _put(path, parts(), observe)


def get_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors; a damaged file is a ValueError."""
    from safetensors import SafetensorError
    from safetensors.torch import load, load_file

    try:
        if os.fsencode(path).decode("utf-8", "ignore") == str(path):
            return dict(load_file(path))
        return dict(load(path.read_bytes()))  # safetensors opens no path that is not UTF-8
    except (SafetensorError, OSError) as error:
        raise ValueError(f"cannot read {path}: {' '.join(str(error).split())}") from None


def sha256(path: Path) -> str:
    """The checksum of a file."""
    code = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            code.update(block)
    return code.hexdigest()
