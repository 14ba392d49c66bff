"""Metrics of pairs: a made image and the true one. One number a pair, [B].

    PSNR = −10 log₁₀ mean (x − y)²      in dB, of images in [0, 1]; larger is closer
    LPIPS                              `metrics.lpips`; smaller is closer

PSNR rewards the mean of all images that are possible, which is smooth; LPIPS rewards one that looks like the truth.
"""

from collections.abc import Callable, Mapping

from torch import Tensor

from anisodiff.metrics.lpips import LPIPS

PairedMetric = Callable[[Tensor, Tensor], Tensor]


def psnr(x: Tensor, y: Tensor) -> Tensor:
    """In dB, float64 [B]; infinite for equal images."""
    if x.shape != y.shape or x.ndim != 4:
        raise ValueError(f"psnr: got {list(x.shape)} and {list(y.shape)}, expected [B, C, H, W] twice")
    return -10.0 * (x.double() - y.double().to(x.device)).square().mean((1, 2, 3)).log10()


def paired_metrics(lpips: LPIPS | None = None) -> Mapping[str, PairedMetric]:
    """The table of metrics of pairs by name; LPIPS where its weights are at hand."""
    return {"psnr": psnr} if lpips is None else {"psnr": psnr, "lpips": lpips}
