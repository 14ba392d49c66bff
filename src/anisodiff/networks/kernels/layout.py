"""Memory layout of the features: channels_last."""

from collections.abc import Sequence

import torch
from torch import Tensor


def rows(x: Tensor) -> tuple[Tensor, int]:
    """``x`` [B, C, H, W] with adjacent channels, and its pitch: the elements from one pixel to the next.

    The pitch is C for channels_last. A slice of the channels of such a tensor, as in gradients of a concatenation,
    has a larger pitch and is not copied; other layouts are. Strides of axes of length 1 are ignored.
    """
    _, channels, height, width = x.shape
    steps = {3: 1, 2: width, 0: height * width}  # pixels
    pitch = next((x.stride(axis) // pixels for axis, pixels in steps.items() if x.shape[axis] > 1), channels)
    beside = channels == 1 or x.stride(1) == 1
    even = all(x.stride(axis) == pixels * pitch for axis, pixels in steps.items() if x.shape[axis] > 1)
    if even and beside and pitch >= channels and pitch * height * width < 2**31:
        return x, pitch
    return x.contiguous(memory_format=torch.channels_last), channels


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Features [B, C, H, W] in channels_last, with these strides also on axes of length 1."""
    batch, channels, height, width = shape
    return torch.empty(batch, height, width, channels, dtype=dtype, device=device).permute(0, 3, 1, 2)
