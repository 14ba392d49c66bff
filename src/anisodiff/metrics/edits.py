"""What an edit keeps of its input, and how much its seeds differ.

**Edges.** Of a gray image u in [0, 1] with Sobel gradient g (central differences, halved, smoothed across), a pixel
is an edge where |g| ≥ ``contrast``/2, so that a step of that height counts, and |g| has its maximum along the
gradient (of four directions; of two equal neighbors the latter counts). Of the edges of a result R and of its
input I, each
within ``tolerance`` pixels (of a square window) of one of the other's or not:

    precision = |R near I|/|R|,    recall = |I near R|/|I|,    F1 = 2·precision·recall/(precision + recall)

Two images without edges have F1 = 1; where one alone has none, 0.

**Diversity.** The mean over all pairs of seeds of the distance of their results, and over the inputs. The distance is
the root mean square of the difference, or any other (`perceptual`, such as LPIPS).
"""

from collections.abc import Callable
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor

CONTRAST, TOLERANCE = 0.15, 1
Distance = Callable[[Tensor, Tensor], Tensor]
"""Images [B, C, H, W] in [0, 1], twice → [B]."""


def rms_distance(x: Tensor, y: Tensor) -> Tensor:
    """√mean|x − y|² of images [B, C, H, W], float64 [B]."""
    return (x.double() - y.double()).square().mean((1, 2, 3)).sqrt()


def _gradient(images: Tensor) -> tuple[Tensor, Tensor]:
    """∂x and ∂y of the gray images, [B, H, W] float64; beyond the border the outermost pixels are repeated."""
    u = images.double()
    luma = u.new_tensor([0.299, 0.587, 0.114])
    gray = (u * luma[:, None, None]).sum(1, keepdim=True) if u.shape[1] == 3 else u.mean(1, keepdim=True)
    smooth, slope = u.new_tensor([1.0, 2, 1]) / 4, u.new_tensor([-1.0, 0, 1]) / 2
    padded = F.pad(gray, (1, 1, 1, 1), mode="replicate")
    gx, gy = (F.conv2d(padded, torch.outer(a, b)[None, None])[:, 0] for a, b in ((smooth, slope), (slope, smooth)))
    return gx, gy


def edges(images: Tensor, contrast: float = CONTRAST) -> Tensor:
    """The edges of images [B, C, H, W] in [0, 1], C = 1 or 3: bool [B, H, W]."""
    if images.dim() != 4 or images.shape[1] not in (1, 3):
        raise ValueError(f"edges: got {list(images.shape)}, expected [B, C, H, W] with C = 1 or 3")
    if not contrast > 0:
        raise ValueError(f"contrast: got {contrast:g}, expected the height of a step that counts, such as {CONTRAST}")
    gx, gy = _gradient(images)
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
    ours, theirs = (edges(x, contrast).double() for x in (results, inputs))

    def found(these: Tensor, those: Tensor) -> Tensor:
        near = F.max_pool2d(those[:, None], 2 * tolerance + 1, stride=1, padding=tolerance)[:, 0]
        return (these * near).sum((1, 2)) / these.sum((1, 2)).clamp(min=1)

    precision, recall = found(ours, theirs), found(theirs, ours)
    none = (ours.sum((1, 2)) == 0) & (theirs.sum((1, 2)) == 0)
    return torch.where(none, 1.0, 2 * precision * recall / (precision + recall).clamp(min=1e-300))


def diversity(results: Tensor, distance: Distance = rms_distance) -> float:
    """Mean distance of two seeds' results of one input, ``results`` [seeds, inputs, C, H, W]; two seeds at least."""
    if results.dim() != 5 or len(results) < 2:
        raise ValueError(
            f"diversity: got {list(results.shape)}, expected [seeds, inputs, C, H, W], two seeds or more"
        )
    pairs = [distance(results[i], results[j]).double().mean() for i, j in combinations(range(len(results)), 2)]
    return float(torch.stack(pairs).mean())
