"""Leakage: how much noise at T makes the terminal state independent of the image it started from?

    python examples/04_forgetting.py --images 200 --size 16

The images are crops of one photograph. The script raises the intensity α2 at T and prints how often the source of a
terminal state is identified among all crops, by the best linear detector and by the nearest neighbor in pixels. Crops
of one photograph resemble one another, so only the trend is meaningful: for numbers, run `anisodiff diagnose` on your
own images.
"""

import argparse

import torch

import anisodiff
from anisodiff.forgetting import forgetting
from anisodiff.io.images import sample_photo


def crops(count: int, size: int) -> torch.Tensor:
    photo, generator = sample_photo(), torch.Generator().manual_seed(0)
    corners = torch.randint(0, min(photo.shape[-2:]) - size, (count, 2), generator=generator).tolist()
    return torch.stack([photo[:, y : y + size, x : x + size] for y, x in corners])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--process", default="anisotropic")
    args = parser.parse_args()

    images = crops(args.images, args.size)
    print(f"{args.process}, {args.images} crops of {args.size}x{args.size}; chance {100 / args.images:.1f} %")
    print("α2 at T   signal-to-noise of the mean   found (linear)   found (pixels)   conclusion")
    for stop in (0.5, 2, 10, 50, 250):
        process = anisodiff.process(args.process, args.size, intensity=f"geometric(0.01, {stop})")
        result = forgetting(process, images, seed=0)
        print(
            f"{stop:7g}   {result.snr[0]:27.3g}   {100 * result.found_again:12.1f} %"
            f"   {100 * result.found_by_pixels:12.1f} %   {'forgets' if result.forgets else 'remembers'}"
        )


if __name__ == "__main__":
    main()
