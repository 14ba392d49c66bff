"""Fused Triton kernels of the time steps, used on CUDA; tests compare them with the plain form."""

import torch
from torch import Tensor

from anisodiff.tensors import has_triton

LARGEST = 4096
"""Pixels of a channel that one program can hold: 64². The exponential step has no kernel beyond."""
LARGEST_IMAGE = 4 * LARGEST
"""Values of an image, all channels, that one program can hold; larger images are divided into tiles."""
CHAINED = ("flux", "paper")
"""Stencils of the fused tamed chain."""


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels can run: on CUDA, in float32, without autograd."""
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return not tracked and all(x.is_cuda and x.dtype == torch.float32 for x in tensors) and has_triton()


def fits(*tensors: Tensor) -> bool:
    """Whether the kernels can run and a program can hold a channel."""
    return usable(*tensors) and all(x.shape[-1] * x.shape[-2] <= LARGEST for x in tensors)
