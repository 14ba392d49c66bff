"""The trainer on a GPU: deterministic resume, bfloat16 and compilation, no waiting inside a step."""

import dataclasses

import pytest
import torch

from anisodiff.replaying import Replay
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


def steppers(count: int) -> list[Stepper]:
    """Runs on the GPU that begin alike."""
    config, device = tiny(process="anisotropic", lr=1e-2), torch.device("cuda")
    moments = measure(Plan.of(config).objective, torch.rand(32, 1, 8, 8, device=device))
    made = []
    for _ in range(count):
        plan, team = Plan.of(config, device), Team(device)
        network, model = assemble(plan, moments, team)
        made.append(Stepper(config, plan.objective, model, network, team))
    return made


def test_cuda_graph_makes_the_steps_of_the_plain_passes():
    """Also after a batch that is not finite, which must leave no trace in weights, averages and later gradients."""
    plain, replayed = steppers(2)
    replayed.replay = Replay(replayed.passes, lambda: replayed.adam.zero_grad(set_to_none=True))
    images = torch.rand(6, 4, 1, 8, 8, device="cuda")
    images[2] = torch.nan
    for k, batch in enumerate(images):
        plain.step(k, batch)
        replayed.step(k, batch)
    for name, value in plain.weights.items():
        assert torch.allclose(value, replayed.weights[name], rtol=1e-3, atol=1e-5), name
        assert value.isfinite().all()
    assert int(plain.tally.skipped[0]) == int(replayed.tally.skipped[0]) == 1
    assert torch.allclose(plain.tally.loss, replayed.tally.loss, rtol=1e-3)


def test_cuda_a_graph_of_gradients_has_one_shape():
    (stepper,) = steppers(1)
    stepper.replay = Replay(stepper.passes, lambda: stepper.adam.zero_grad(set_to_none=True))
    drawn = stepper.simulate(torch.rand(4, 1, 8, 8, device="cuda"), stepper.draw(0), slice(0, 4))
    batch = stepper.draw(0)
    values = (drawn.state, drawn.score, batch.t, batch.dropout, drawn.drift)
    stepper.replay(*values)
    with pytest.raises(AssertionError, match="one shape"):
        stepper.replay(*(x[:2] for x in values))
