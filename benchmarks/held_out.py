"""What networks have learned, without a sample: their loss on images that they have not seen, by noise level.

    python benchmarks/held_out.py RUN… --images DATASET --count 256 --levels -2.5 -1.5 -0.75 0 0.75

All runs see the same images and the same noise. The loss is the one of training at γ and weighting of each run, where
Wiener's predictor alone has about 1: of runs with the same process, weighting and `reverse`, and with tables of the
same images, the less the better, whatever surrounds the network. Beside it the standard error over images of the
difference to the first run. DATASET is a prepared one; take images from its end with --from.
"""

import argparse
import math

import torch
from torch import Tensor

import anisodiff
from anisodiff.data import open_dataset
from anisodiff.editing import t_of_strength
from anisodiff.noise import KeyedNoise, combine


@torch.no_grad()
def losses(generator, images: Tensor, level: float, batch: int) -> Tensor:
    """Of every image at one level, [N]."""
    model, process, found = generator.model, generator.process, []
    t = t_of_strength(model, 1 / (1 + math.exp(-level)))  # a level that the process does not reach is refused
    settled = process.snap_to_grid(torch.tensor([t], dtype=torch.float64))
    for number, part in enumerate(torch.split(images, batch)):
        keys = combine(7, torch.arange(len(part), device=part.device) + number * batch)
        when = settled.expand(len(part)).to(part.device)
        found.append(model.loss(process.training_pair(part, when, KeyedNoise(keys)), when))
    return torch.cat(found).double().cpu()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--images", required=True)
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first image that is taken")
    parser.add_argument("--levels", type=float, nargs="+", default=[-2.5, -1.5, -0.75, 0.0, 0.75])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    images = open_dataset(options.images).first(options.first + options.count)[options.first :]
    print(f"{len(images)} images; levels " + "  ".join(f"{level:+g}" for level in options.levels))
    first: list[Tensor] = []
    for run in options.runs:
        generator = anisodiff.load(run, options.device, precision="fp32")
        seen = images.to(generator.device)
        found = [losses(generator, seen, level, options.batch) for level in options.levels]
        print(f"{run}: " + "  ".join(f"{x.mean():.4f}" for x in found), flush=True)
        if first:
            gaps = [one - other for one, other in zip(found, first)]
            shown = "  ".join(f"{gap.mean():+.4f} ± {gap.std() / len(gap) ** 0.5:.4f}" for gap in gaps)
            print(f"  against the first: {shown}", flush=True)
        first = first or found


if __name__ == "__main__":
    main()
