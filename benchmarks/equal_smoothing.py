"""What costs quality: smoothing at equal removed signal, in three ways, and with other operators.

    python benchmarks/equal_smoothing.py DATASET --share 0.7 --out OUT [-- options of compare]

Every run has the noise of `ve` and a smoothing that fades, α1 = a → a/500, with a found on the training images so
that the same share of the gradients' energy is removed by T (`processes.removal`):

    image       the image alone, by its own edges                              (step signal)
    both        image and noise, by an operator of the image                   (step exponential, one window)
    isotropic   image and noise isotropically                                  (step exact)
    blur-R      as both, but edges of the image blurred by R = 1, 2, 4 pixels: they survive in the state for longer
    turned      as both, with the edges of the image turned by 180°: a control

and `ve` beside them. Prints the settings and runs `anisodiff compare` on them (again: it continues). --dry-run prints
only. DATASET is a prepared one.

The sampler `exponential` takes an operator's deviation from its mean explicitly, so one that acts on the noise as
well needs steps with 8∫α1 below about 0.65: `both` at a share of 0.7 diverges with 50 NFE, even under the exact score
and drift. Unless --steps is given, all runs get the NFE that the stiffest of them needs.
"""

import argparse
import subprocess
import sys
from functools import partial

import torch
from torch import Tensor

import anisodiff
from anisodiff.data import open_dataset
from anisodiff.models.base import ModelOptions
from anisodiff.models.score import ScoreModel
from anisodiff.processes import Process
from anisodiff.processes.removal import diffusivity_for, removed_share
from anisodiff.samplers.grids import grid_between

CASES = {
    "image": ("anisotropic-gentle", "signal(windows=1)"),
    "both": ("anisotropic-gentle", "exponential(windows=1)"),
    "isotropic": ("ve", "exact"),
    "blur-1": ("anisotropic-gentle", "exponential(windows=1, blur=1)"),
    "blur-2": ("anisotropic-gentle", "exponential(windows=1, blur=2)"),
    "blur-4": ("anisotropic-gentle", "exponential(windows=1, blur=4)"),
    "turned": ("anisotropic-gentle", "exponential(windows=1, turned=true)"),
}


T_MIN, STIFFEST = 0.02, 0.65
"""Where sampling ends, and the largest 8∫α1 of a step that is sampled well."""


def fading(a: float) -> str:
    return f"geometric({a:.6g}, {a / 500:.6g})"


def build(case: str, size: int, a: float) -> Process:
    preset, step = CASES[case]
    return anisodiff.process(preset, size, diffusivity=fading(a), step=step)


def grids_of(size: int, images: Tensor) -> dict[int, Tensor]:
    """NFE → descending times of a sampler, even in the noise level of `ve`, which all cases have."""
    process = anisodiff.process("ve", size)
    statistics = process.estimate_statistics(images)
    model = ScoreModel.build(torch.nn.Identity(), process, statistics, ModelOptions())
    return {nfe: grid_between(model, "level", nfe - 1, T_MIN, process.T) for nfe in range(50, 1001, 50)}


def stiffness(process: Process, times: Tensor) -> float:
    """The largest 8∫α1 of a step."""
    return 8 * float(process.equation.smoothing(times[1:], times[:-1]).max())


def setting(case: str, a: float) -> str:
    """A run of `compare`."""
    preset, step = CASES[case]
    return f"{preset}:process.diffusivity={fading(a)};process.step={step};name={case}"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("dataset")
    words.add_argument("--share", type=float, default=0.7)
    words.add_argument("--images", type=int, default=64, help="on which the diffusivities are found")
    words.add_argument("--out", required=True)
    words.add_argument("--dry-run", action="store_true")
    place = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options, rest = words.parse_args(sys.argv[1:place]), sys.argv[place + 1 :]
    data = open_dataset(options.dataset)
    images, size, chosen = data.first(min(options.images, len(data))), max(data.size), ["ve:name=ve"]
    least, grids = 50, grids_of(size, images)
    for case, (_, step) in CASES.items():
        made = partial(build, case, size)
        a = diffusivity_for(made, images, options.share, made(1.0).T)
        chosen.append(setting(case, a))
        if step.startswith("exponential"):
            good = [nfe for nfe, times in grids.items() if stiffness(made(a), times) < STIFFEST]
            least = max(least, min(good, default=max(grids)))
        print(f"{case}: α1 from {a:.4g}, removes {removed_share(made(a), images, made(a).T):.4f}", flush=True)
    if not any(word.startswith("--steps") for word in rest):
        rest += ["--steps", str(least)]
    command = ["compare", *chosen, "--data", options.dataset, "--out", options.out, *rest]
    print("anisodiff " + " ".join(f"'{word}'" if set(word) & set("();") else word for word in command))
    if not options.dry_run:
        sys.exit(subprocess.run([sys.executable, "-m", "anisodiff", *command], check=False).returncode)


if __name__ == "__main__":
    main()
