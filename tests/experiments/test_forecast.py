"""``--dry-run``: what a study would cost, from known speeds; and on the command line, writing nothing."""

import json
import re
from dataclasses import replace
from io import StringIO

import pytest
import torch
from rich.console import Console

from anisodiff.cli.tables import show_table
from anisodiff.experiments import (
    Budget,
    Deadline,
    EditTask,
    Halving,
    Speeds,
    Study,
    StudySettings,
    forecast,
    parse_run,
    sweep_rounds,
    time_metrics,
)
from anisodiff.experiments.speeds import Measuring, Speed
from anisodiff.io.records import write_json
from anisodiff.runtime.progress import no_stage_progress
from anisodiff.training import Plan
from tests.experiments.conftest import COMMON
from tests.training.conftest import tiny

MEASURING = Measuring(feature=0.01, product=0.0, roots=2.0)


class Known(Speeds):
    """Every network trains an image in 3 s, so that one evaluation takes 1 s."""

    def of(self, config):
        return Speed(parameters=1000, training=3.0)


def study_of(prepared, **more):
    given = {"budget": Budget(seconds=60), "n": 10, "steps": (5,), **more}
    return Study(
        settings=StudySettings(**given), dataset=prepared, device=torch.device("cpu"), evaluator=pytest.fail,
        deadline=Deadline(), say=print, progress=no_stage_progress,
    )  # fmt: skip


def config_of(run):
    return tiny(process=run.base).changed(run.changes)


def cost(study, out, *names, halving=None, reference=0):
    runs = [parse_run(name) for name in names]
    made = [config_of(one) for one in runs]
    rounds = sweep_rounds(study, runs, made, out, halving)
    return forecast(study, rounds, Known(study.device), MEASURING, reference)


def test_each_part_is_its_count_times_its_speed(prepared, tmp_path):
    found = cost(study_of(prepared, steps=(5, 7), seeds=(0, 1)), tmp_path, "ve", "heat:n=20;steps=4", reference=40)
    ve, heat = found.lines
    assert ve.seconds == {"training": 120, "sampling": 2 * 10 * 12, "metrics": 2 * 2 * (10 * 0.01 + 2)}
    assert heat.seconds == {"training": 120, "sampling": 2 * 20 * 4, "metrics": pytest.approx(2 * (20 * 0.01 + 2))}
    assert found.seconds["metrics"] == pytest.approx(8.4 + 4.4 + 40 * 0.01)  # the reference once
    assert ve.images == 20  # of one training: 60 s at 3 s each
    assert found.cost == (pytest.approx(found.total * torch.get_num_threads() / 3600), "CPU-hours")
    assert replace(found, cores=None).cost == (pytest.approx(found.total / 3600), "GPU-hours")
    in_images = cost(study_of(prepared, budget=Budget(images=7)), tmp_path, "ve")
    assert in_images.seconds["training"] == 7 * 3.0


def test_points_during_training_and_edits_are_counted(prepared, tmp_path):
    plain = cost(study_of(prepared), tmp_path, "ve")
    tracked = cost(study_of(prepared, track=3, track_n=4), tmp_path, "ve")
    assert tracked.seconds["sampling"] - plain.seconds["sampling"] == 2 * 4 * 5  # the last has its samples
    assert tracked.seconds["metrics"] - plain.seconds["metrics"] == pytest.approx(3 * (4 * 0.01 + 2))
    task = EditTask(
        sources=tuple(str(prepared.path.parent / f"photo{k}.png") for k in range(2)), strengths=(0.3, 0.6)
    )
    edited = cost(study_of(prepared, task=task), tmp_path, "ve")
    assert edited.seconds["sampling"] - plain.seconds["sampling"] == 2 * 2 * 5


def test_what_is_done_or_shared_costs_nothing(prepared, tmp_path):
    study = study_of(prepared)
    shared = cost(study, tmp_path, "ve", "ve:sampler=ode;name=ode")
    assert shared.seconds["training"] == 60
    assert shared.lines[1].training == "of ve"
    write_json(tmp_path / "results" / "ve" / "train.json", {"images": 4})
    write_json(tmp_path / "results" / "ve" / "gaussian-5.json", {})
    done = cost(study, tmp_path, "ve", reference=40)
    assert done.total == 0  # not even the features of the reference
    assert done.lines[0].cells()[-1] == "done"


def test_rounds_of_halving_train_the_difference(prepared, tmp_path):
    names = [f"ve:lr=1e-{k};name=p{k}" for k in range(2, 6)]
    found = cost(study_of(prepared), tmp_path, *names, halving=Halving(eta=2))
    assert found.rounds == ["4 × 1 min", "2 × 2 min"]
    assert found.seconds["training"] == 4 * 60 + 2 * 60
    assert found.seconds["sampling"] == (4 + 2) * 10 * 5
    assert "halving: 4 × 1 min, 2 × 2 min" in found.summary()


def test_only_what_differs_in_cost_is_timed():
    """Equal networks share a timing."""
    made = [config_of(parse_run(text)) for text in ("ve", "ve:lr=1e-2;name=b")]
    speeds = Speeds(torch.device("cpu"))
    first = speeds.of(made[0])
    assert speeds.of(made[1]) is first
    assert first.training > 0
    wide = config_of(parse_run("ve:network.nf=64;network.multipliers=[1, 2]"))
    assert speeds.of(wide).parameters == sum(p.numel() for p in Plan.of(wide).build(torch.device("cpu")).parameters())


