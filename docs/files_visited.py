"""How many files of the package run in one training step, and in sampling one image: what a reader has to visit.

python docs/files_visited.py
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import anisodiff
from anisodiff.data import Loader, prepare
from anisodiff.generation import load
from anisodiff.runtime.distributed import Distributed
from anisodiff.training import Plan, TrainConfig, train
from anisodiff.training.model import assemble, calibration_images
from anisodiff.training.step import Stepper

PACKAGE = f"{Path(anisodiff.__file__).parent}/"
NETWORK = {"name": "small", "nf": 8, "multipliers": [1, 1], "blocks": 1}


def visited(work: Callable[[], object]) -> list[str]:
    """Files below `anisodiff` whose functions run in ``work``."""
    found: set[str] = set()

    def see(frame: object, event: str, _: object) -> None:
        name = frame.f_code.co_filename  # type: ignore[attr-defined]
        if event == "call" and name.startswith(PACKAGE):
            found.add(name.removeprefix(PACKAGE))

    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(None)
    return sorted(found)


def main() -> None:
    """Print both lists."""
    with tempfile.TemporaryDirectory() as folder:
        pixels = np.random.default_rng(0).integers(0, 255, (32, 3, 8, 8), dtype=np.uint8)
        np.save(Path(folder) / "raw.npy", pixels)
        dataset = prepare(Path(folder) / "raw.npy", Path(folder) / "data", size=8, channels=3).dataset
        config = TrainConfig(
            process="anisotropic", network=NETWORK, size=8, batch=4, images=8, warm_up=4, calibration=16
        )
        plan, distributed = Plan.of(config), Distributed(torch.device("cpu"))
        statistics = plan.statistics(calibration_images(config, dataset, distributed.device))
        network, execution, model = assemble(plan, statistics, distributed)
        stepper = Stepper(plan, model, network, execution, distributed)
        images = Loader(dataset, batch=4, seed=0).batch(0)[0]
        stepper.step(0, images)  # constants are made once
        train(config, dataset, Path(folder) / "run", track=())
        generator = load(Path(folder) / "run", "cpu", dataset)
        generator.sample(1, steps=12)
        found = {
            "one training step": visited(lambda: stepper.step(1, images)),
            "one sample": visited(lambda: generator.sample(1, steps=12)),
        }
    for name, files in found.items():
        print(f"{name}: {len(files)} files")
        print("  " + ", ".join(files))


if __name__ == "__main__":
    main()
