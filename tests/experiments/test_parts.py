"""The parts of a study on their own: time, runs, samples on the disk, numbers."""

import io
import math
import sys
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from anisodiff.cli import common
from anisodiff.cli.study import command
from anisodiff.experiments import Budget, Deadline, Study, StudySettings, configs, parse_run
from anisodiff.experiments.budget import Meter
from anisodiff.experiments.layout import TRAINED, Place, open_study, read_json
from anisodiff.experiments.plots import _edit_sheets, _mark
from anisodiff.experiments.results import Number, Row, cell, read_rows
from anisodiff.experiments.runs import slug, split_outside
from anisodiff.experiments.sampling import Chunks, Failed, SampleWriter
from anisodiff.experiments.study import SeededRun
from anisodiff.experiments.training import train_under
from anisodiff.io.figures import canvas
from anisodiff.io.records import write_json
from anisodiff.runtime.progress import lines
from anisodiff.training import Plan, loop
from anisodiff.training.config import scaled
from anisodiff.training.picking import Machine
from anisodiff.training.recipes import recipe
from anisodiff.training.step import Stepper
from tests.training.conftest import tiny

CPU = Machine.of("cpu")


def record(images, rate, **more):
    return {"step": images // 4, "images": images, "images_per_second": rate, **more}


def test_the_first_stretch_after_a_start_is_charged_like_the_next():
    meter = Meter([record(40, 1.0)])
    assert meter.seconds(40) == 0  # nothing is known yet
    meter.add(record(80, 20.0))
    assert meter.seconds(80) == pytest.approx(80 / 20)
    assert meter.seconds(90) == pytest.approx(90 / 20)
    meter.add(again := record(120, 0.5, first_step_seconds=60.0))  # continued: compiled again
    assert meter.seconds(120) == pytest.approx(120 / 20)  # at the last rate
    meter.add(record(160, 10.0))
    assert meter.seconds(160) == pytest.approx(80 / 20 + 80 / 10)
    read = Meter([record(40, 1.0), record(80, 20.0), again, record(160, 10.0)])
    assert read.seconds(160) == meter.seconds(160)


def study_of(dataset, deadline, say=lambda _: None, pinned=(), progress=lambda *_: None, **settings):
    """What a training needs of a study."""
    return Study(
        settings=StudySettings(**settings), dataset=dataset, device=torch.device("cpu"), evaluator=None,
        deadline=deadline, say=say, progress=progress, pinned=pinned,
    )  # fmt: skip


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """Of trainings whose steps take a second, the first of a process, which compiles, a hundred."""
    clock, real = Clock(), Stepper.step

    def step(self, k, images):
        clock.now += 1.0 if hasattr(self, "begun") else 100.0
        self.begun = True
        real(self, k, images)

    monkeypatch.setattr(Stepper, "step", step)
    return clock


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_time_budget_leaves_out_compilation_and_interruptions(prepared, tmp_path, monkeypatch, clock, interrupted):
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=clock))
    place = Place(out=tmp_path, name="a", training="a")
    said, shown = [], []
    how = {"say": said.append, "budget": Budget(seconds=6.0), "track": 2, "pinned": ("log_every", "checkpoint_every")}
    how["progress"] = lambda *told: shown.append(told)

    def go(deadline):
        return train_under(tiny(checkpoint_every=8), place, study_of(prepared, deadline, **how), start=None)

    if interrupted:
        assert not go(Deadline(102.5, clock))  # after four steps
        assert not place.trained.exists()
        assert said.pop() == "a: stopped: saving at step 4; the same command continues it"
    assert go(Deadline())
    assert said[-2] == "a: the budget of 6 s is reached at step 6"
    assert shown[-1] == ("train a, seconds", 6, 6)
    found = read_json(place.trained, TRAINED)
    assert found["images"] == 6 * 4  # one second a step
    assert found["seconds"] == pytest.approx(6.0)
    assert clock.now == 105 + 100 * interrupted - interrupted
    kept = Place.track(place, 1) / "checkpoints"
    assert [path.name for path in kept.iterdir()] == ["step-00000004"]  # the first record past half of the budget


