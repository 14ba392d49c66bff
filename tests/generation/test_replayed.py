"""Networks that are replayed on a GPU, without a GPU: each answer is written over the one before."""

import pytest
import torch
from torch import Tensor

import anisodiff
from anisodiff.generation.reverse import ReverseProcess
from anisodiff.registry import SAMPLERS
from anisodiff.runtime import cuda_graphs
from anisodiff.runtime.cuda_graphs import Replay, Replayed
from tests.generation.test_generator import shake

SEEDS = (3, 5, 8, 13)


class Recording:
    """What a graph does: the function on the inputs' places, its result always in the same memory."""

    def __init__(self, function, places: list[Tensor]) -> None:
        self.function, self.places = function, places
        self.output = torch.full_like(function(*places), torch.nan)
        self.count = 0

    def replay(self) -> None:
        self.output.copy_(self.function(*self.places))
        self.count += 1


@pytest.fixture
def recorded(monkeypatch) -> list[Recording]:
    """All recordings that were made."""
    made: list[Recording] = []

    def capture(self: Replay, signature, inputs) -> None:
        made.append(Recording(self.function, [x.detach().clone() for x in inputs]))
        self._recorded[signature] = made[-1], made[-1].places, made[-1].output

    monkeypatch.setattr(Replay, "_record", capture)
    return made


@pytest.mark.filterwarnings("ignore:most pixels")  # of networks without training
@pytest.mark.parametrize(
    ("process", "steps"),
    [("ve", 23), ("anisotropic", 23), ("flow-matching", 100), ("heat-dissipation", 200), ("edge-preserving", 23)],
)
def test_no_sampler_needs_an_answer_that_is_overwritten(runs, recorded, process, steps):
    plain, replayed = (anisodiff.load(runs(process), "cpu") for _ in range(2))
    shake(plain)
    shake(replayed)
    replayed.model.wrap_network(Replayed)
    tried = 0
    for name in SAMPLERS:
        try:
            reverse: ReverseProcess = plain.reverse_process(steps=steps, sampler=name)
        except ValueError as error:
            assert f"the sampler '{name}' needs" in str(error)  # what this model has not learned
            continue
        law = plain.prior("gaussian")
        expected, found = (g.sample_with(reverse, SEEDS, law).images for g in (plain, replayed))
        assert torch.equal(found, expected), name
        tried += 1
    assert tried
    assert sum(one.count for one in recorded) > 20 * tried


def test_old_recordings_make_room(recorded, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MOST", 2)
    double = Replay(lambda x: 2 * x)
    for count in (1, 2, 1, 3, 1, 2):  # 3 takes the place of 2, and 2 that of 3
        assert torch.equal(double(torch.ones(count)), torch.full((count,), 2.0))
    assert [len(one.output) for one in recorded] == [1, 2, 3, 2]
    assert len(double._recorded) == 2
