"""The same mathematics as fused GPU kernels: chosen by device, equal to the plain form by test."""

import torch
from torch import Tensor

from anisodiff.tensors import triton_at_hand

LARGEST = 4096
"""Pixels of a plane that one program can hold: 64². Larger planes take the plain form."""


def fits(*tensors: Tensor) -> bool:
    """Whether fused kernels can take these: on CUDA, planes small enough, in single precision, nothing to be
    differentiated."""
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return not tracked and all(
        x.is_cuda and x.dtype == torch.float32 and x.shape[-1] * x.shape[-2] <= LARGEST for x in tensors
    ) and triton_at_hand()  # fmt: skip
