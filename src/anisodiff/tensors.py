"""Checks of states and times, float64 where a device has it, caching and compilation of functions."""

import functools
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

WITHOUT_FLOAT64 = {"mps"}
"""Device types without float64."""

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=nn.Module)


def highest_precision(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device without it."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64


def to_highest_precision(x: Tensor) -> Tensor:
    """``x`` in the `highest_precision` of its device."""
    return x.to(highest_precision(x.device))


def to_float64(x: Tensor) -> Tensor:
    """``x`` in float64; moved to the CPU if its device has no float64."""
    return x.cpu().double() if x.device.type in WITHOUT_FLOAT64 else x.double()


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """``x`` on ``device``; float64 becomes its `highest_precision`."""
    return x.to(device, highest_precision(device) if x.dtype == torch.float64 else x.dtype)


def to_device_exactly(x: Tensor, device: torch.device) -> Tensor:
    """``x`` on ``device`` without rounding: float64 stays on the CPU if the device has none."""
    return x.cpu() if x.dtype == torch.float64 and device.type in WITHOUT_FLOAT64 else x.to(device)


def check_shapes(what: str, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are missing, too many, or of another shape."""
    got, wanted = ({name: list(value.shape) for name, value in group.items()} for group in (found, expected))
    for name in sorted({*got, *wanted}):
        if got.get(name) != wanted.get(name):
            raise ValueError(f"{what}: {name} is {got.get(name, 'not there')}, expected {wanted.get(name, 'none')}")


def move_module(module: M, device: torch.device) -> M:
    """``module`` with its parameters and buffers on ``device``, each by `to_device_exactly`."""
    module._apply(lambda x: to_device_exactly(x, device))  # type: ignore[no-untyped-call]
    return module


def interpolate(x: Tensor, xs: Tensor, ys: Tensor) -> Tensor:
    """y at ``x``, any shape, linear between the points of a table [N ≥ 2] with ascending ``xs``, constant outside."""
    right = torch.searchsorted(xs, x.contiguous()).clamp(1, len(xs) - 1)
    low, high = xs[right - 1], xs[right]
    weight = ((x - low) / (high - low).clamp(min=torch.finfo(xs.dtype).tiny)).clamp(0, 1)
    return torch.lerp(ys[right - 1], ys[right], weight)


def check_state(u: Tensor) -> Tensor:
    """``u`` if it is float32 or float64 [B, C, H, W] with H, W ≥ 3, which the stencils need; else a ValueError."""
    if not isinstance(u, Tensor):
        raise ValueError(f"expected a torch tensor [B, C, H, W], got {type(u).__name__}")
    if u.dim() != 4:
        raise ValueError(f"expected a state of shape [B, C, H, W], got {list(u.shape)}")
    if u.shape[-2] < 3 or u.shape[-1] < 3:
        raise ValueError(f"images need at least 3×3 pixels, got {u.shape[-2]}×{u.shape[-1]}")
    if u.dtype not in (torch.float32, torch.float64):
        remedy = "divide bytes by 255: x.float() / 255" if u.dtype == torch.uint8 else "convert it with .float()"
        raise ValueError(f"expected a float32 or float64 state, got {u.dtype}; {remedy}")
    return u


def check_images(x0: Tensor) -> Tensor:
    """``x0`` if it is a state without NaN and infinities; else a ValueError."""
    check_state(x0)
    if not bool(torch.isfinite(x0).all()):
        raise ValueError("the images hold NaN or infinite values; a simulation would only spread them")
    return x0


def check_times(t: Tensor | float, T: float, batch: int, device: torch.device) -> Tensor:
    """``t`` as float64 [batch]; a ValueError for NaN and for times outside [0, T]. Synchronizes with the device."""
    given = t if isinstance(t, Tensor) else torch.as_tensor(t, dtype=torch.float64, device="cpu")
    given = given.to(device, highest_precision(device))
    if given.dim() > 1 or (given.dim() == 1 and given.shape[0] != batch):
        raise ValueError(f"t must be one number or one per sample [{batch}], got shape {list(given.shape)}")
    single = given.dtype == torch.float32 or (isinstance(t, Tensor) and t.dtype == torch.float32)
    rounding = 1e-6 if single else 1e-12
    inside = (given >= 0) & (given <= T * (1 + rounding))
    if not bool(inside.all()):
        wrong = float(given.reshape(-1)[(~inside).reshape(-1)][0])
        raise ValueError(f"t must lie in [0, T] = [0, {T:g}], got {wrong:g}")
    return given.clamp(max=T).expand(batch)


def cached(function: Callable[P, R]) -> Callable[P, R]:
    """Cache ``function`` by its hashable arguments, for constant tensors.

    It runs outside of inference mode (autograd refuses inference tensors) and with the CPU as default device.
    """

    @functools.lru_cache(maxsize=1024)
    @functools.wraps(function)
    def compute(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(False), torch.device("cpu"):
            return function(*args, **kwargs)

    return compute  # type: ignore[return-value]


@functools.cache
def has_triton() -> bool:
    """Whether Triton, and with it the fused GPU kernels, is installed."""
    return importlib.util.find_spec("triton") is not None


@functools.lru_cache(maxsize=64)
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def compiled(function: Callable[..., Any], wanted: bool) -> Callable[..., Any]:
    """``function``, by torch.compile if ``wanted``. For short functions: unrolled loops take minutes to compile."""
    return _compile(function) if wanted else function


def to_device_async(values: Tensor, device: torch.device) -> Tensor:
    """``values`` on ``device`` through pinned memory: a plain copy would wait for all launched kernels."""
    if device.type != "cuda" or values.is_cuda:
        return to_device(values, device)
    return values.contiguous().pin_memory().to(device, non_blocking=True)
