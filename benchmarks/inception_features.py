"""Features of our InceptionV3 against those of the published file, which is run for that: FID between both.

    python benchmarks/inception_features.py PUBLISHED.pt data_batch_1.png [--images 10000] [--device cuda]

The pictures are a sheet of CIFAR-10, one image a row (10000×1024 RGB). A line is printed every 500 images.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from anisodiff.metrics import inception, torchscript
from anisodiff.metrics.frechet import frechet_distance, gaussian_statistics


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path)
    parser.add_argument("sheet", type=Path)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(words)
    sheet = np.asarray(Image.open(args.sheet, formats=["PNG"]).convert("RGB"))
    images = torch.from_numpy(sheet.copy()).reshape(-1, 32, 32, 3).permute(0, 3, 1, 2)[: args.images]
    ours = inception(args.published, device=args.device, say=lambda _: None)
    theirs = torchscript(args.published, name="published", device=args.device)
    found: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    begin, apart = time.monotonic(), 0.0
    for first in range(0, len(images), args.batch):
        part = images[first : first + args.batch].contiguous()
        for features, network in zip(found, (ours, theirs)):
            features.append(network(part)[0].cpu())
        apart = max(apart, float((found[0][-1] - found[1][-1]).abs().max()))
        if (first + args.batch) % 500 == 0:
            spent = time.monotonic() - begin
            print(f"{first + args.batch} images, largest difference {apart:.3g}, {spent:.0f} s", flush=True)
    distance = frechet_distance(*(gaussian_statistics(torch.cat(features)) for features in found))
    print(f"FID between both: {distance:.3g}; largest difference of a feature: {apart:.3g}")
    return int(not distance < 1e-4)


if __name__ == "__main__":
    raise SystemExit(main())
