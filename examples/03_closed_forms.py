"""Closed forms: mean and variance of `ve` and `heat` in the DCT, against simulation.

    python examples/03_closed_forms.py --size 8 --samples 4000

Every mode k of the heat process is Gaussian: mean e^{−ΔA z_k} û_0, variance φ_k. The script draws samples in one
exact jump and others with the exponential step (which does not use the DCT), and prints both beside the closed form
for the slowest, a middle and the fastest mode.
"""

import argparse
import math

import torch

import anisodiff
from anisodiff.dct import dct2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--time", type=float, default=0.4)
    args = parser.parse_args()

    size, t = args.size, args.time
    x0 = torch.rand(1, 1, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    many = x0.expand(args.samples, 1, size, size)
    modes = [(0, 1), (size // 2, size // 2), (size - 1, size - 1)]
    worst = 0.0
    for name in ("ve", "heat"):
        exact = anisodiff.process(name, size)
        mean, variance = dct2(exact.mean(x0, 0.0, t))[0, 0], exact.variance(x0, 0.0, t)[0, 0]
        print(f"{name} at t = {t:g}, {args.samples} samples")
        for label, process in [
            ("exact jump", exact),
            ("exponential step", anisodiff.process(name, size, step="exponential(windows=5)")),
        ]:
            u = dct2(process.simulate(many, t, torch.Generator().manual_seed(1)))[:, 0]
            z_mean = (u.mean(0) - mean) / (variance / args.samples).sqrt()
            z_variance = (u.var(0) / variance - 1) / math.sqrt(2 / (args.samples - 1))
            worst = max(worst, float(z_mean.abs().max()), float(z_variance.abs().max()))
            for i, j in modes:
                print(
                    f"  {label:16s} mode ({i},{j}): mean {u[:, i, j].mean():+.5f} (exact {mean[i, j]:+.5f})"
                    f"  variance {u[:, i, j].var():.3e} (exact {variance[i, j]:.3e})"
                )
    print(f"largest deviation of any mean or variance: {worst:.1f} standard errors")
    print("agree" if worst < 5 else "DISAGREE")


if __name__ == "__main__":
    main()