def test_processes_whose_pairs_differ_in_cost_do_not_share_a_timing():
    """A pair of `anisotropic` takes ten windows, one of `anisotropic-gentle` one, with the same kind of step."""
    speeds = Speeds(torch.device("cpu"))
    texts = (
        "anisotropic", "anisotropic-gentle", "anisotropic:process.step=exponential(windows=2)",
        "anisotropic:learns=score",
    )  # fmt: skip
    found = [speeds.of(config_of(parse_run(text))) for text in texts]
    assert len({id(one) for one in found}) == 4
    assert speeds.of(config_of(parse_run("anisotropic:lr=1e-2"))) is found[0]


def test_metrics_of_a_network_that_is_not_here_have_a_time():
    found = time_metrics(torch.device("cpu"), "inception", (32, 32))
    assert 1e-3 < found.feature < 20
    assert found.seconds(10_000, 10_000) > 10_000 * found.feature


DRY = ("ve", "heat:steps=9", *COMMON, "--images", 24, "--steps", "3,4", "--seeds", "0,1", "--dry-run")


def test_compare_says_what_it_would_cost_and_writes_nothing(command, tmp_path):
    code, said, err = command("compare", *DRY)
    assert code == 0, err
    head, _, ve, heat, total, price = said.splitlines()
    assert [word.strip() for word in head.split("|")[1:-1]] == [
        "run", "process", "network", "parameters", "training", "samples", "NFE", "prior", "time",
    ]  # fmt: skip
    cells = [word.strip() for word in ve.split("|")[1:-1]]
    assert (cells[:2], cells[4:8]) == (["ve", "ve"], ["24 images × 2", "12", "3, 4", "gaussian"])
    assert "| 9 " in heat
    assert total.startswith("in all ")
    assert all(part in total for part in ("training", "sampling", "metrics", "on cpu, 1 core"))
    assert price.endswith("CPU-hours")
    assert not (tmp_path / "out").exists()
    facts = json.loads(command("compare", *DRY, "--json")[1])
    assert [run["nfe"] for run in facts["runs"]] == [[3, 4], [9]]
    assert facts["seconds"]["total"] == pytest.approx(sum(facts["seconds"][part] for part in facts["seconds"]) / 2)
    assert facts["cost"]["unit"] == "CPU-hours"


def test_a_sweep_over_pictures_that_are_not_prepared(command, tmp_path):
    words = ("sweep", "ve", *COMMON, "--data", "raw.npy", "--grid", "lr=1e-3,1e-4,1e-5", "--halving", 3)
    code, said, err = command(*words, "--min-budget", "60s", "--dry-run", "--set", "size=[8, 8]")
    assert code == 0, err
    assert "halving" not in said  # one round: the best third of three is one
    assert said.count("| 1 min ") == 3
    assert not (tmp_path / "out").exists()


def test_a_recipe_needs_no_data(command, tmp_path):
    code, said, err = command("compare", "cifar10-ve-small", "--images", 1000, "--dry-run", "--set", "network.nf=8")
    assert code == 0, err
    first, second = err.strip().splitlines()
    assert first == "no --data: 50,000 images are assumed for the reference"
    assert second.startswith("to measure: inception-2015-12-05 is not here: give --inception FILE, or --download")
    assert "1,000 images" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("ve", "--dry-run"), "--data is required"),
        (("ve", "--dry-run", "--data", "nowhere"), "cannot read nowhere (No such file"),
        (("ve", "--dry-run", "--data", "data", "--network", "nowhere.pt"), "nowhere.pt: no such file"),
        (("ve:sampler=odee", "--dry-run", "--data", "data"), "did you mean 'ode'?"),
        (("--dry-run", "--stage", "page"), "name the runs"),
        (("ve", "--dry-run", *COMMON, "--edit", "nowhere.png"), "edit: nowhere.png does not exist"),
        (("ve", "--dry-run", *COMMON, "--reference", "nowhere"), "nowhere: neither a path nor a named set"),
        (("ve", "--dry-run", *COMMON, "--reference", "tiny.pt"), "tiny.pt holds no images: expected files such as"),
    ],
)
def test_a_mistake_is_one_line(refused, words, line, tmp_path):
    assert refused("compare", *words, says=line) == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("width", [80, 60])
def test_a_table_fits_the_terminal(width):
    """Long names wrap; the best is bold without stars; every note stands once below."""
    head = ["run", "images", "steps", "training", "FID, gaussian", "FID, simulate", "NFE", "ms/image"]
    rows = [[f"cifar10-anisotropic-base:lr=2e-{k};name=x", "3,520,000", "6,875", "9 min", f"{k}2.3", "–", "50", "0.7"]
            for k in range(3)]  # fmt: skip
    rows[1][4] = "**12.31**"
    target = StringIO()
    console = Console(file=target, width=width, force_terminal=True, color_system=None)
    show_table([["wide"]], [head, *rows], ["a warning"], console)
    lines = target.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert "*" not in target.getvalue()
    assert sum("a warning" in line for line in lines) == 1
    styled = Console(file=StringIO(), width=width, force_terminal=True, color_system="standard")
    show_table([["wide"]], [head, *rows], (), styled)
    assert re.search(r"\x1b\[1m *12\.31\x1b\[0m", styled.file.getvalue())
