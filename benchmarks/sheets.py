"""CIFAR-10 as sheets: PNGs of 10000x1024 RGB, one image a row (data_batch_1.png … 5, test_batch.png)."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor


def cifar(folder: Path, most: int | None = None, names: str = "data_batch_*.png") -> Tensor:
    """The first ``most`` images of the sheets below ``folder``, uint8 [N, 3, 32, 32]; no more sheets are read."""
    Image.MAX_IMAGE_PIXELS = None
    parts, count = [], 0
    for path in sorted(folder.rglob(names)):
        if most is not None and count >= most:
            break
        with Image.open(path) as sheet:
            rows = np.asarray(sheet.convert("RGB")).reshape(-1, 32, 32, 3)
        parts.append(torch.from_numpy(rows.copy()))
        count += len(rows)
    if not parts:
        raise SystemExit(f"{names} not found below {folder}")
    return torch.cat(parts)[:most].permute(0, 3, 1, 2).contiguous()
