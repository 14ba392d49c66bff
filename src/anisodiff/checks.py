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


def check_times(t: Tensor | float, T: float, batch: int, device: torch.device) -> Tensor:
    """``t`` as float64 [batch]; refuses times outside [0, T] and NaN (the one place that looks at values)."""
    given = torch.as_tensor(t, dtype=torch.float64, device=device)
    if given.dim() > 1 or (given.dim() == 1 and given.shape[0] != batch):
        raise ValueError(f"t must be one number or one per sample [{batch}], got shape {list(given.shape)}")
    single = isinstance(t, Tensor) and t.dtype == torch.float32
    rounding = 1e-6 if single else 1e-12
    inside = (given >= 0) & (given <= T * (1 + rounding))
    if not bool(inside.all()):
        wrong = float(given.reshape(-1)[(~inside).reshape(-1)][0])
        raise ValueError(f"t must lie in [0, T] = [0, {T:g}], got {wrong:g}")
    return given.clamp(max=T).expand(batch)
