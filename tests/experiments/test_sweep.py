"""Sweeps: grids, successive halving, tables and plots."""

import json

import pytest
from PIL import Image

from anisodiff.experiments import Budget, parse_axis, points
from anisodiff.experiments.sweep import rungs, survivors
from anisodiff.experiments.sweep_page import _places
from tests.experiments.conftest import COMMON


def test_halving_keeps_the_best():
    scores = {"a": 3.0, "b": 1.0, "c": None, "d": 2.0, "e": float("nan"), "f": 9.0, "g": 4.0}
    assert survivors(scores, 3) == ["b", "d", "a"]
    assert survivors(scores, 3, higher=True) == ["f", "g", "a"]
    assert survivors({"a": None, "b": 5.0}, 2) == ["b"]
    assert survivors({"a": None, "b": None}, 2) == []
    plan = rungs(9, Budget(seconds=60), 3)
    assert [(tag, count, budget.seconds) for tag, count, budget in plan] == [("rung-0", 9, 60), ("rung-1", 3, 180)]
    assert [(count, budget.images) for _, count, budget in rungs(5, Budget(images=8), 2)] == [
        (5, 8),
        (3, 16),
        (2, 32),
    ]
    assert len(rungs(1, Budget(images=8), 2)) == 1
    assert rungs(9, Budget(images=8), None) == [("", 9, Budget(images=8))]
    with pytest.raises(ValueError, match="halving: got 1"):
        rungs(4, Budget(images=8), 1)


def test_grids_are_read_with_brackets():
    axis = parse_axis("process.diffusivity=geometric(0.1, 2),geometric(0.1, 8), 0")
    assert axis[1] == ("geometric(0.1, 2)", "geometric(0.1, 8)", "0")
    assert parse_axis("network.multipliers=1,2|1,2,2")[1] == ("1,2", "1,2,2")
    found = points("heat:batch=4", [axis, parse_axis("lr=1e-4,2e-4")])
    assert len(found) == 6
    run, values = found[-1]
    assert values == {"process.diffusivity": "0", "lr": "2e-4"}
    assert run.changes == {"batch": 4, "process.diffusivity": 0, "lr": "2e-4"}
    assert len({one.name for one, _ in found}) == 6
    assert len({one.name for one, _ in points("ve", [parse_axis("lr=1e-4,1e 4")])}) == 2
    assert _places(["1", "64", "0.5"]) == ([1.0, 64.0, 0.5], None)
    assert _places(["a", "b", "a"]) == ([0.0, 1.0, 0.0], ["a", "b"])


HALVING = (
    "sweep", "ve", *COMMON, "--grid", "lr=0.0001,0.3", "--grid", "process.sigma_max=20,50", "--halving", 2,
    "--min-budget", "8images", "--steps", "3",
)  # fmt: skip


def test_halving_goes_on_with_the_best_and_continues_their_runs(command, tmp_path):
    code, said, err = command(*HALVING, "--for", "0.001s")
    assert code == 0
    assert "not finished" in said
    code, said, err = command(*HALVING)
    assert code == 0
    assert "continuing from step-00000002: 8 images seen" in err
    out = tmp_path / "out" / "results"
    held = json.loads((out / "sweep.json").read_text())["points"]
    first = {  # what everybody had after the first round
        path.parent.parent.name: json.loads(path.read_text())["report"]["values"][0]["value"]
        for path in out.glob("*/rung-0/gaussian-3.json")
    }
    assert len(first) == 4
    best = sorted(first, key=first.__getitem__)[:2]
    assert {point["name"] for point in held if point["round"] == 2} == set(best)
    assert [point["round"] for point in held] == [2, 2, 1, 1]
    assert {point["results"][0]["train"]["images"] for point in held[:2]} == {16}
    fids = [point["results"][0]["gaussian-3"]["report"]["values"][0]["value"] for point in held]
    assert fids[:2] == sorted(fids[:2])
    table = [line for line in said.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in table[0].split("|")[1:5]] == ["lr", "process.sigma_max", "round", "fid"]
    assert table[0].split("|")[-2].strip() == "NFE"
    assert len(table) == 6
    assert Image.open(out / "figures" / "sweep.png").size[0] > 200
    before = (out / "sweep.md").read_text()
    assert command("sweep")[0] == 0  # from the results alone
    assert (out / "sweep.md").read_text() == before
    code, _, err = command(*HALVING, "--min-budget", "12images")
    assert code == 2
    assert "budget was '8 images', now '12 images'" in err


def test_a_grid_over_evaluations_trains_once(command, tmp_path):
    words = ("sweep", "heat", *COMMON, "--grid", "steps=2,3,4", "--images", 8, "--metric", "recall")
    code, _, err = command(*words)
    assert code == 0
    assert err.count("measuring the preconditioning") == 1
    held = json.loads((tmp_path / "out" / "results" / "sweep.json").read_text())["points"]
    recalls = [
        next(v["value"] for v in point["results"][0][f"gaussian-{point['values']['steps']}"]["report"]["values"]
             if v["name"] == "recall")
        for point in held
    ]  # fmt: skip
    assert recalls == sorted(recalls, reverse=True)


def test_without_a_feature_network_points_are_sorted_by_pixels(command, tmp_path):
    words = ["sweep", "heat", *COMMON, "--grid", "steps=2,3", "--images", 8, "--network", "none"]
    code, _, err = command(*words)
    assert code == 0, err
    head = (tmp_path / "out" / "results" / "sweep.md").read_text().split("\n|")[1]
    assert [cell.strip() for cell in head.split("|")[1:5]] == [
        "sliced_wasserstein", "spectrum_error", "edges", "images seen"
    ]  # fmt: skip
    first = (tmp_path / "out" / "results" / "sweep.md").read_bytes()
    assert "choose sliced_wasserstein, spectrum_error or edges" in command("sweep", "--metric", "fid")[2]
    assert "valid: sliced_wasserstein, spectrum_error, edges" in command("sweep", "--metric", "sliced")[2]
    assert command("sweep")[0] == 0
    assert (tmp_path / "out" / "results" / "sweep.md").read_bytes() == first


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "say what to sweep over"),
        (("--grid", "lr"), "--grid: got 'lr', expected KEY=V1,V2"),
        (("--grid", "lr=1,1"), "expected different values"),
        (("--grid", "lr=1,2", "--grid", "lr=3,4"), "a field is given twice"),
        (("--grid", "lrr=1e-4,2e-4"), "did you mean 'lr'?"),
        (("--grid", "lr=1e-4,2e-4"), "say how long to train, once: --budget or --images"),
        (("--grid", "lr=1e-4,2e-4", "--halving", "2"), "say how long to train, once: --min-budget"),
        (("--grid", "lr=1e-4,2e-4", "--min-budget", "9s"), "--min-budget belongs to --halving"),
        (("--grid", "lr=1e-4,2e-4", "--images", "8", "--metric", "fld"), "did you mean 'fid'?"),
    ],
)
def test_a_mistake_is_one_line(refused, words, line):
    budget = () if "once" in line or "--halving" in line or "--images" in words else ("--images", "8")
    assert refused("sweep", "ve", *COMMON, *words, *budget, says=line) == ""
