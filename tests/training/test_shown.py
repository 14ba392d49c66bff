"""What a run shows: the running readout, the size of a grid that can be afforded, the cost estimated beforehand."""

import time
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest
import torch

from anisodiff.training import train
from anisodiff.training.estimate import estimate
from anisodiff.training.preview import FIRST, SHARE, affordable, fit_prior, showing, timed_at_once
from anisodiff.training.readout import EVERY, Readout
from anisodiff.training.recipes import recipe
from anisodiff.training.step import LogSums
from anisodiff.training.timing import Cost, Load, climb
from tests.training.conftest import assert_equal, tiny


def sums(loss: float, count: float) -> LogSums:
    made = LogSums.zeros(torch.device("cpu"))
    made.loss[0], made.count[0] = loss * count, count
    return made


def test_the_readout_shows_loss_at_once_and_the_rate_after_two_steps():
    now = [100.0]
    readout = Readout(8, clock=lambda: now[0])
    now[0] = 112.0  # compiled
    assert readout.note(1, sums(0.5, 8)) == "loss 0.5000"
    assert readout.first_step == 112.0
    now[0] += 1.0
    assert readout.note(2, sums(0.4, 16)) == "8 images/s, loss 0.4000"
    now[0] += 0.5 * EVERY
    assert readout.note(3, sums(0.3, 24)) == "8 images/s, loss 0.4000"  # not read: the device is not waited for
    now[0], readout.paused = now[0] + 10.0, 10.0  # a grid
    now[0] += EVERY / 2
    assert readout.note(4, sums(0.3, 24)).startswith(f"{3 * 8 / (1 + EVERY):.3g} images/s, loss 0.3000")
    now[0] += EVERY
    assert "loss 0.3000" in readout.note(5, sums(9.9, 8))  # right after a line of the log: too few to show
    assert readout.trained == pytest.approx(now[0] - 112.0)


def test_the_rate_is_that_of_the_last_half_minute():
    now = [0.0]
    readout = Readout(10, clock=lambda: now[0])
    for step in range(1, 200):
        now[0] += EVERY if step < 100 else 2 * EVERY
        note = readout.note(step, sums(0.1, 10 * step))
    assert note == f"{10 / (2 * EVERY):.3g} images/s, loss 0.1000"


def test_a_grid_is_as_large_as_a_tenth_of_the_time_allows():
    budget = SHARE * FIRST
    assert affordable(1e-4, budget) == (8, 32)
    sides = [affordable(seconds, budget) for seconds in (0.001, 0.005, 0.02, 0.1, 0.15, 1.0)]
    for (side, nfe), seconds in zip(sides, (0.001, 0.005, 0.02, 0.1, 0.15, 1.0)):
        assert side * side * nfe * seconds <= budget
    assert sides == sorted(sides, reverse=True)
    assert sides[-1] == (0, 0)  # later


def test_a_gpu_is_timed_with_a_full_grid():
    """A few images keep it waiting: divided by their number, an evaluation would seem to cost much more."""
    side, _ = affordable(0.0, 1.0)
    assert timed_at_once(torch.device("cuda")) == side**2
    assert timed_at_once(torch.device("cpu")) == 4


def test_a_watched_run_makes_grids_and_the_same_weights(dataset, tmp_path):
    said: list[str] = []
    hooks = showing(tmp_path / "calm", tiny(sample_every=0), dataset)
    train(tiny(), dataset, tmp_path / "calm", track=(), hooks=hooks)
    config = tiny(sample_every=20)
    hooks = showing(tmp_path / "run", config, dataset, say=said.append)
    assert hooks.fit_prior is fit_prior
    train(config, dataset, tmp_path / "run", track=(), hooks=hooks)
    grids = sorted(path.name for path in (tmp_path / "run" / "samples").iterdir())
    assert grids == ["step-00000005.png", "step-00000010.png"]
    assert any(line.startswith("first step after ") for line in said)
    assert sum(line.startswith("first samples after ") for line in said) == 1
    assert_equal(tmp_path / "run", tmp_path / "calm")


def test_a_cost_is_a_line_through_two_loads():
    cost = Cost([(Load(1, 8, 8), 1.0)])
    assert cost.of(640) == pytest.approx(10.0)  # in proportion: an upper bound
    cost.timed.append((Load(2, 8, 8), 1.5))
    assert cost.of(640) == pytest.approx(1.5 + 0.5 * 8)
    assert cost.of(128) == 1.5
    cost.timed.append((Load(4, 8, 8), 1.2))  # a measurement that was disturbed
    assert cost.of(640) == pytest.approx(1.2)
    cost.timed.append((Load(5, 8, 8), 9.0))  # another: no load costs more than in proportion to a smaller one
    assert cost.of(640) == pytest.approx(18.0)


