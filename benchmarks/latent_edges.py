"""Do the latents of an autoencoder have edges where the images have them?

    python benchmarks/latent_edges.py DATASET AUTOENCODER --images 256

Perona–Malik diffusion in latent space keeps edges of the latents. That means something for images only if both lie in
the same places. Measured per latent channel, over all latent pixels of all images, without those at the boundary:

correlation   Spearman's, between |∇z_c| and the image's |∇u|, averaged over the pixels of each latent pixel
control       the same with the edges of another image
contrast      the weight g = 1/√(1 + |∇/λ|²) of Perona–Malik, averaged over the half of the latent pixels with the
              weakest image edges, over that of the tenth with the strongest. λ is chosen for each field so that the
              mean weight is ½. 1: edges of the image are smoothed like everything else. The row "pixels" has the
              same of the image itself.
"""

import argparse
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from anisodiff.data import open_dataset
from anisodiff.latent import open_autoencoder
from anisodiff.stencils.gradient import difference_x, difference_y


def gradient(u: Tensor) -> Tensor:
    """|∇u| of [B, C, H, W] by unhalved central differences, as the process sees it; 0 across the boundary."""
    return (difference_x(u).square() + difference_y(u).square()).sqrt()


def ranks(x: Tensor) -> Tensor:
    """Ranks of the values, centered and of unit norm."""
    place = torch.empty(len(x), dtype=torch.float64)
    place[x.argsort()] = torch.arange(len(x), dtype=torch.float64)
    place -= place.mean()
    return place / place.norm()


def spearman(a: Tensor, b: Tensor) -> float:
    """Rank correlation of two fields."""
    return float(ranks(a.flatten()) @ ranks(b.flatten()))


def weight(slopes: Tensor) -> Tensor:
    """g of a field of slopes, with the λ for which its mean is ½, by bisection in ln λ."""
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        mean = float((1 + (slopes.double() / math.exp(middle)).square()).rsqrt().mean())
        low, high = (middle, high) if mean < 0.5 else (low, middle)
    return (1 + (slopes.double() / math.exp(low)).square()).rsqrt()


def inner(x: Tensor) -> Tensor:
    """Without the pixels at the boundary, where slopes are cut."""
    return x[..., 1:-1, 1:-1]


def measure(images: Tensor, z: Tensor, factor: int) -> dict[str, object]:
    """The numbers of the module's text, for images [B, C, H, W] in [0, 1] and their latents."""
    fine = gradient(images).mean(1, keepdim=True)
    edges = inner(F.avg_pool2d(fine, factor))[:, 0]
    strong, weak = (edges >= edges.quantile(0.9), edges <= edges.quantile(0.5))

    def contrast(g: Tensor) -> float:
        return float(g[weak].mean() / g[strong].mean())

    def row(slopes: Tensor) -> dict[str, float]:
        return {
            "correlation": spearman(slopes, edges), "control": spearman(slopes, edges.roll(1, 0)),
            "contrast": contrast(weight(slopes)),
        }  # fmt: skip

    slopes = inner(gradient(z / z.std((0, 2, 3), keepdim=True)))
    return {
        "images": len(images),
        "pixels": {"contrast": contrast(inner(F.avg_pool2d(weight(fine), factor))[:, 0])},
        "all channels": row(slopes.square().mean(1).sqrt()),
        "channels": [row(slopes[:, c]) for c in range(z.shape[1])],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("autoencoder")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    images, autoencoder = open_dataset(given.dataset).first(given.images), open_autoencoder(given.autoencoder)
    found = measure(images, autoencoder.encode(images)[0], autoencoder.about.factor)
    text = json.dumps(found, indent=1)
    print(text)
    if given.json is not None:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
