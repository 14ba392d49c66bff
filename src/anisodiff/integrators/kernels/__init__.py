"""The same mathematics as fused GPU kernels: chosen by device, equal to the plain form by test."""

import importlib.util
from functools import cache

import torch
from torch import Tensor

LARGEST = 4096
"""Pixels of a plane that one program can hold: 64². The exponential step takes the plain form beyond."""
LARGEST_IMAGE = 4 * LARGEST
"""Values of an image, all channels, that one program can hold; the tamed chain is cut into tiles beyond."""
CHAINED = ("flux", "paper")
"""Stencils of the fused chain."""


@cache
def _at_hand() -> bool:
    return importlib.util.find_spec("triton") is not None


def usable(*tensors: Tensor) -> bool:
    """Whether there are fused kernels for these: on CUDA, in single precision, nothing to be differentiated."""
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return not tracked and all(x.is_cuda and x.dtype == torch.float32 for x in tensors) and _at_hand()


def fits(*tensors: Tensor) -> bool:
    """Whether they are usable and a program can hold a plane."""
    return usable(*tensors) and all(x.shape[-1] * x.shape[-2] <= LARGEST for x in tensors)
