"""Bits of a trained model with its smoothing scaled: is less, or more, of it cheaper for the same network?

    python benchmarks/scaled_smoothing.py MODEL --train TRAIN --test TEST --count 200 --scales 0 0.5 1 1.5

The network stays as it is. α1 is multiplied by a scale, and statistics and prior are estimated anew on images of
TRAIN, for scale 1 as well; images, times and noise are the same for all. Near scale 1, for which the network was
trained, the slope is the gradient of the bound in the strength of the drift. Far from it, it also has what a network
costs under a process that it was not trained for. MODEL has the step exponential(windows=1) or signal. TRAIN and TEST
are prepared datasets.
"""

import argparse
import math
from dataclasses import replace

import torch

import anisodiff
from anisodiff.data import open_dataset
from anisodiff.generation import Generator
from anisodiff.models.score import ScoreModel
from anisodiff.noise import combine
from anisodiff.path_bound import PathBound, last_time
from anisodiff.processes import SPDE
from anisodiff.schedules import Geometric

NONE = 1e-9
"""In place of 0: the model keeps its second output."""


def scaled(generator: Generator, scale: float, images: torch.Tensor, times: int) -> PathBound:
    """The bound of the same network under the process with α1 times ``scale``."""
    process, config = generator.process, generator.plan.config
    if not isinstance(process, SPDE) or not isinstance(rate := process.equation.diffusivity, Geometric):
        raise SystemExit(f"{generator.origin.model}: expected a smoothing by edges with a geometric diffusivity")
    strength = Geometric(max(scale, NONE) * rate.a, max(scale, NONE) * rate.b)
    other = replace(process, equation=replace(process.equation, diffusivity=strength))
    statistics = other.estimate_statistics(images, channel_pca=config.channel_pca)
    model = ScoreModel.build(generator.model.network, other, statistics, config.model_options).eval()
    t_min = last_time(model, config.t_min)
    return PathBound(process=other, model=model, prior=other.prior(images), t_min=t_min, count=times)


@torch.no_grad()
def main(arguments: list[str] | None = None) -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("model")
    words.add_argument("--train", required=True)
    words.add_argument("--test", required=True)
    words.add_argument("--count", type=int, default=200, help="images of TEST")
    words.add_argument("--calibration", type=int, default=1000, help="images of TRAIN for statistics and prior")
    words.add_argument("--times", type=int, default=4, help="of the path, for every image")
    words.add_argument("--scales", type=float, nargs="+", default=[0.0, 0.5, 1.0, 1.5])
    options = words.parse_args(arguments)
    generator = anisodiff.load(options.model, "cpu", precision="fp32")
    images, unseen = (
        open_dataset(options.train).first(options.calibration),
        open_dataset(options.test).first(options.count),
    )
    unit, found = math.log(2) * unseen[0].numel(), {}
    for scale in (1.0, *(s for s in options.scales if s != 1)):
        bound = scaled(generator, scale, images, options.times)
        parts = zip(unseen.split(64), combine(5, torch.arange(len(unseen))).split(64))
        terms = [torch.stack(bound.terms(x, key)) / unit for x, key in parts]
        found[scale] = torch.cat(terms, 1)
        path, prior, last = found[scale].mean(1)
        gap = (found[scale] - found[1.0]).sum(0)
        told = f"scale {scale:g}: {path + prior + last:.4f} bits (path {path:.4f}, last {last:.4f})"
        print(f"{told}, to scale 1 {gap.mean():+.4f} ± {gap.std() / len(gap) ** 0.5:.4f}", flush=True)


if __name__ == "__main__":
    main()
