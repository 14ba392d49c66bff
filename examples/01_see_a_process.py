"""See a process: what the forward process does to a photograph, in numbers and in a picture.

    python examples/01_see_a_process.py --size 64 --output see.png

The photograph is matplotlib's sample (Grace Hopper). For each time the script prints the correlation of the state
with the photograph in bands of the DCT, from coarse to fine.
"""

import argparse
from pathlib import Path

import torch

import anisodiff
from anisodiff.dct import dct2, radial_bands
from anisodiff.io.figures import save_figure, trajectory_figure
from anisodiff.io.images import sample_photo


def correlations(u: torch.Tensor, x: torch.Tensor, band: torch.Tensor, bands: int) -> list[float]:
    a, b = dct2(u.double()), dct2(x.double())
    found = []
    for k in range(1, bands):
        p, q = a[..., band == k].flatten(), b[..., band == k].flatten()
        found.append(float(p @ q / (p.norm() * q.norm())))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--process", default="anisotropic")
    parser.add_argument("--output", type=Path, help="also a figure: .png, .pdf or .svg")
    args = parser.parse_args()

    process = anisodiff.process(args.process, args.size)
    photo = sample_photo(args.size)[None]
    times = [process.T * k / 5 for k in range(6)]
    states = process.trajectory(photo, times, torch.Generator().manual_seed(0))

    bands = 5
    band = radial_bands(args.size, args.size, bands)
    print(f"{args.process} at {args.size}x{args.size}: correlation with the photograph, coarse to fine")
    for t, u in zip(times, states):
        row = "  ".join(f"{c:6.3f}" for c in correlations(u, photo, band, bands))
        print(f"t = {t:4.2f}   {row}   pixel spread {u.std():.3f}")
    if args.output:
        save_figure(trajectory_figure(process, args.process, [u[0] for u in states], times), args.output)
        print(f"wrote {args.output}")


if __name__ == "__main__":
    main()
