"""A device without float64: the same losses, samples, edits and numbers as on the CPU, up to rounding."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
PROGRAM = """
import contextlib, math
import torch, numpy as np, anisodiff
from anisodiff.data import open_dataset, prepare
from anisodiff.training import Hooks, TrainConfig, read_log, train
from anisodiff.studio.generate import expectation
from anisodiff.training.preview import fit_prior
from tests.support.no_float64 import register, simulated

there, here = register(), torch.device("cpu")
network = {"name": "small", "nf": 4, "multipliers": [1], "blocks": 1, "dropout": 0.2}
data = prepare("pictures.npy", "data", size=8, channels=1).dataset

def on(device):
    return simulated() if device is there else contextlib.nullcontext()

def close(one, other, atol, what):
    one, other = torch.as_tensor(one), torch.as_tensor(other)
    torch.testing.assert_close(one, other, rtol=0, atol=atol, msg=lambda m: what + m)

SAMPLERS = {
    "ve": "pc", "anisotropic": "exponential", "flow-matching": "heun", "heat-dissipation": "auto",
    "edge-preserving": "auto",
}
for process, sampler in SAMPLERS.items():
    runs, images = {}, {}
    levels = {"levels": 4} if sampler == "auto" else {}
    config = TrainConfig(
        process={"preset": process, **levels}, network=network, size=8, channels=1, batch=4, images=8, warm_up=0,
        calibration=16, log_every=4, sample_every=0, lr=1e-3,
    )
    for device in (here, there) if process == "ve" else (here,):
        with on(device):
            train(config, data, f"{process}-{device.type}", device=device, track=(), hooks=Hooks(fit_prior=fit_prior))
            runs[device] = [line["loss"] for line in read_log(f"{process}-{device.type}")]
    for device in (here, there):
        with on(device):
            model = anisodiff.load(f"{process}-cpu", device)
            steps = 21 if process == "anisotropic" else 4
            images[device] = [model.sample(2, seed=0, steps=steps, sampler=sampler)]
            if process == "ve":  # the images that the studio shows while it samples
                reverse = model.reverse_process(steps=steps, sampler=sampler)
                seen = []
                model.sample_with(reverse, [0], model.prior(), callback=seen.append)
                images[device].append(expectation(model, seen[1], reverse).cpu())
            if process == "anisotropic":
                images[device].append(anisodiff.edit(model, images[here][0], seeds=(0, 1), strength=0.5, steps=steps))
    for losses in runs.values():
        close(losses, runs[here], 1e-5 * max(losses), f"{process}: ")
    for one, other in zip(*images.values()):
        assert other.device == here
        close(other, one, 1e-3, f"{process}: ")
"""


def test_trains_samples_and_edits_on_a_device_without_float64(tmp_path):
    np.save(tmp_path / "pictures.npy", np.random.default_rng(0).integers(0, 256, (24, 8, 8), np.uint8))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
