"""Terminal state: how much noise at T makes U_T independent of the image U_0?

    python examples/04_terminal_state.py --images 200 --size 16

Uses crops of one photograph as images, raises the intensity α2 at T step by step, and prints the terminal SNR, the
mutual information of U_0 and U_T, and how often the source of U_T is identified among all crops by the best linear
detector. Crops of one photograph resemble one another more than the images of a dataset do, so take the trend from
here and the numbers from `anisodiff diagnose` on your own images.
"""

import argparse

import torch

import anisodiff
from anisodiff.diagnosis import diagnose
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
    print(f"{args.process}, {args.images} crops of {args.size}x{args.size}; chance {100 / args.images:.1f}%")
    print("α2 at T   SNR of the mean color   mutual information   source identified   U_T is")
    words = {True: "independent of", False: "dependent on", None: "too few images to tell from"}
    for stop in (0.5, 2, 10, 50, 250):
        process = anisodiff.process(args.process, args.size, intensity=f"geometric(0.01, {stop})")
        result = diagnose(process, images, seed=0)
        print(
            f"{stop:7g}   {result.snr[0]:21.3g}   {result.information:13.1f} bits"
            f"   {100 * result.found_again:16.1f}%   {words[result.forgets]} U_0"
        )


if __name__ == "__main__":
    main()
