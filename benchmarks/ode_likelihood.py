"""An independent check of the bound of a path: the likelihood of states at t_min by the probability flow.

    python benchmarks/ode_likelihood.py MODEL --images PICTURES --count 4 --steps 60

The flow du/dt = b − ½ α2² s carries u_tmin to the prior; along it ln p changes by the divergence, which is estimated
with random signs (Hutchinson), so that E[−ln p_tmin(u)] − E[−ln q(u | x0)] is KL(q(u_tmin | x0) ‖ p_tmin). That is
what path and prior of the bound are for an exact score, where the drift is a function of the state; else they are
more.
Both are printed in bits for a number of the image. PICTURES: a folder, zip, npz or prepared dataset.
"""

import argparse
import math
from itertools import pairwise

import torch
from torch import Tensor

import anisodiff
from anisodiff.io.images import Fit
from anisodiff.metrics.images import image_set, read_batches
from anisodiff.noise import KeyedNoise, combine
from anisodiff.path_bound import PathBound, last_time
from anisodiff.samplers.grids import grid_between


def flow(model, z: Tensor, t: Tensor, probe: Tensor) -> tuple[Tensor, Tensor]:
    """dz/dt of the model's coordinates, and an estimate of its divergence [B]."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        score, drift = model.score_and_drift(z, t)
        speed = drift - 0.5 * model.equation.alpha2(t).square().to(z.dtype) * score
        (pulled,) = torch.autograd.grad((speed * probe).sum(), z)
    return speed.detach(), (pulled * probe).double().sum((-3, -2, -1))


def log_density(model, prior, u: Tensor, times: Tensor, keys: Tensor) -> Tensor:
    """ln p at the first of ``times`` of states ``u``, by Heun's method; fresh signs for every step, [B]."""
    z, total = model.to_coordinates(u), torch.zeros(len(u), dtype=torch.float64)
    for k, (t, t_next) in enumerate(pairwise(times)):
        probe = KeyedNoise(combine(keys, k)).normal(z).sign()
        step = float(t_next - t)
        speed, spread = flow(model, z, t[None], probe)
        there, further = flow(model, z + step * speed, t_next[None], probe)
        z, total = z + 0.5 * step * (speed + there), total + 0.5 * step * (spread + further)
    return prior.log_density(model.from_coordinates(z)) + total


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--images", required=True)
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--times", type=int, default=32, help="of the bound, for every image")
    options = parser.parse_args(arguments)
    generator = anisodiff.load(options.model, "cpu", precision="fp32")
    model, process, prior = generator.model, generator.process, generator.prior()
    fit = Fit(size=generator.size, channels=generator.channels)
    (batch,) = read_batches(image_set(options.images, fit=fit), options.count, limit=options.count)
    x0, keys = batch[:, : generator.channels].float() / 255, combine(7, torch.arange(len(batch)))
    t_min = last_time(model, generator.plan.config.t_min)
    times = grid_between(model, "level", options.steps, t_min, model.T).flip(0)
    unit = x0[0].numel() * math.log(2)
    u, own = process.draw_with_density(x0, t_min, KeyedNoise(keys))
    known = (own - log_density(model, prior, u, times, keys)) / unit
    bound = PathBound(process=process, model=model, prior=prior, t_min=t_min, count=options.times)
    with torch.no_grad():
        path = (bound.path(x0, keys) + bound.start(x0, keys)) / unit
    for name, found in (("flow", known), ("bound", path)):
        print(f"{name}: {float(found.mean()):.4f}   " + " ".join(f"{float(x):.4f}" for x in found))


if __name__ == "__main__":
    main()
