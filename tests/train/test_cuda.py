"""The trainer on a GPU: deterministic resume, bfloat16 and compilation, no waiting inside a step."""

import dataclasses

import pytest
import torch

from anisodiff.tables import measure
from anisodiff.train import Plan, read_log, train
from anisodiff.train.setup import assemble
from anisodiff.train.step import Stepper
from anisodiff.train.team import Team

from .conftest import assert_equal, tiny

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def switches():
    """What a deterministic run sets is the process's own affair."""
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("process", ["heat", "anisotropic"])
def test_cuda_continuing_is_bitwise_equal_in_deterministic_mode(dataset, tmp_path, process, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    config = tiny(process=process, deterministic=True)
    train(config, dataset, tmp_path / "calm", device="cuda", tensorboard=False)
    for images in (12, 28, 40):
        part = dataclasses.replace(config, images=images)
        train(part, dataset, tmp_path / "run", device="cuda", tensorboard=False)
    assert_equal(tmp_path / "run", tmp_path / "calm")


def test_cuda_in_bfloat16_learns_as_in_float32(dataset, tmp_path):
    last = {}
    for precision in ("fp32", "bf16"):
        config = tiny(process="anisotropic", precision=precision, images=800, log_every=400)
        train(config, dataset, tmp_path / precision, device="cuda", tensorboard=False)
        last[precision] = [record["loss"] for record in read_log(tmp_path / precision)]
    assert last["bf16"][-1] == pytest.approx(last["fp32"][-1], rel=0.1)


def test_cuda_agrees_with_the_cpu(dataset, tmp_path):
    for device in ("cpu", "cuda"):
        train(tiny(images=20, log_every=20), dataset, tmp_path / device, device=device, tensorboard=False)
    cpu, cuda = (read_log(tmp_path / device)[-1]["loss"] for device in ("cpu", "cuda"))
    assert cuda == pytest.approx(cpu, rel=2e-3)


def test_cuda_a_step_never_waits():
    config = tiny(process="anisotropic")
    device = torch.device("cuda")
    plan, team = Plan.of(config, device), Team(device)
    images = torch.rand(4, 1, 8, 8, device=device)
    network, model = assemble(plan, measure(plan.objective, torch.rand(16, 1, 8, 8, device=device)), team)
    stepper = Stepper(config, plan.objective, model, network, team)
    for k in range(2):
        stepper.step(k, images)
    torch.cuda.set_sync_debug_mode("error")
    try:
        stepper.step(2, images)
    finally:
        torch.cuda.set_sync_debug_mode("default")
