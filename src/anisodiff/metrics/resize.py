"""What happens to an image before a feature network sees it: resizing and scaling, in plain torch.

TF1 bilinear resizing (``align_corners=False``, no half-pixel centers), the one FID is defined with:

    y = i·H/H',   i₀ = ⌊y⌋,   i₁ = min(i₀+1, H−1),   f = y − i₀,   out[i] = (1−f)·in[i₀] + f·in[i₁]

first along the width, then along the height. Other resizings shift the image by up to half a source pixel,
and the FID with it. Shapes: uint8 or float ``[B,C,H,W]`` → float32 ``[B,C,H',W']``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Resize = Callable[[Tensor, int, int], Tensor]


def _taps(size: int, out: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Lower tap, upper tap and fraction of each of ``out`` positions; float32 as in the published graph."""
    position = torch.arange(out, dtype=torch.float32, device=device) * (size / out)
    lower = position.floor().long().clamp_max(size - 1)
    return lower, (lower + 1).clamp_max(size - 1), position - lower


def tf1_bilinear(images: Tensor, height: int, width: int) -> Tensor:
    """Resize ``[B,C,H,W]`` to ``[B,C,height,width]`` as TensorFlow 1 did by default."""
    images = images.float()
    x0, x1, fx = _taps(images.shape[-1], width, images.device)
    y0, y1, fy = _taps(images.shape[-2], height, images.device)
    left = images.index_select(-1, x0)
    rows = left + (images.index_select(-1, x1) - left) * fx
    top = rows.index_select(-2, y0)
    return top + (rows.index_select(-2, y1) - top) * fy[:, None]


def bicubic(images: Tensor, height: int, width: int) -> Tensor:
    """Antialiased bicubic resize with half-pixel centers, as image libraries do it."""
    out = torch.nn.functional.interpolate(
        images.float(), (height, width), mode="bicubic", antialias=True, align_corners=False
    )
    return out.clamp(0, 255)


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """uint8 ``[B,3,H,W]`` → (resize(x) − mean)/std, float32 ``[B,3,size,size]``; mean and std count in gray
    levels.

    ``size=None`` keeps the size of the images.
    """

    size: int | None = 299
    resize: Resize = tf1_bilinear
    mean: tuple[float, float, float] = (128.0, 128.0, 128.0)
    std: tuple[float, float, float] = (128.0, 128.0, 128.0)

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 1:
            raise ValueError(f"size must be at least 1, got {self.size}")
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive, got {self.std}")

    def __call__(self, images: Tensor) -> Tensor:
        """Resize and scale a batch."""
        x = images.float() if self.size is None else self.resize(images, self.size, self.size)
        mean, std = (torch.tensor(v, device=x.device).view(3, 1, 1) for v in (self.mean, self.std))
        return (x - mean) / std

    def describe(self) -> str:
        """One phrase for the protocol, such as ``tf1_bilinear 299, (x-128)/128``."""
        name = getattr(self.resize, "__name__", type(self.resize).__name__)
        size = "no resize" if self.size is None else f"{name} {self.size}"
        mean, std = (
            f"{v[0]:g}" if len(set(v)) == 1 else "[" + " ".join(f"{c:g}" for c in v) + "]"
            for v in (self.mean, self.std)
        )
        return f"{size}, (x-{mean})/{std}"


INCEPTION_INPUT = Preprocess()
IMAGENET_INPUT = Preprocess(size=224, resize=bicubic, mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375))
UNIT_INPUT = Preprocess(size=None, mean=(0.0, 0.0, 0.0), std=(255.0, 255.0, 255.0))
