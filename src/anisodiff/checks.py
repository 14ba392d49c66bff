"""What every function that takes a state checks first."""

import torch
from torch import Tensor


def check_state(u: Tensor) -> Tensor:
    """A state is a float32 or float64 tensor [B, C, H, W] with H, W ≥ 3; anything else is named in the error."""
    if not isinstance(u, Tensor):
        raise ValueError(f"expected a torch tensor [B, C, H, W], got {type(u).__name__}")
    if u.dim() != 4:
        raise ValueError(f"expected a state of shape [B, C, H, W], got {list(u.shape)}")
    if u.shape[-2] < 3 or u.shape[-1] < 3:
        raise ValueError(f"images need at least 3x3 pixels, got {u.shape[-2]}x{u.shape[-1]}")
    if u.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"expected a float32 or float64 state, got {u.dtype}; convert it with .float()")
    return u


def check_images(x0: Tensor) -> Tensor:
    """Images that a simulation starts from: a state without NaN and infinities."""
    check_state(x0)
    if not bool(torch.isfinite(x0).all()):
        raise ValueError("the images hold NaN or infinite values; a simulation would only spread them")
    return x0
