"""Features of our InceptionV3 against those of the published file, which is run for that: FID between both.

    python benchmarks/inception_features.py PUBLISHED.pt data_batch_1.png [--keep FOLDER] [--device cuda]

The pictures are a sheet of CIFAR-10, one image a row (10000×1024 RGB). A line is printed every 500 images. With
`--keep` the features of each 500 are kept in the folder, and the same command goes on where it was stopped.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from anisodiff.metrics import inception, torchscript
from anisodiff.metrics.frechet import frechet_distance, gaussian_statistics

EACH = 500


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path)
    parser.add_argument("sheet", type=Path)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first image")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--keep", type=Path, help="keep the features here, and read what is there")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(words)
    sheet = np.asarray(Image.open(args.sheet, formats=["PNG"]).convert("RGB"))
    images = torch.from_numpy(sheet.copy()).reshape(-1, 32, 32, 3).permute(0, 3, 1, 2)[: args.images]
    ours = inception(args.published, device=args.device, say=lambda _: None)
    theirs = torchscript(args.published, name="published", device=args.device)
    found: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    begin, apart = time.monotonic(), 0.0
    for first in range(args.first, len(images), EACH):
        kept = None if args.keep is None else args.keep / f"{first}-{min(first + EACH, len(images))}.npy"
        if kept is None or not kept.is_file():
            parts = [part.contiguous() for part in images[first : first + EACH].split(args.batch)]
            both = torch.stack([torch.cat([net(part)[0].cpu() for part in parts]) for net in (ours, theirs)])
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                np.save(kept.with_suffix(".part.npy"), both.numpy())
                kept.with_suffix(".part.npy").replace(kept)
        else:
            both = torch.from_numpy(np.load(kept))
        for features, one in zip(found, both):
            features.append(one)
        apart = max(apart, float((both[0] - both[1]).abs().max()))
        spent = time.monotonic() - begin
        print(f"{first + both.shape[1]} images, largest difference {apart:.3g}, {spent:.0f} s", flush=True)
    distance = frechet_distance(*(gaussian_statistics(torch.cat(features)) for features in found))
    print(f"FID between both: {distance:.3g}; largest difference of a feature: {apart:.3g}")
    return int(not distance < 1e-4)


if __name__ == "__main__":
    raise SystemExit(main())
