"""Two checks of a process that need no network, at full size: spectra under the best linear score, target variance.

    python benchmarks/linear_score.py --data DIR --images 400 --markdown FILE.md --figure FILE.png

(a) With the best linear predictors of score and drift, measured from data, the reverse process must return the power
spectrum that forward states have at t_min, in every frequency band. It checks objective, projection, moments, prior
and sampler together. (b) The power of each objective's regression target, relative to that of the full kernel's.
DIR holds CIFAR-10 as PNGs of 10000x1024 RGB, one image a row.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import anisodiff
from anisodiff.diagnostics.figures import canvas, save_figure
from anisodiff.hashing import combine
from anisodiff.networks.precondition import ScoreModel
from anisodiff.noise import KeyedNoise
from anisodiff.objectives import objective_for
from anisodiff.priors import fit_gaussian
from anisodiff.samplers.exponential import level_grid, sample
from anisodiff.tables import PHASES, Moments, measure
from anisodiff.transforms import dct2, radial_bands

T_MIN, BANDS = 0.02, 8
CASES = {
    "ve": ("ve", {}),
    "heat": ("heat", {}),
    "anisotropic, 10 windows": ("anisotropic", {}),
    "anisotropic, 5 windows": ("anisotropic", {"step": "exponential(windows=5)"}),
    "anisotropic, α1 = 0.1 → 2": ("anisotropic", {"diffusivity": "geometric(0.1, 2)"}),
}
ONE_STEP = ("anisotropic, one step", ("anisotropic", {"step": "tamed(dt=0.01)"}))


class Nothing(torch.nn.Module):
    def forward(self, x, c, dropout_key=None):
        return torch.zeros_like(x).repeat(1, 2, 1, 1)


def load(folder: Path, count: int) -> torch.Tensor:
    Image.MAX_IMAGE_PIXELS = None
    pixels = np.asarray(Image.open(sorted(folder.rglob("data_batch_*.png"))[0])).reshape(-1, 32, 32, 3)[:count]
    return torch.from_numpy(pixels.copy()).permute(0, 3, 1, 2).float() / 255


def keys(count: int, seed: int) -> torch.Tensor:
    return combine(seed, torch.arange(count))


def band_ratios(process, objective, moments: Moments, images: torch.Tensor, steps: int) -> list[float]:
    model = ScoreModel(Nothing(), process.equation, moments, drift=objective.learns_drift)
    count = len(images)
    prior = fit_gaussian(process.simulate(images, process.T, KeyedNoise(keys(count, 1))))
    seen: list[torch.Tensor] = []
    start, source = prior.draw(count, KeyedNoise(keys(count, 2))), KeyedNoise(keys(count, 3))
    sample(model, start, level_grid(model, steps, T_MIN), source, wiener=1.0, callback=lambda i, u: seen.append(u))
    forward = objective.draw(
        images, torch.full((count,), T_MIN, dtype=torch.float64), KeyedNoise(keys(count, 4))
    ).state
    power = [dct2(u - moments.mean[:, None, None]).square().mean((0, 1)) for u in (seen[-1], forward)]
    band = radial_bands(32, 32, BANDS)
    return [float((power[0] / power[1])[band == k].mean()) for k in range(BANDS)]


def relative_power(moments: Moments) -> tuple[list[float], list[float]]:
    """Times, and the mean over frequencies of the target's power times N_k: 1 for the full kernel."""
    edges = moments.edges
    t = edges[:-1, None] + torch.tensor(PHASES) * (edges[1:] - edges[:-1])[:, None]
    ratio = (moments.log_target + moments.log_noise).exp().mean((-2, -1))
    return t.flatten().tolist(), ratio.flatten().tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--one-step", action="store_true", help="also measure the one-step target (slow)")
    options = parser.parse_args()
    images = load(options.data, options.images)
    lines = [
        "| process | " + " | ".join(f"band {k}" for k in range(BANDS)) + " |",
        "|" + "---|" * (BANDS + 1),
    ]
    print("\n".join(lines), flush=True)
    curves = {}
    for label in options.cases:
        name, overrides = CASES[label]
        begin = time.perf_counter()
        process = anisodiff.process(name, 32, **overrides)
        objective = objective_for(process)
        moments = measure(objective, images)
        ratios = band_ratios(process, objective, moments, images, options.steps)
        lines.append(f"| {label} | " + " | ".join(f"{r:.3f}" for r in ratios) + " |")
        print(lines[-1], f"   {time.perf_counter() - begin:.0f} s", flush=True)
        curves[label] = relative_power(moments)
    if options.one_step:
        label, (name, overrides) = ONE_STEP
        few = images[: max(16, len(images) // 16)]
        curves[label] = relative_power(measure(objective_for(anisodiff.process(name, 32, **overrides)), few))
    if options.markdown:
        options.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if options.figure:
        figure = canvas(7.5, 3.8)
        axes = figure.subplots()
        for label, (t, ratio) in curves.items():
            axes.plot(t, ratio, label=label, linewidth=1.4)
        axes.set(yscale="log", xlabel="t", ylabel="power of the target × noise", ylim=(0.8, 400))
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        figure.tight_layout()
        save_figure(figure, options.figure)


if __name__ == "__main__":
    main()
