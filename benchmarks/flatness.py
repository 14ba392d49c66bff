"""How flat a model's samples are: power by band of frequencies, and the lean of its residual that takes it away.

    python benchmarks/flatness.py CHECKPOINT --images DATASET --samples 128 --evaluations 25

Prints the power of samples relative to the images', without the checkpoint's balance and with it, and the correlation
of state and residual F on states of the forward process and on the model's own. DATASET is a prepared one.
"""

import argparse

import torch
from torch import Tensor

import anisodiff
from anisodiff.data import open_dataset
from anisodiff.dct import band_sums, dct2, radial_bands
from anisodiff.noise import KeyedNoise, combine

BANDS = 6


def powers(images: Tensor, mean: Tensor) -> Tensor:
    """Mean power of every band, [BANDS]."""
    field = dct2(images - mean[:, None, None]).square().mean((0, 1))
    band = radial_bands(*field.shape, BANDS)
    return band_sums(field, band, BANDS) / band_sums(torch.ones_like(field), band, BANDS)


@torch.no_grad()
def correlation(model, states: Tensor, t: float) -> Tensor:
    """Of û and F in every band, [BANDS]; nothing is taken out."""
    when = torch.full((1,), t, dtype=torch.float64, device=states.device)
    parts = []
    for part in torch.split(states, 64):
        z = model.centred(part)
        parts.append((z, model.outputs(z, model.coefficients(when))[0]))
    z, f = (torch.cat(column) for column in zip(*parts))
    band = radial_bands(*z.shape[-2:], BANDS).to(z.device)
    cross, one, other = (band_sums(x.mean((0, 1)), band, BANDS) for x in (z * f, z * z, f * f))
    return (cross / (one * other).sqrt().clamp(min=1e-30)).cpu()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--images", required=True)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--evaluations", type=int, default=25)
    parser.add_argument("--times", type=float, nargs="+", default=[0.9, 0.6, 0.3])
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    generator = anisodiff.load(options.checkpoint, options.device)
    images = open_dataset(options.images).first(max(options.samples, 2000))
    mean = images.mean((0, 2, 3))
    balance, states = generator.balance, {}

    def look(step) -> None:
        states.setdefault(step.t, []).append(step.state)

    generator.use_balance(None, None)
    rows = {"without balance": generator.sample(options.samples, steps=options.evaluations, callback=look)}
    if balance is not None:
        generator.use_balance(balance, "stored")
        rows["with balance"] = generator.sample(options.samples, steps=options.evaluations)
    print(f"{options.samples} samples, {options.evaluations} evaluations; bands of |k/n|, the first the mean alone")
    for name, made in rows.items():
        ratio = powers(made, mean) / powers(images, mean)
        print(f"power, {name:>15}: " + "  ".join(f"{x:.3f}" for x in ratio.tolist()))
    few = images[: options.samples].to(generator.device)
    for wanted in options.times:
        t = min(states, key=lambda held: abs(held - wanted))
        key = KeyedNoise(combine(1, torch.arange(len(few), device=generator.device)))
        forward = generator.plan.objective.draw(few, torch.full((len(few),), t, dtype=torch.float64), key).state
        for name, seen in (("forward", forward), ("own", torch.cat(states[t]))):
            found = correlation(generator.model, seen, t)
            print(f"correlation, t = {t:.2f}, {name:>7} states: " + "  ".join(f"{x:+.3f}" for x in found.tolist()))


if __name__ == "__main__":
    main()
