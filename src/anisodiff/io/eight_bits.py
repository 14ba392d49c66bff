"""Tensors in 8 bits: whole numbers from −127 to 127, and a scale for each first index,

    x_ij ≈ n_ij · s_i,      s_i = max_j |x_ij| / 127

For a convolution a first index is an output channel. Beside the numbers (int8, under the tensor's own name) a file
has their scales under ``NAME:scale``.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

_SCALE, _MOST = ":scale", 127


def quantized(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices and convolutions in 8 bits with their scales; all others, which are small, as they are."""
    made: dict[str, Tensor] = {}
    for name, x in tensors.items():
        if not x.is_floating_point() or x.dim() < 2:
            made[name] = x
            continue
        rows = x.detach().float().flatten(1)
        scale = rows.abs().amax(1) / _MOST
        numbers = torch.where(scale[:, None] > 0, rows / scale[:, None], 0.0).round().clamp(-_MOST, _MOST)
        made[name] = numbers.to(torch.int8).view(x.shape)
        made[f"{name}{_SCALE}"] = scale
    return made


def restored(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `quantized`, in float32; what is not in 8 bits stays as it is."""
    scales = {name.removesuffix(_SCALE): x for name, x in tensors.items() if name.endswith(_SCALE)}
    made = {name: x for name, x in tensors.items() if not name.endswith(_SCALE)}
    for name, scale in scales.items():
        x = made.get(name)
        if x is None or x.dtype != torch.int8 or x.dim() < 2 or scale.shape != x.shape[:1]:
            raise ValueError(f"{name}{_SCALE} does not fit a tensor in 8 bits: the file is damaged; copy it again")
        made[name] = x.float() * scale.float().view(-1, *[1] * (x.dim() - 1))
    return made
