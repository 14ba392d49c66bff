"""The baselines on a GPU: training in half precision, and the same images as on the CPU."""

import numpy as np
import pytest
import torch

import anisodiff
from anisodiff.io.grids import to_pixels
from anisodiff.registry import PROCESSES
from anisodiff.runtime.distributed import Distributed
from anisodiff.training import Hooks, Plan, read_log, train
from anisodiff.training.model import assemble
from anisodiff.training.preview import fit_prior
from anisodiff.training.step import Stepper
from tests.generation.conftest import data  # noqa: F401
from tests.training.test_baseline_runs import config

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
every_baseline = pytest.mark.parametrize("name", PROCESSES)


@every_baseline
def test_half_precision_follows_the_cpu(name, data, tmp_path):  # noqa: F811
    for device, changes in (("cpu", {}), ("cuda", {"precision": "bf16"})):
        train(config(name, log_every=20, **changes), data, tmp_path / device, device=device, track=())
    cpu, cuda = (read_log(tmp_path / device)[-1]["loss"] for device in ("cpu", "cuda"))
    assert cuda == pytest.approx(cpu, rel=0.02)


@every_baseline
def test_the_device_does_not_matter_in_single_precision(name, data, tmp_path):  # noqa: F811
    train(config(name), data, tmp_path, hooks=Hooks(fit_prior=fit_prior), track=())
    found = [anisodiff.load(tmp_path, device, precision="fp32").sample(8, steps=12) for device in ("cuda", "cpu")]
    here, there = (to_pixels(images).astype(int) for images in found)
    assert np.abs(here - there).max() <= 1


@every_baseline
def test_a_step_never_waits(name):
    device = torch.device("cuda")
    plan, distributed = Plan.of(config(name), device), Distributed(device)
    images = torch.rand(4, 1, 8, 8, device=device)
    statistics = plan.statistics(torch.rand(16, 1, 8, 8, device=device))
    network, execution, model = assemble(plan, statistics, distributed)
    stepper = Stepper(plan, model, network, execution, distributed)
    for k in range(2):
        stepper.step(k, images)
    torch.cuda.set_sync_debug_mode("error")
    try:
        stepper.step(2, images)
    finally:
        torch.cuda.set_sync_debug_mode("default")