def test_off_a_terminal_progress_is_a_line_now_and_then(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(common, "console", Console(file=screen))
    with common.progress("work") as tick:
        tick(1, 3)
    assert screen.getvalue() == ""  # work of seconds says nothing
    monkeypatch.setattr("anisodiff.runtime.progress.lines", partial(lines, every=0.0))
    with common.progress("work") as tick:
        tick(1, 3)
        tick(3, 3)
    begun, going = screen.getvalue().splitlines()
    assert begun == "work"
    assert going.startswith("work: 1/3, about ")


def test_budgets():
    assert Budget.parse("200_000 images", "x") == Budget(images=200_000)
    assert str(Budget.parse("10min", "x").times(3)) == "30 min"
    for text in ("", "0s", "-1s", "3 days", "x images"):
        with pytest.raises(ValueError, match="x: got"):
            Budget.parse(text, "x")


def test_nothing_is_begun_that_the_time_does_not_allow(tmp_path):
    clock, chunks = Clock(), Chunks(tmp_path)
    deadline = Deadline(10.0, clock)
    assert not deadline.over(9.5)
    assert deadline.over(10.5)
    clock.now = 10.0
    assert deadline.over()
    assert not Deadline(None, clock).over(1e9)
    writer = SampleWriter(SimpleNamespace(batch=2), None, Deadline(0.25), lambda *_: None)

    def make(rows):
        time.sleep(0.15)
        return torch.zeros(len(rows), 1, 3, 3)

    assert not writer.fill(chunks, 6, make, "sample")
    assert [rows for *rows, _ in chunks.ranges()] == [[0, 2]]  # a second batch would end after the time is up


def test_samples_are_rounded_and_nan_is_a_failure(tmp_path):
    writer = SampleWriter(SimpleNamespace(batch=2), None, Deadline(), lambda *_: None)
    images = torch.tensor([-1.0, 0.0, 0.4999 / 255, 0.5001 / 255, 1.0, 2.0])
    assert writer.fill(Chunks(tmp_path), 1, lambda _: images.view(1, 1, 2, 3), "sample")
    assert Chunks(tmp_path).first(1).flatten().tolist() == [0, 0, 0, 1, 255, 255]
    with pytest.raises(Failed, match="NaN or infinite pixels in 1 of 2 images"):
        writer.fill(Chunks(tmp_path), 3, lambda _: torch.tensor([[1.0], [math.nan]]).view(2, 1, 1, 1), "sample")


def test_no_training_is_begun_that_would_not_come_to_its_first_step(prepared, tmp_path, clock):
    deadline, said = Deadline(207.0, clock), []

    def say(line):
        said.extend([line] if "not started" in line else [])

    def go(name):
        place = Place(out=tmp_path, name=name, training=name)
        return train_under(tiny(), place, study_of(prepared, deadline, say, budget=Budget(images=12)), start=None)

    assert go("a")
    assert deadline.start == 100.0
    assert go("b")  # 103 s are left when it begins
    assert deadline.start == 100.0
    assert not go("c")
    assert said == ["c: not started: the last training took 100 s to its first step"]
    assert not (tmp_path / "work" / "c").exists()
    assert go("a")  # nothing is left to do: no matter how late it is


@pytest.mark.parametrize(
    "pieces", [("--for", "9min"), ("--only=ve",), ("--stage", "train,sample", "--for=1min", "--only", "a,b"), ()]
)
def test_the_published_command_makes_the_whole_study(pieces, monkeypatch):
    given = ["anisodiff", "compare", "ve:name=for", *pieces, "--data", "/home/me/faces", "--n", "12"]
    monkeypatch.setattr(sys, "argv", given)
    assert command() == "anisodiff compare ve:name=for --data faces --n 12"


def test_of_points_that_lie_together_one_is_marked():
    axes = canvas(4.0, 4.0).subplots()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    _mark(axes, [("0.3", (0.5, 0.5)), ("0.3", (0.51, 0.505)), ("0.6", (0.5, 0.505)), ("0.3", (0.9, 0.5))])
    assert [text.get_text() for text in axes.texts] == ["0.3", "0.6", "0.3"]


def flat(*values):
    """Pictures [3, 64, 64] of one red each: captions have none."""
    red = np.zeros((len(values), 3, 64, 64), dtype=np.uint8)
    red[:, 0] = np.array(values)[:, None, None]
    return red


@pytest.mark.parametrize("count", [1, 2, 5])
def test_edits_of_the_runs_stand_side_by_side(tmp_path, count):
    (tmp_path / "results").mkdir()
    np.savez(tmp_path / "results" / "edit.npz", photos=flat(10, 20), paintings=flat(10, 20))
    rows = []
    for number, strengths in enumerate([(0.3, 0.6) if k % 2 == 0 else (0.6,) for k in range(count)]):
        place = Place(out=tmp_path, name=f"c{number}", training=f"c{number}")
        place.results.mkdir()
        for strength in strengths:
            red = 100 + 10 * number + int(10 * strength)
            np.savez(place.results / f"edit-{strength:g}.npz", images=flat(red, red))
        found = {f"edit-{strength:g}": {} for strength in strengths}
        rows.append(Row(name=place.name, label=place.name, seeds=(0,), results=(found,), places=(place,)))
    lost, failed = Place(out=tmp_path, name="lost", training="lost"), {"edit-0.3": {"failed": "x"}}
    rows.insert(0, Row(name="lost", label="lost", seeds=(0,), results=(failed,), places=(lost,)))
    sheet = np.asarray(_edit_sheets(rows, tmp_path))

    def pixels(red):
        return np.argwhere((sheet == (red, 0, 0)).all(-1))

    for number in range(count):
        assert len(pixels(100 + 10 * number + 6)) == 2 * 64 * 64
        assert len(pixels(100 + 10 * number + 3)) == (2 * 64 * 64 if number % 2 == 0 else 0)
    assert len(pixels(10)) == count * 2 * 64 * 64  # nothing above the one that failed
    tops, lefts = zip(*(pixels(100 + 10 * number + 6)[0] for number in range(count)))
    assert list(lefts[:4]) == sorted(set(lefts[:4]))
    if count == 5:  # four in a row, the fifth below the first
        assert lefts[4] == lefts[0]
        assert tops[4] > tops[0] + 64


def test_separators_within_brackets_belong_to_the_value():
    assert split_outside("geometric(0.1, 2), 0 ,[1,2]", ",") == ["geometric(0.1, 2)", "0", "[1,2]"]
    one = parse_run("heat:process.diffusivity=geometric(0.1, 2);lr=1e-3;steps=5,10;n=20;prior=simulate")
    assert one.changes == {"process.diffusivity": "geometric(0.1, 2)", "lr": "1e-3"}
    assert (one.steps, one.n, one.priors, one.sampler) == ((5, 10), 20, ("simulate",), "auto")
    assert slug(one.name) == one.name
    assert len(slug("x" * 100)) < 80
    assert slug("a=-1") != slug("a=1")


def test_runs_share_all_but_the_method(prepared):
    chosen = [parse_run(text) for text in ("ve", "heat:lr=3e-4", "flow-matching")]
    first, second, third = configs(chosen, prepared, {"batch": 4, "ema": "constant(0.9)"}, CPU)
    assert (first.batch, second.batch, third.batch) == (4, 4, 4)
    assert second.lr == 3e-4
    assert first.lr == third.lr == 4e-4
    assert first.network == second.network == third.network
    own = [Plan.of(config).network.arguments["embedding"] for config in (first, second, third)]
    assert own == ["fourier", "fourier", "positional"]  # time features are the method's own
    turned = configs(chosen[::-1], prepared, {"network.blocks": 1}, CPU)
    assert all(config.network == third.network | {"blocks": 1} for config in turned)
    assert turned[1].network == turned[2].network == first.network | {"blocks": 1}
    assert [c.process["preset"] for c in (first, second, third)] == ["ve", "heat", "flow-matching"]
    assert third.t_min < first.t_min  # that is the method's own
    published = [parse_run(text) for text in ("cifar10-ve", "cifar10-heat-dissipation")]
    equal, own = (configs(published, prepared, {}, CPU, own=own)[1] for own in (False, True))
    assert equal.flip
    assert not own.flip


def test_a_short_comparison_has_a_short_warm_up_as_a_short_training_has(prepared):
    chosen = [parse_run(text) for text in ("ve", "heat:warm_up=24")]
    full = configs(chosen, prepared, {}, CPU)[0]
    short, given = configs(chosen, prepared, {}, CPU, images=full.images // 10)
    assert short.warm_up == scaled(full, {"images": full.images // 10}).warm_up == full.warm_up // 10
    assert given.warm_up == 24
    assert configs(chosen, prepared, {"warm_up": 32}, CPU, images=400)[0].warm_up == 32
    published = [parse_run(text) for text in ("cifar10-ve", "cifar10-heat-dissipation")]
    for config, base in zip(configs(published, prepared, {}, CPU, own=True, images=10**6), published):
        assert config.warm_up == scaled(recipe(base.base), {"images": 10**6}).warm_up


def test_the_prior_of_a_run_is_that_of_its_method(prepared, tmp_path):
    texts = (
        "ve",
        "heat-dissipation",
        "heat-dissipation:prior=gaussian,auto;name=b",
        "edge-preserving:prior=simulate",
    )
    chosen = [parse_run(text) for text in texts]
    made = zip(chosen, configs(chosen, prepared, {}, CPU))
    settings = StudySettings(budget=Budget(images=8))
    place = Place(out=tmp_path, name="a", training="a")
    found = [SeededRun(run=run, config=config, seed=0, place=place).priors(settings) for run, config in made]
    assert found == [("gaussian",), ("simulate",), ("gaussian", "simulate"), ("simulate",)]


def test_samples_on_the_disk_by_range(tmp_path):
    chunks = Chunks(tmp_path)
    images = torch.randint(256, (20, 1, 3, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    chunks.put(range(8, 12), images[8:12], 4.0, warm=False)
    assert list(chunks.missing(20, 6)) == [range(6), range(6, 8), range(12, 18), range(18, 20)]
    for rows in list(chunks.missing(20, 6)):
        chunks.put(rows, images[rows.start : rows.stop], 0.5 * len(rows), warm=True)
    assert list(chunks.missing(20, 6)) == []
    assert chunks.seconds_per_image() == pytest.approx(0.5)  # without the first batch
    assert torch.equal(torch.cat(list(chunks.image_set("x", 20).open(7))), images)
    assert [len(batch) for batch in chunks.image_set("x", 20).open(7)] == [7, 7, 6]
    assert np.array_equal(chunks.first(9), images[:9].numpy())
    broken = next(iter(tmp_path.glob("00000012-*")))
    broken.write_bytes(broken.read_bytes()[:-30])  # cut off by a crash
    assert list(chunks.missing(20, 6)) == [range(12, 18)]


def test_what_is_not_shown_is_marked():
    one = [Number(mean=10.0), Number(mean=10.9), Number(mean=11.2)]
    assert [cell(n, one[0]) for n in one] == ["**10**", "10.9 ≈", "11.2"]
    two = [Number.of(values) for values in ([10.0, 10.4], [10.5, 10.7], [10.1, 10.5], [])]
    assert [cell(n, two[0]) for n in two] == ["**10.2 ± 0.2**", "10.6 ± 0.1", "10.3 ± 0.2 ≈", "–"]


def begin(out, name="a"):
    """Something of a run is done."""
    write_json(out / "results" / name / "train.json", {"images": 8})


def run_of(name, **more):
    return {"run": name, "training": name, "text": "ve", "seed": 0, "config": {}, **more}


def test_a_study_grows_but_does_not_change(tmp_path):
    out = tmp_path / "s"
    a, b = run_of("a", x=1), run_of("b", x=(2, 3))
    held = open_study(out, "sweep", {"n": 10, "features": None}, {"a": a})
    assert held["fixed"] == {"n": 10}
    begin(out)
    open_study(out, "sweep", {"n": 10, "features": "f"}, {"a": a, "b": b})
    assert open_study(out, "sweep", {"n": 10}, {})["runs"] == {"a": a, "b": {**b, "x": [2, 3]}}
    for kind, fixed, more, words in (
        ("sweep", {"n": 11}, {}, "n was 10, now 11"),
        ("sweep", {"features": "g"}, {}, "features was 'f', now 'g'"),
        ("sweep", {}, {"a": {**a, "x": 2}}, "a: x was 1, now 2"),
        ("comparison", {}, {}, "holds no comparison"),
    ):
        with pytest.raises(ValueError, match=words):
            open_study(out, kind, fixed, more)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "thesis.tex").write_text("")
    with pytest.raises(ValueError, match="no study"):
        open_study(tmp_path / "t", "sweep", {}, {})


def test_another_run_is_refused_by_what_differs(tmp_path):
    """Also where its words differ, too; and two runs of the study itself are not one start."""
    config = tiny().to_dict()
    open_study(tmp_path / "s", "sweep", {"n": 1}, {"a": run_of("a", config=config)})
    begin(tmp_path / "s")
    with pytest.raises(ValueError, match="study: a: weighting was 'state', now 'noise'; choose"):
        open_study(
            tmp_path / "s",
            "sweep",
            {"n": 1},
            {"a": run_of("a", text="song", config={**config, "weighting": "noise"})},
        )
    begun = run_of("a", text="ve:from=x", config=config, start="work/ve/run", start_model=None)
    open_study(tmp_path / "t", "sweep", {"n": 1}, {"a": begun})
    begin(tmp_path / "t")
    open_study(tmp_path / "t", "sweep", {"n": 1}, {"a": begun})
    with pytest.raises(ValueError, match="a: start was 'work/ve/run', now 'work/heat/run'"):
        open_study(tmp_path / "t", "sweep", {"n": 1}, {"a": {**begun, "start": "work/heat/run"}})


def test_runs_are_compared_at_the_nfe_that_most_of_them_have(tmp_path):
    """One has been sampled with more, one with others alone, two failed with many; of several that all have, the
    largest.
    """
    sampled = {"a": (10, 50), "b": (10, 50, 200), "c": (10, 50), "own": (400,)}
    failed = {("a", 400), ("c", 400)}
    runs = {}
    for name, steps in sampled.items():
        runs[name] = {"run": name, "text": f"ve:name={name}", "seed": 0, "training": name}
        place = Place(out=tmp_path, name=name, training=name)
        for count in steps:
            write_json(place.results / f"gaussian-{count}.json", {"sampling": {"nfe": count, "sampler": "ode"}})
        if (name, 400) in failed:
            write_json(place.results / "gaussian-400.json", {"failed": "it diverged"})
    rows = read_rows(tmp_path, {"runs": runs})
    assert [row.main("gaussian") for row in rows] == ["gaussian-50"] * 3 + ["gaussian-400"]
    assert rows[0].main("simulate") is None
    assert read_rows(tmp_path, {"runs": runs}, names=["b"])[0].main("gaussian") == "gaussian-200"
