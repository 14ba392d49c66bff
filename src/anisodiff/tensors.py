"""What all of the mathematics does with tensors: check them, make constants once, compile, send to a device."""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

WITHOUT_FLOAT64 = {"mps"}
"""Kinds of devices that have no float64."""

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=nn.Module)


def wide(device: torch.device) -> torch.dtype:
    """float64; float32 on a device that has none."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def widened(x: Tensor) -> Tensor:
    """``x`` in the widest precision of its device: for times, and for sums that a run only shows."""
    return x.to(wide(x.device))


def precise(x: Tensor) -> Tensor:
    """``x`` in float64; on the CPU, where its device has none: for what is estimated or measured."""
    return x.cpu().double() if x.device.type in WITHOUT_FLOAT64 else x.double()


def moved(x: Tensor, device: torch.device) -> Tensor:
    """``x`` on a device; what is float64, in the widest precision there."""
    return x.to(device, wide(device) if x.dtype == torch.float64 else x.dtype)


def settled(x: Tensor, device: torch.device) -> Tensor:
    """``x`` on a device; what is float64 stays on the CPU where the device has none: edges must not be rounded."""
    return x.cpu() if x.dtype == torch.float64 and device.type in WITHOUT_FLOAT64 else x.to(device)


def place(module: M, device: torch.device) -> M:
    """``module`` on a device, its weights and buffers as `settled`."""
    module._apply(lambda x: settled(x, device))  # type: ignore[no-untyped-call]
    return module


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
    given = t if isinstance(t, Tensor) else torch.as_tensor(t, dtype=torch.float64, device="cpu")
    given = given.to(device, wide(device))
    if given.dim() > 1 or (given.dim() == 1 and given.shape[0] != batch):
        raise ValueError(f"t must be one number or one per sample [{batch}], got shape {list(given.shape)}")
    single = given.dtype == torch.float32 or (isinstance(t, Tensor) and t.dtype == torch.float32)
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
        return moved(values, device)
    return values.contiguous().pin_memory().to(device, non_blocking=True)
