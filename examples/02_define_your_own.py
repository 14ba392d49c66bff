"""Define your own process: any α1, α2, λ1, λ2 over time, and a time step that can integrate them.

    python examples/02_define_your_own.py --size 32

Shows three equivalent definitions (overrides of a preset, a config of plain values, objects), that equal settings
have equal identities, and the error for contradictory settings.
"""

import argparse
import json
from dataclasses import replace

import torch

import anisodiff
from anisodiff import SPDE, Equation, Exponential, ProcessConfig
from anisodiff.io.images import sample_photo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=32)
    args = parser.parse_args()

    # 1. a preset, changed
    preset = anisodiff.process(
        "anisotropic", args.size, diffusivity="power(0, 8, 2)", intensity="geometric(0.01, 1)", drift_anisotropy=0.05
    )
    # 2. plain values, as they stand in a YAML file
    plain = ProcessConfig(
        diffusivity="power(0, 8, 2)", intensity="geometric(0.01, 1)", drift_anisotropy=0.05, step="exponential"
    ).build()
    # 3. objects
    equation = Equation(diffusivity="power(0, 8, 2)", intensity="geometric(0.01, 1)", drift_anisotropy=0.05)
    objects = SPDE(equation=equation, stencil="flux", step=Exponential(windows=10))
    print("identity:", json.dumps(objects.identity(), indent=2))
    print("three ways, one process:", preset == plain == objects)

    # how many windows are enough? double them until the state at T no longer changes (without noise)
    x0 = sample_photo(args.size)[None].double()
    quiet = replace(equation, intensity=0)

    def end(windows: int) -> torch.Tensor:
        return SPDE(equation=quiet, step=Exponential(windows=windows)).simulate(x0, quiet.T)

    reference = end(160)
    for windows in (5, 10, 20, 40):
        gap = (end(windows) - reference).square().mean().sqrt()
        print(f"windows = {windows:3d}: root mean square distance from 160 windows {gap:.2e}")

    # noise that stops at edges needs the explicit step; the error says so
    try:
        anisodiff.process("anisotropic", args.size, noise_anisotropy=0.1)
    except ValueError as error:
        print("refused:", error)
    edgy = anisodiff.process("anisotropic", args.size, noise_anisotropy=0.1, step="tamed(dt=0.02, norm=rms)")
    u = edgy.simulate(x0, 0.5, torch.Generator().manual_seed(0))
    print(f"with the tamed step: state at t = 0.5 has mean {u.mean():.3f} and spread {u.std():.3f}")


if __name__ == "__main__":
    main()
