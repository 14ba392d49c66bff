"""What all of the mathematics does with tensors: check them, make constants once, compile, send to a device."""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def check_state(u: Tensor) -> Tensor:
    """A state is a float32 or float64 tensor [B, C, H, W] with H, W ≥ 3; anything else is named in the error."""
    if not isinstance(u, Tensor):
        raise ValueError(f"expected a torch tensor [B, C, H, W], got {type(u).__name__}")
    if u.dim() != 4:
        raise ValueError(f"expected a state of shape [B, C, H, W], got {list(u.shape)}")
    if u.shape[-2] < 3 or u.shape[-1] < 3:
        raise ValueError(f"images need at least 3x3 pixels, got {u.shape[-2]}x{u.shape[-1]}")
    if u.dtype not in (torch.float32, torch.float64):
        remedy = "divide bytes by 255: x.float() / 255" if u.dtype == torch.uint8 else "convert it with .float()"
        raise ValueError(f"expected a float32 or float64 state, got {u.dtype}; {remedy}")
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


def made_once(function: Callable[P, R]) -> Callable[P, R]:
    """Cache ``function`` by its (hashable) arguments.

    It runs outside of inference mode, whose tensors autograd refuses later, and with the CPU as default device.
    """

    @functools.lru_cache(maxsize=1024)
    @functools.wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(False), torch.device("cpu"):
            return function(*args, **kwargs)

    return made  # type: ignore[return-value]


@functools.cache
def triton_at_hand() -> bool:
    """Whether fused GPU kernels can be used."""
    return importlib.util.find_spec("triton") is not None


@functools.lru_cache(maxsize=64)
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def compiled(function: Callable[..., Any], wanted: bool) -> Callable[..., Any]:
    """``function``, compiled if wanted. One small function at a time: unrolled loops take minutes to compile."""
    return _compile(function) if wanted else function


def send(values: Tensor, device: torch.device) -> Tensor:
    """``values`` on the device, without waiting: an ordinary copy from the host waits for all that was launched."""
    if device.type != "cuda" or values.is_cuda:
        return values.to(device)
    return values.contiguous().pin_memory().to(device, non_blocking=True)
