"""Which device to run on."""

import torch

from anisodiff import notation


def pick_device(device: torch.device | str) -> torch.device:
    """``auto`` takes CUDA where there is one."""
    if isinstance(device, torch.device):
        return device
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"unknown device {device!r}; {notation.nearest(device, ('auto', 'cpu', 'cuda'))}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, but torch sees no CUDA device; use 'cpu'")
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
