"""Metrics of pairs, such as a result and the true image, or an edit and its input: one number a pair, [B].

    PSNR = −10 log₁₀ mean (x − y)²      in dB, of images in [0, 1]; larger is closer
    LPIPS                              `metrics.lpips`; smaller is closer

PSNR rewards the mean of all images that are possible, which is smooth; LPIPS rewards one that looks like the truth.

**Edges.** Of a gray image u in [0, 1] with Sobel gradient g, a pixel is an edge where |g| ≥ ``contrast``/2, so that a
step of that height counts, and |g| has its maximum along the gradient (of four directions; of two equal neighbors the
latter counts). Of the edges of a result R and of its input I, each within ``tolerance`` pixels (of a square window)
of one of the other's or not:

    precision = |R near I|/|R|,    recall = |I near R|/|I|,    F1 = 2·precision·recall/(precision + recall)

Two images without edges have F1 = 1; where one alone has none, 0.

**Diversity.** The mean over all pairs of seeds of the distance of their results, and over the inputs.
"""

from collections.abc import Callable, Mapping
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor

from anisodiff.metrics.edges import sobel, to_gray
from anisodiff.metrics.lpips import LPIPS

PairedMetric = Callable[[Tensor, Tensor], Tensor]
"""Images [B, C, H, W] in [0, 1], twice → [B]."""
CONTRAST, TOLERANCE = 0.15, 1


def psnr(x: Tensor, y: Tensor) -> Tensor:
    """In dB, float64 [B]; infinite for equal images."""
    if x.shape != y.shape or x.ndim != 4:
        raise ValueError(f"psnr: got {list(x.shape)} and {list(y.shape)}, expected [B, C, H, W] twice")
    return -10.0 * (x.double() - y.double().to(x.device)).square().mean((1, 2, 3)).log10()


def paired_metrics(lpips: LPIPS | None = None) -> Mapping[str, PairedMetric]:
    """The table of metrics of pairs by name; LPIPS where its weights are at hand."""
    return {"psnr": psnr} if lpips is None else {"psnr": psnr, "lpips": lpips}


def rms_distance(x: Tensor, y: Tensor) -> Tensor:
    """√mean|x − y|² of images [B, C, H, W], float64 [B]."""
    return (x.double() - y.double()).square().mean((1, 2, 3)).sqrt()


def edge_map(images: Tensor, contrast: float = CONTRAST) -> Tensor:
    """The edges of images [B, C, H, W] in [0, 1], C = 1 or 3: bool [B, H, W]."""
    if images.dim() != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"edge_map: got {list(images.shape)}, expected [B, C, H, W] with C = 1 or 3")
    if not contrast > 0:
        raise ValueError(f"contrast: got {contrast:g}, expected the height of a step that counts, such as {CONTRAST}")
    gray = F.pad(to_gray(images.double()), (1, 1, 1, 1), mode="replicate")
    gx, gy = (slope[:, 0] for slope in sobel(gray))
    size = torch.hypot(gx, gy)
    around = F.pad(size, (1, 1, 1, 1))
    height, width = size.shape[-2:]

    def moved(dy: int, dx: int) -> Tensor:
        return around[:, 1 + dy : 1 + dy + height, 1 + dx : 1 + dx + width]

    # rounding must not decide between neighbors of equal slope: what differs by 1e-9 is equal
    sector = torch.remainder(torch.round(torch.atan2(gy, gx) / (torch.pi / 4)), 4).long()
    steps = [(0, 1), (1, 1), (1, 0), (1, -1)]
    after = torch.stack([moved(dy, dx) for dy, dx in steps]).gather(0, sector[None])[0]
    before = torch.stack([moved(-dy, -dx) for dy, dx in steps]).gather(0, sector[None])[0]
    return (size >= 0.5 * contrast - 1e-9) & (size >= before - 1e-9) & (size > after + 1e-9)


def edge_f1(results: Tensor, inputs: Tensor, *, contrast: float = CONTRAST, tolerance: int = TOLERANCE) -> Tensor:
    """F1 of the edges of ``results`` against those of their ``inputs``, [B, C, H, W] in [0, 1] each: float64 [B]."""
    if results.shape != inputs.shape:
        raise ValueError(f"edge_f1: got {list(results.shape)} and {list(inputs.shape)}, expected equal shapes")
    if tolerance < 0:
        raise ValueError(f"tolerance: got {tolerance}, expected 0 pixels or more")
    ours, theirs = (edge_map(x, contrast).double() for x in (results, inputs))

    def found(these: Tensor, those: Tensor) -> Tensor:
        near = F.max_pool2d(those[:, None], 2 * tolerance + 1, stride=1, padding=tolerance)[:, 0]
        return (these * near).sum((1, 2)) / these.sum((1, 2)).clamp(min=1)

    precision, recall = found(ours, theirs), found(theirs, ours)
    none = (ours.sum((1, 2)) == 0) & (theirs.sum((1, 2)) == 0)
    return torch.where(none, 1.0, 2 * precision * recall / (precision + recall).clamp(min=1e-300))


def diversity(results: Tensor, distance: PairedMetric = rms_distance) -> float:
    """Mean distance of two seeds' results of one input, ``results`` [seeds, inputs, C, H, W]; two seeds at least."""
    if results.dim() != 5 or len(results) < 2:
        raise ValueError(
            f"diversity: got {list(results.shape)}, expected [seeds, inputs, C, H, W], two seeds or more"
        )
    pairs = [distance(results[i], results[j]).double().mean() for i, j in combinations(range(len(results)), 2)]
    return float(torch.stack(pairs).mean())
