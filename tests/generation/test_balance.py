"""The balance of a checkpoint: measured, kept beside it, used for samples and named in their protocol."""

import shutil

import pytest
import torch

import anisodiff
from anisodiff.generation.balancing import NAME, balance_checkpoint, measure_balance, save_balance
from anisodiff.networks.balance import Balance, rings
from anisodiff.training import find
from anisodiff.training.slim import slim

from .test_generator import TOLERANCE, shake

CPU = ["--device", "cpu"]


class Overwriting(torch.nn.Module):
    """A network whose answers share one place."""

    def __init__(self, network):
        super().__init__()
        self.network, self.place = network, None

    def forward(self, *given):
        found = self.network(*given)
        if self.place is None or self.place.shape != found.shape:
            self.place = found.clone()
        return self.place.copy_(found)


@pytest.fixture
def copied(runs, tmp_path):
    """A run of one's own."""
    return lambda process: shutil.copytree(runs(process), tmp_path / process)


@pytest.mark.parametrize("process", ["ve", "anisotropic"])
def test_samples_are_balanced_and_edits_are_not(runs, process):
    generator = anisodiff.load(runs(process), "cpu")
    shake(generator)
    plain, begin = generator.sample(6, steps=22), torch.zeros(2, 1, 8, 8)
    edit = generator.reverse(begin, 1.0, seeds=(0, 1), steps=22)
    found = measure_balance(generator, trajectories=30, steps=22, batch=8)
    assert float(found.score.abs().max()) > 0.05  # weights drawn at random lean somewhere
    assert bool((found.drift != 0).any()) == (process == "anisotropic")
    generator.use_balance(found, "code")
    balanced = generator.sample(6, steps=22)
    assert float((balanced - plain).abs().max()) > 10 * TOLERANCE
    torch.testing.assert_close(generator.sample(6, steps=22, batch=2), balanced, rtol=0, atol=TOLERANCE)
    assert torch.equal(generator.reverse(begin, 1.0, seeds=(0, 1), steps=22), edit)
    assert generator.origin.balance == "code"
    generator.use_balance(None, None)
    assert torch.equal(generator.sample(6, steps=22), plain)


def test_it_does_not_depend_on_the_parts(runs):
    generator = anisodiff.load(runs("heat"), "cpu")
    shake(generator)
    whole = measure_balance(generator, trajectories=24, steps=8, batch=24)
    for size in (6, 7):
        parts = measure_balance(generator, trajectories=24, steps=8, batch=size)
        torch.testing.assert_close(parts.score, whole.score, rtol=0, atol=1e-4)


def test_a_network_that_writes_over_its_answers_is_no_obstacle(runs):
    """As a replayed one does on a GPU."""
    generator = anisodiff.load(runs("heat"), "cpu")
    shake(generator)
    plain = measure_balance(generator, trajectories=12, steps=6, batch=4)
    generator.model.network = Overwriting(generator.model.network)
    again = measure_balance(generator, trajectories=12, steps=6, batch=4)
    torch.testing.assert_close(again.score, plain.score, rtol=0, atol=1e-6)


def test_a_model_that_diverges_has_none(runs):
    generator = anisodiff.load(runs("heat"), "cpu")
    for weight in generator.model.network.parameters():
        weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="not finite"):
        measure_balance(generator, trajectories=4, steps=4)


def test_axes_of_the_colours_have_their_own():
    generator = anisodiff.load("cifar10-tiny", "cpu", balance=False)
    assert generator.model.turns
    found = measure_balance(generator, trajectories=2, steps=3)
    assert found.ring.shape == (3, 32, 32)
    assert found.score.shape[1] == int(found.ring.max()) + 1 == 96


def test_an_export_keeps_it(copied, tmp_path):
    run = copied("heat")
    found, _ = balance_checkpoint(run, device="cpu", trajectories=8, steps=6)
    slim(run, tmp_path / "small")
    kept = anisodiff.load(tmp_path / "small", "cpu").balance
    assert kept is not None
    assert torch.equal(kept.score, found.score)


def test_it_is_kept_beside_the_checkpoint_and_left_out_on_request(copied):
    run = copied("heat")
    _, place = balance_checkpoint(run, device="cpu", trajectories=8, steps=6)
    assert place == find(run).path / NAME
    generator = anisodiff.load(run, "cpu")
    assert generator.balance is not None
    assert generator.balance.times[-1] <= generator.process.T
    assert anisodiff.load(run, "cpu", balance=False).balance is None
    assert anisodiff.load(run, "cpu", balance=False).origin.balance is None


def test_that_of_another_model_does_not_count(copied):
    run, said = copied("heat"), []
    found, place = balance_checkpoint(run, device="cpu", trajectories=8, steps=6)
    save_balance(found, place, "ab" * 32)
    assert anisodiff.load(run, "cpu", say=said.append).balance is None
    assert len(said) == 1
    assert "belongs to another model" in said[0]


def test_a_damaged_one_is_refused(copied):
    run = copied("heat")
    _, place = balance_checkpoint(run, device="cpu", trajectories=8, steps=6)
    place.write_bytes(place.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"cannot read .*balance.*; remove it, or measure it again"):
        anisodiff.load(run, "cpu")
    balance_checkpoint(run, device="cpu", trajectories=8, steps=6)
    assert anisodiff.load(run, "cpu").balance is not None


def test_others_have_none(tmp_path, data):
    from anisodiff.training import Hooks, train
    from anisodiff.training.preview import fit_prior

    from ..baselines.test_baseline_runs import config

    train(config("heat-dissipation"), data, tmp_path / "run", hooks=Hooks(fit_prior=fit_prior), tensorboard=False)
    with pytest.raises(ValueError, match="heat-dissipation has no balance"):
        balance_checkpoint(tmp_path / "run", device="cpu")


def test_the_command(command, copied, tmp_path):
    run = copied("heat")
    code, out, err = command("balance", run, "--trajectories", 8, "--steps", 6, *CPU)
    assert code == 0, err
    assert out.startswith("lean of the score's residual: ")
    assert "balance.safetensors" in out.splitlines()[-1]
    words = ["sample", run, "--n", 2, "--steps", 5, *CPU]
    code, out, err = command(*words)
    assert code == 0, err
    assert "5 evaluations of the network for each image, balanced" in out
    code, _, err = command(*words, "--no-balance")
    assert code == 2
    assert "balance was" in err
    code, out, _ = command(*words, "--no-balance", "--out", "plain")
    assert code == 0
    assert "balanced" not in out
    code, _, err = command("balance", tmp_path / "nowhere")
    assert code == 2
    assert "no such folder" in err
    code, _, err = command("balance", "cifar10-tiny", *CPU)
    assert code == 2
    assert "is part of the package and has its balance: copy" in err


@pytest.mark.parametrize("axes", [None, 3])
def test_a_balance_moves_as_a_whole(axes):
    """On `meta`, as on a GPU, tensors of two devices do not mix."""
    ring = rings(8, 8, axes)
    table = torch.randn(4, int(ring.max()) + 1)
    moved = Balance(torch.linspace(0, 1, 4, dtype=torch.float64), table, table, ring).to(torch.device("meta"))
    w = torch.empty(5, 3, 8, 8, device="meta")
    with pytest.raises(RuntimeError, match="device"):
        w + torch.zeros(5, 3, 8, 8)
    for t in (torch.tensor([0.5], dtype=torch.float64), torch.empty(5, dtype=torch.float64, device="meta")):
        score, drift = moved(w, t, w, w)
        assert score.device == drift.device == w.device
        assert score.shape == drift.shape == w.shape
