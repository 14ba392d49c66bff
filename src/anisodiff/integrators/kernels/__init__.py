"""The same mathematics as fused GPU kernels: chosen by device, equal to the plain form by test."""

import torch
from torch import Tensor

from anisodiff.tensors import triton_at_hand

LARGEST = 4096
"""Pixels of a plane that one program can hold: 64². The exponential step takes the plain form beyond."""
LARGEST_IMAGE = 4 * LARGEST
"""Values of an image, all channels, that one program can hold; the tamed chain is cut into tiles beyond."""
CHAINED = ("flux", "paper")
"""Stencils of the fused chain."""


def usable(*tensors: Tensor) -> bool:
    """Whether there are fused kernels for these: on CUDA, in single precision, nothing to be differentiated."""
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return not tracked and all(x.is_cuda and x.dtype == torch.float32 for x in tensors) and triton_at_hand()


def fits(*tensors: Tensor) -> bool:
    """Whether they are usable and a program can hold a plane."""
    return usable(*tensors) and all(x.shape[-1] * x.shape[-2] <= LARGEST for x in tensors)
