"""The trainer on a GPU: deterministic resume, half precision, graphs, batches prepared beside a step, no waiting."""

import dataclasses

import pytest
import torch

from anisodiff.runtime.cuda_graphs import Replay
from anisodiff.runtime.distributed import Distributed
from anisodiff.training import Plan, read_log, train
from anisodiff.training.model import assemble
from anisodiff.training.setup import prepare_device
from anisodiff.training.step import Stepper
from tests.training.conftest import assert_equal, tiny

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
LONG = 200_000_000
"""Cycles of the device, a tenth of a second: longer than the host needs to launch a step."""


@pytest.fixture(autouse=True)
def switches():
    """What a run sets is the process's own affair: no test finds the switches of another."""
    benchmark, tf32 = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    yield
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = benchmark, tf32


@pytest.mark.parametrize("process", ["heat", "anisotropic"])
def test_cuda_continuing_is_bitwise_equal_in_deterministic_mode(dataset, tmp_path, process, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    config = tiny(process=process, deterministic=True)
    train(config, dataset, tmp_path / "calm", device="cuda", track=())
    for images in (12, 28, 40):
        part = dataclasses.replace(config, images=images)
        train(part, dataset, tmp_path / "run", device="cuda", track=())
    assert_equal(tmp_path / "run", tmp_path / "calm")


def test_cuda_in_bfloat16_learns_as_in_float32(dataset, tmp_path):
    last = {}
    for precision in ("fp32", "bf16"):
        config = tiny(process="anisotropic", precision=precision, images=800, log_every=400)
        train(config, dataset, tmp_path / precision, device="cuda", track=())
        last[precision] = [record["loss"] for record in read_log(tmp_path / precision)]
    assert last["bf16"][-1] == pytest.approx(last["fp32"][-1], rel=0.1)


def test_cuda_compiled_networks_are_the_same(dataset, tmp_path):
    for compiled in (False, True):
        config = tiny(images=20, log_every=20, compile=compiled)
        train(config, dataset, tmp_path / str(compiled), device="cuda", track=())
    plain, compiled = (read_log(tmp_path / str(word))[-1]["loss"] for word in (False, True))
    assert compiled == pytest.approx(plain, rel=2e-3)


def test_cuda_agrees_with_the_cpu(dataset, tmp_path):
    for device in ("cpu", "cuda"):
        train(tiny(images=20, log_every=20), dataset, tmp_path / device, device=device, track=())
    cpu, cuda = (read_log(tmp_path / device)[-1]["loss"] for device in ("cpu", "cuda"))
    assert cuda == pytest.approx(cpu, rel=2e-3)


def steppers(count: int, **changes) -> list[Stepper]:
    """Runs on the GPU that begin alike; their passes are launched one by one."""
    config, device = tiny(**{"process": "anisotropic", "lr": 1e-2, **changes}), torch.device("cuda")
    prepare_device(config, device)
    statistics = Plan.of(config).statistics(picture(0, 32))
    made = []
    for _ in range(count):
        plan, distributed = Plan.of(config, device), Distributed(device)
        network, execution, model = assemble(plan, statistics, distributed)
        made.append(Stepper(plan, model, network, execution, distributed))
        made[-1].replay = None
    return made


def record(stepper: Stepper) -> None:
    """Passes as a graph, as in a run of one process."""
    stepper.replay = Replay(stepper.passes, lambda: stepper.adam.zero_grad(set_to_none=True))


def picture(k: int, count: int = 4) -> torch.Tensor:
    """Images of step k, made on the device, on whichever stream is current."""
    return torch.rand(count, 1, 8, 8, device="cuda", generator=torch.Generator("cuda").manual_seed(k))


def step_ahead(stepper: Stepper, k: int) -> None:
    """A step as the loop makes it."""
    with stepper.ahead():
        prepared = stepper.prepare(k, picture(k))
    stepper.step(k, prepared)


@pytest.mark.parametrize("graph", [False, True], ids=["plain", "graph"])
@pytest.mark.parametrize("ahead", [False, True], ids=["in turn", "ahead"])
def test_cuda_a_step_never_waits(ahead, graph):
    (stepper,) = steppers(1)
    if graph:
        record(stepper)
    images = picture(0)

    def make(k: int) -> None:
        if ahead:
            step_ahead(stepper, k)
        else:
            stepper.step(k, images)

    for k in range(4):
        make(k)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for k in range(4):  # times seen before: a window entered for the first time makes its constants, and waits
            make(k)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def overwrite() -> None:
    """Take what memory is to be had on the current stream, and spoil it."""
    kept = [torch.full((count,), torch.nan, device="cuda") for count in (16, 256, 512) for _ in range(16)]
    assert len(kept) == 48  # all at once: one that were dropped would be the next one's memory


@pytest.mark.parametrize("changes", [{}, {"accumulation": 2}], ids=["whole", "in parts"])
def test_cuda_steps_prepared_ahead_are_the_plain_steps(changes, monkeypatch):
    """Bitwise. Now the passes come late, now the values; and memory that the host thinks free is spoilt at once: who
    reads before all is there, or after the memory was handed on, is found out."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    plain, ahead = steppers(2, deterministic=True, batch=8, **changes)
    count, passes = plain.config.batch, ahead.passes
    for k in range(12):
        plain.step(k, picture(k, count))
        torch.cuda.synchronize()

    def late(*values: torch.Tensor) -> torch.Tensor:
        if k % 3 == 0:
            torch.cuda._sleep(LONG)
        return passes(*values)

    monkeypatch.setattr(ahead, "passes", late)
    images = [picture(0, count)]
    for k in range(12):
        with ahead.ahead():
            assert k == 0 or torch.cuda.current_stream() == ahead.side
            if k % 3 == 2:
                torch.cuda._sleep(LONG)
            prepared = ahead.prepare(k, images.pop())
        overwrite()
        images.append(picture(k + 1, count))  # before the step: `ahead` waits for no more
        ahead.step(k, prepared)
        del prepared
        with ahead.ahead():
            overwrite()
    assert int(ahead.sums.skipped[0]) == 0
    assert torch.equal(plain.sums.loss, ahead.sums.loss)
    for name, value in plain.weights.items():
        assert torch.equal(value, ahead.weights[name]), name
    for name, value in plain.ema_weights.of(0).items():
        assert torch.equal(value, ahead.ema_weights.of(0)[name]), name


def test_cuda_a_batch_is_prepared_while_the_device_is_busy():
    (stepper,) = steppers(1)
    record(stepper)
    for k in range(6):
        step_ahead(stepper, k)
    torch.cuda.synchronize()  # memory was asked for, constants were made: from here on nothing makes the host wait
    over = torch.cuda.Event()
    torch.cuda._sleep(4 * LONG)  # stands for the passes of a large network
    over.record()
    with stepper.ahead():
        prepared = stepper.prepare(5, picture(5))
    prepared.ready.synchronize()
    assert not over.query()
    torch.cuda.synchronize()


def test_cuda_graph_makes_the_steps_of_the_plain_passes():
    """Also after a batch that is not finite, which must leave no trace in weights, averages and later gradients.

    Losses and gradients are compared, each step at equal weights. The weights after several steps would not do: Adam
    divides by √v, and a weight whose gradient is all rounding (a bias before a normalization) moves by ±lr, with the
    sign of the rounding. Nor would TF32 with freely chosen algorithms do: 1e-3 is what it rounds by.
    """
    plain, replayed = steppers(2)
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = False
    record(replayed)
    both, bad = (plain, replayed), 2
    for k in range(6):
        images = picture(k) if k != bad else torch.full_like(picture(k), torch.nan)
        before = {name: value.detach().clone() for name, value in plain.weights.items()}
        ema_weights = [{name: value.clone() for name, value in made.ema_weights.of(0).items()} for made in both]
        with torch.no_grad():
            for name, value in before.items():
                replayed.weights[name].copy_(value)
        losses = [made.sums.loss.clone() for made in both]
        for made in both:
            made.step(k, images)
        if k == bad:
            for made, average in zip(both, ema_weights):
                assert all(torch.equal(value, before[name]) for name, value in made.weights.items())
                assert all(torch.equal(value, average[name]) for name, value in made.ema_weights.of(0).items())
            continue
        first, second = (made.sums.loss - loss for made, loss in zip(both, losses))
        assert float(first.sum()) > 0
        assert torch.allclose(first, second, rtol=1e-4)
        first, second = (torch.cat([w.grad.flatten() for w in made.weights.values()]) for made in both)
        assert float(first.norm()) > 0
        assert float((first - second).norm()) < 1e-3 * float(first.norm())
        for made in both:
            assert any(not torch.equal(value, before[name]) for name, value in made.weights.items())
    assert int(plain.sums.skipped[0]) == int(replayed.sums.skipped[0]) == 1


def test_cuda_a_graph_of_gradients_has_one_shape():
    (stepper,) = steppers(1)
    record(stepper)
    batch = stepper.draw(0)
    drawn = stepper.simulate(torch.rand(4, 1, 8, 8, device="cuda"), batch, slice(0, 4))
    values = (drawn.state, drawn.target, batch.t, batch.dropout, drawn.drift)
    stepper.replay(*values)
    with pytest.raises(AssertionError, match="one shape"):
        stepper.replay(*(x[:2] for x in values))


@pytest.mark.parametrize("wait", [lambda x: float(x.sum()), lambda x: torch.cuda.synchronize()], ids=["item", "all"])
def test_cuda_what_cannot_be_recorded_is_launched(wait):
    """With one line; and what comes later can be recorded."""
    weight, said = torch.ones(3, device="cuda", requires_grad=True), []

    def fresh() -> None:
        weight.grad = None

    def waits(x: torch.Tensor) -> torch.Tensor:
        wait(x)
        (weight * x).sum().backward()
        return x * 2

    def plain(x: torch.Tensor) -> torch.Tensor:
        (weight * x).sum().backward()
        return x * 2

    for function, lines in ((waits, 1), (plain, 1)):
        replay = Replay(function, fresh, said.append)
        for k in range(4):
            x = torch.full((3,), float(k), device="cuda")
            assert torch.equal(replay(x), 2 * x)
            assert torch.equal(weight.grad, x)
        assert len(said) == lines
        assert replay.refused == (function is waits)
    assert "cannot be recorded as a CUDA graph" in said[0]
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_cuda_errors_of_the_network_itself_are_raised():
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("own")

    replay = Replay(fails)
    with pytest.raises(RuntimeError, match="own"):
        replay(torch.zeros(1, device="cuda"))
    assert not replay.refused


@pytest.mark.parametrize(("changes", "recorded"), [({}, True), ({"accumulation": 2}, False)])
def test_cuda_steps_of_one_process_are_recorded(changes, recorded, dataset, tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(
        Replay, "_capture", lambda self, places, real=Replay._capture: made.append(1) or real(self, places)
    )
    train(tiny(**changes), dataset, tmp_path, device="cuda", track=())
    assert bool(made) == recorded
