"""Which device to run on."""

import re

import torch

from anisodiff import notation

NAMES = ("auto", "cpu", "cuda", "gpu", "mps")


def pick_device(device: torch.device | str) -> torch.device:
    """The device of a name: ``auto`` is CUDA or else the CPU, ``gpu`` CUDA or else MPS, ``cuda:N`` one of several.

    ``cuda:N`` also becomes the current device: kernels and CUDA graphs are launched on that one.
    """
    if isinstance(device, torch.device):
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found := re.fullmatch(r"cuda:(\d+)", device):
        index = int(found[1])
        if index >= count:
            seen = f"found only cuda:0 to cuda:{count - 1}" if count else "no CUDA device found"
            raise ValueError(f"{seen} (requested {device!r}); use {_instead(count)}")
        torch.cuda.set_device(index)
        return torch.device(device)
    notation.check_choice(device, NAMES, "device")
    if device in ("auto", "cuda", "gpu") and count:
        return torch.device("cuda")
    if device in ("gpu", "mps") and torch.backends.mps.is_available():
        return torch.device("mps")
    if device in ("auto", "cpu"):
        return torch.device("cpu")
    kind = {"cuda": "CUDA", "mps": "MPS", "gpu": "CUDA or MPS"}[device]
    raise ValueError(f"no {kind} device found (requested {device!r}); use {_instead(count)}")


def _instead(count: int) -> str:
    return "'cuda:0'" if count else "'cpu'"