def test_only_what_fits_is_timed():
    seen: list[Load] = []
    loads = [Load(1, 8, 8), Load(1, 16, 16), Load(1, 32, 32), Load(4, 32, 32)]

    def run(load: Load) -> float:
        seen.append(load)
        if load.height < 16:
            raise ValueError("too small for this network")
        return 0.001

    assert climb(loads, run, 10.0).timed[-1][0] == loads[-1]
    assert seen == [loads[0], loads[1], loads[1], loads[3]]  # once before it is timed
    seen.clear()
    assert climb(loads[1:], run, 0.0).timed == [(loads[1], 0.001)]  # one is timed in any case
    assert seen == [loads[1]]
    with pytest.raises(ValueError, match="too small"):
        climb(loads[:1], run, 1.0)


class Machine:
    """Passes of ``launch`` + ``pixel``·n seconds; ``once`` more for the first one, ``each`` for that of each size."""

    def __init__(self, *, launch: float, pixel: float, once: float = 0.0, each: float = 0.0) -> None:
        self.launch, self.pixel, self.once, self.each = launch, pixel, once, each
        self.now, self.seen = 0.0, set[Load]()

    def clock(self) -> float:
        return self.now

    def of(self, pixels: int) -> float:
        return self.launch + self.pixel * pixels

    def run(self, load: Load) -> float:
        """Twice, as a GPU's passes are: the second one is timed."""
        self.now += 2 * self.of(load.pixels) + (load not in self.seen) * self.each + (not self.seen) * self.once
        self.seen.add(load)
        return self.of(load.pixels)


LOADS = [Load(n, side, side) for side in (32, 64, 128) for n in (1, 2)] + [Load(2**n, 256, 256) for n in range(7)]


@pytest.mark.parametrize("once", [0.0, 2.0, 8.0])
@pytest.mark.parametrize("each", [0.0, 0.5])
@pytest.mark.parametrize("pixel", [1e-10, 1e-8, 1e-6])
def test_what_is_set_up_once_is_no_part_of_the_cost(once, each, pixel):
    """Launch-bound small passes: in proportion to them, the largest would be wrong by hundreds of times."""
    machine = Machine(launch=0.05, pixel=pixel, once=once, each=each)
    cost, whole = climb(LOADS, machine.run, 5.0, machine.clock), LOADS[-1].pixels
    assert len(cost.timed) > 1
    assert not cost.rough(whole)
    assert 0.5 < cost.of(whole) / machine.of(whole) < 2
    assert machine.now < once + 5.0 + 4 * (0.1 + each)


def test_a_second_size_is_timed_if_it_fits_by_itself():
    slow = Machine(launch=1.1, pixel=1e-6)
    assert len(climb(LOADS, slow.run, 5.0, slow.clock).timed) == 2
    slower = Machine(launch=3.0, pixel=1e-6)
    cost = climb(LOADS, slower.run, 5.0, slower.clock)
    assert [load for load, _ in cost.timed] == LOADS[:1]
    assert cost.rough(LOADS[1].pixels)
    assert not cost.rough(LOADS[0].pixels)  # measured
    slowest = Machine(launch=6.0, pixel=1e-6)
    climb(LOADS, slowest.run, 5.0, slowest.clock)
    assert slowest.now < 13  # not run again


def ticking(tick: float) -> Callable[[], float]:
    """A clock that goes on by ``tick`` seconds whenever it is read."""
    return partial(next, map(tick.__mul__, count()))


def test_an_estimate_from_one_size_says_so():
    few = estimate(tiny(size=64), torch.device("cpu"), torch.rand(2, 1, 64, 64), clock=ticking(1.0))
    assert (few.batch, few.size, few.seconds_before) == (1, (16, 16), None)
    assert few.how.startswith("estimated from a pass of 1 image of 16×16, ")
    assert few.how.endswith("s a pass; a rough upper bound: passes and simulations of only one size could be timed")
    more = estimate(tiny(size=64), torch.device("cpu"), torch.rand(2, 1, 64, 64), clock=ticking(0.25))
    assert more.size == (32, 32)
    assert more.how.endswith("s a pass; a rough upper bound: simulations of only one size could be timed")


def test_the_time_before_the_first_step_is_part_of_the_whole():
    found = estimate(tiny(), torch.device("cpu"), torch.rand(8, 1, 8, 8), clock=ticking(1e-4))
    assert found.seconds_before is not None
    assert found.seconds_in_all == pytest.approx(found.seconds_before + 0.04 * found.seconds_per_thousand)
    assert (found.batch, found.size) == (4, (8, 8))
    assert found.how.startswith("measured in a pass of 4 images of 8×8")


def test_the_largest_recipe_is_estimated_in_seconds():
    """Within 20 s with the imports; on a machine that is busy otherwise, processor time is what counts."""
    config = recipe("lsun256-anisotropic-paper")
    begin = time.process_time()
    found = estimate(config, torch.device("cpu"), torch.rand(2, config.channels, *config.size))
    assert time.process_time() - begin < 20
    assert found.parameters > 60e6
    assert found.size <= config.size  # of few images, as far as this machine gets in the time
    assert found.how.startswith("estimated from a ")
    assert f"pass of {found.batch} image" in found.how
    assert found.activation_bytes > 2**30
    assert found.seconds_in_all > (found.seconds_before or 0.0)
