"""The same mathematics as fused GPU kernels: chosen by device, equal to the plain form by test."""

import importlib.util
from functools import cache

import torch
from torch import Tensor

LARGEST = 4096
"""Pixels of a plane that one program can hold: 64². Larger planes take the plain form."""


@cache
def _at_hand() -> bool:
    return importlib.util.find_spec("triton") is not None


def fits(*tensors: Tensor) -> bool:
    """Whether fused kernels can take these: on CUDA, planes small enough, in single precision, nothing to be
    differentiated."""
    tracked = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return not tracked and all(
        x.is_cuda and x.dtype == torch.float32 and x.shape[-1] * x.shape[-2] <= LARGEST for x in tensors
    ) and _at_hand()  # fmt: skip


def fits_chain(u: Tensor, stencil: str) -> bool:
    """Whether the fused chain can take states ``u`` [B, C, H, W]: one program has all channels of an image."""
    return fits(u) and u[:1].numel() <= 4 * LARGEST and stencil in ("flux", "paper")
