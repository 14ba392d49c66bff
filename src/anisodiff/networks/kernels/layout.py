"""Features in memory as the kernels read them: pixel after pixel, the channels of one side by side."""

from collections.abc import Sequence

import torch
from torch import Tensor


def rows(x: Tensor) -> tuple[Tensor, int]:
    """``x`` [B, C, H, W] with its channels side by side, and the elements from one pixel to the next.

    channels_last has C of them. A part of the channels of such a tensor has more, and is taken as it is: gradients
    of a concatenation arrive so. Everything else is copied. The stride of an axis of length 1 says nothing.
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
    """Features [B, C, H, W] in channels_last, with the strides of that layout on axes of length 1, too."""
    batch, channels, height, width = shape
    return torch.empty(batch, height, width, channels, dtype=dtype, device=device).permute(0, 3, 1, 2)
