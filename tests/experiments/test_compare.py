"""A whole comparison: what it writes, that it can be stopped anywhere, and what it refuses."""

import json
import re
import shutil
import sys

import numpy as np
import pytest
from PIL import Image

from anisodiff.experiments import Deadline, open_study, read_study, write_page
from anisodiff.studio.pages import curves_of
from anisodiff.training import newest
from tests.experiments.conftest import COMMON, NETWORK, SETTINGS

STUDY = (
    "compare", "ve", "heat", *COMMON, "--images", 24, "--track", 2, "--track-n", 8, "--steps", "3,4",
    "--prior", "gaussian,simulate", "--edit", "photo0.png", "--edit", "photo1.png", "--strengths", "0.5",
    "--batch", 8,
)  # fmt: skip
TIMES = ("seconds", "seconds_per_image", "checkpoint_path")


def plain(value):
    """Results without what no two runs share."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if key not in TIMES}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def rows(out):
    return plain(json.loads((out / "results" / "page.json").read_text())["rows"])


class Watched(Deadline):
    """A deadline that counts how often it is asked, and at one question is over, or kills."""

    def __init__(self, fatal=None, kill=False):
        super().__init__()
        self.fatal, self.kill, self.asked = fatal, kill, 0

    def over(self, need=0.0):
        self.asked += 1
        if self.asked == self.fatal and self.kill:
            raise KeyboardInterrupt
        return self.fatal is not None and self.asked >= self.fatal


@pytest.fixture
def calm(command, folder):
    """The study that nobody disturbed; made once."""
    out = folder / "calm"
    if not out.exists():
        code, said, err = command(*STUDY, out=out)
        assert code == 0, err
        (folder / "calm.txt").write_text(said)
    return out


def test_the_page_has_tables_protocol_and_figures(calm):
    page = (calm / "results" / "page.md").read_text()
    head = next(line for line in page.splitlines() if line.startswith("| run"))
    for word in (
        "images seen",
        "optimizer steps",
        "training, ms/image",
        "FID, gaussian",
        "FID, simulate",
        "sampling, ms/image",
    ):
        assert word in head
    assert re.search(r"\| ve +\| 24 ", page)
    assert "kid | precision | recall | density | coverage | edges" in re.sub(" +", " ", page)
    assert "All against 40 of data" in page
    assert "anisodiff compare ve heat" in page
    assert str(calm.parent) not in page
    assert "heat, prior simulate: leakage: samples depend on the images they start from" in page
    assert "heat, prior gaussian: leakage" not in page
    assert ("with one seed: the difference is not significant" in page) == (" ≈ " in page)  # only where it is used
    assert "12 samples: below 10,000 FID is biased and noisy." in page
    figures = re.findall(r"\]\((figures/[\w-]+\.png)\)", page)
    assert sorted(figures) == [
        f"figures/{name}.png" for name in ("edit-sheets", "edits", "nfe", "sheets", "training")
    ]
    for figure in figures:
        assert Image.open(calm / "results" / figure).size[0] > 100


def test_the_main_table_is_on_the_screen(calm, folder):
    page, said = (calm / "results" / "page.md").read_text(), (folder / "calm.txt").read_text()
    table, notes, last = said.split("\n\n")[0], said.split("\n\n")[1].splitlines()[:-1], said.splitlines()[-1]
    assert table in page
    assert "**" in table
    assert notes
    assert all(page.count(note) == 1 for note in notes)
    assert last == f"wrote {calm / 'results' / 'page.md'}"


def test_the_results_are_small_and_complete(calm):
    found = {row["name"]: row["results"][0] for row in rows(calm)}
    for result in found.values():
        assert result["train"]["images"] == 24
        assert result["track-1"]["images"] == 16  # the first record of the log past the half
        assert (result["track-2"]["images"], result["track-2"]["samples"]) == (24, 8)
        assert result["gaussian-4"]["sampling"]["nfe"] == 4
        names = {value["name"] for value in result["simulate-3"]["report"]["values"]}
        assert {"fid", "kid", "precision", "coverage", "edges", "spectrum_error"} <= names
        assert 0 < result["edit-0.5"]["rmse_painting"] < 0.5
    assert found["ve"]["gaussian-4"]["report"] != found["heat"]["gaussian-4"]["report"]
    size = sum(path.stat().st_size for path in (calm / "results").rglob("*"))
    assert size < 1_000_000
    assert not (calm / "work" / "ve" / "track" / "1" / "checkpoints").exists()  # tidied up after it was measured


def test_the_curves_of_the_figures_are_kept_for_the_studio(calm):
    curves = {curve["title"]: curve for curve in curves_of(calm / "results" / "page.md")}
    assert list(curves) == [
        "FID over NFE, prior gaussian", "FID over NFE, prior simulate", "FID over training time",
        "FID over images seen",
    ]  # fmt: skip
    found = {row["name"]: row["results"][0] for row in rows(calm)}
    for line in curves["FID over images seen"]["lines"]:
        tracks = [found[line["name"]][f"track-{point}"] for point in (1, 2)]
        assert line["points"] == [[track["images"], track["fid"]] for track in tracks]


def test_points_on_the_way_stand_in_a_table(calm):
    table = (calm / "results" / "page.md").read_text().partition("## FID over training time")[2]
    lines = [[c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    assert lines[0] == ["images seen (optimizer steps), or number", "16 (4)", "24 (6)"]
    found = {row["name"]: row["results"][0] for row in rows(calm)}
    for name, *shown in lines[2:4]:
        known = [found[name][f"track-{point}"]["fid"] for point in (1, 2)]
        assert [float(cell.strip("* ≈")) for cell in shown] == pytest.approx(known, rel=1e-3)


def test_stopped_and_killed_everywhere_it_ends_the_same(command, calm, folder, monkeypatch):
    out, codes = folder / "disturbed", []
    assert command(*STUDY, "--stage", "paint", out=out)[0] == 0
    assert len(list((out / "results").glob("paintings-*.npz"))) == 1
    assert not (out / "work").exists()
    for attempt in range(40):
        watched = Watched(5 + attempt % 3, kill=attempt % 2 == 1)
        monkeypatch.setattr("anisodiff.cli.study.deadline_of", lambda _, watched=watched: watched)
        code, said, _ = command(*STUDY, out=out)
        codes.append(code)
        if code == 0 and "not finished" not in said:
            break
    assert codes[-1] == 0
    assert codes.count(0) >= 3
    assert codes.count(130) >= 2
    monkeypatch.setattr("anisodiff.cli.study.deadline_of", lambda _: Deadline())
    orphans = (
        "results/heat/.train-0123abcd.json",
        "results/figures/.sheets-0123abcd.png",
        "work/ve/.0-7-0123abcd.npz",
    )
    for name in orphans:  # as a writer that was killed by the system leaves them
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("{")
    code, _, err = command(*STUDY, out=out)
    assert code == 0, err
    assert rows(out) == rows(calm)
    first, second = (np.load(place / "results" / "heat" / "simulate-4.npz")["images"] for place in (out, calm))
    assert np.array_equal(first, second)


def test_results_alone_are_enough_for_the_page(command, calm, folder):
    carried = folder / "carried"
    shutil.copytree(calm / "results", carried / "results")
    (carried / "results" / "page.md").unlink()
    code, said, _ = command("compare", "--stage", "page", out=carried)
    assert (code, said.splitlines()[-1]) == (0, f"wrote {carried / 'results' / 'page.md'}")
    assert said.startswith("| run")
    assert rows(carried) == rows(calm)


def test_other_settings_are_refused_in_one_line(command, calm):
    for changed, words in (
        ((*STUDY[:2], *STUDY[2:], "--images", 32), "budget was '24 images', now '32 images'"),
        ((*STUDY, "--n", 14), "n was 12, now 14"),
        ((*STUDY, "--set", "lr=2e-3"), "ve: lr was 0.001, now 0.002; heat: lr was 0.001, now 0.002"),
        ((*STUDY, "--input", "imagenet"), "features was 'tiny"),
    ):
        if "imagenet" in changed:  # the feature network is looked at only when something is measured
            (calm / "results" / "heat" / "gaussian-4.json").rename(calm / "kept.json")
        code, said, err = command(*changed, out=calm)
        if "imagenet" in changed:
            (calm / "kept.json").rename(calm / "results" / "heat" / "gaussian-4.json")
        assert (code, said) == (2, "")
        assert "holds another study" in err.splitlines()[-1]
        assert words in err.splitlines()[-1]


def test_a_run_may_change_until_something_of_it_is_done(command, tmp_path):
    def study(ve, heat):
        return command("compare", ve, heat, *COMMON, "--images", 8, "--steps", 4, "--only", "ve", "--stage", "train")

    assert study("ve", "heat")[0] == 0
    assert study("ve", "heat:lr=2e-3;name=heat")[0] == 0
    held = json.loads((tmp_path / "out" / "results" / "study.json").read_text())
    assert held["runs"]["heat"]["config"]["lr"] == 2e-3
    code, _, err = study("ve:lr=2e-3;name=ve", "heat")
    assert code == 2
    assert "ve: lr was 0.001, now 0.002" in err


def test_seeds_and_shared_runs_count_as_done(command):
    """Seeds of one row are of one config, and a training that another run shares is done for both."""

    def study(*words):
        return command("compare", *words, *COMMON, "--images", 8, "--steps", 4, "--stage", "train")

    assert study("ve", "ve:steps=2;name=b", "--seeds", "0")[0] == 0
    for words, line in (
        (("ve:lr=2e-3;name=ve", "--seeds", "1"), "ve-seed1: lr was 0.001, now 0.002"),
        (("ve:lr=2e-3;name=ve", "--seeds", "2"), "ve-seed2: lr was 0.001, now 0.002"),
        (("ve:steps=2;name=b", "--seeds", "0"), "b: training was 've', now 'b'"),
    ):
        code, _, err = study(*words)
        assert code == 2
        assert line in err
    assert study("ve", "--seeds", "0,1,2")[0] == 0


def test_in_pieces_with_seeds_shared_runs_checkpoints_and_failures(command, calm, tmp_path):
    run = calm / "work" / "ve" / "run"
    words = (
        "compare", "ve", "ve:sampler=ode;name=ode", "heat:n=10;prior=gaussian;steps=2;sampler=exponential(order=1)",
        f"{run}:name=given", *COMMON, "--images", 8, "--steps", "1,4", "--seeds", "0,1", "--keep-weights", "--json",
    )  # fmt: skip
    code, said, _ = command(*words, "--only", "ve,ode", "--stage", "train")
    out = tmp_path / "out"
    assert code == 0
    assert not json.loads(said)["finished"]
    assert {path.name for path in (out / "work").iterdir()} == {"ve", "ve-seed1"}  # the two share both runs
    shutil.rmtree(out / "work")  # as on a machine that was only lent
    assert newest(out / "results" / "ve" / "weights") is not None
    assert command(*words, "--only", "ve,ode", "--stage", "sample")[0] == 0
    assert not (out / "results" / "ve" / "gaussian-4.json").exists()
    assert command(*words, "--stage", "evaluate")[0] == 0
    assert (out / "results" / "ve-seed1" / "gaussian-4.json").exists()
    code, said, _ = command(*words)
    assert json.loads(said) == {"finished": True, "missing": [], "page": str(out / "results" / "page.md")}
    page = (out / "results" / "page.md").read_text()
    assert re.search(r"\| ve +\| 8 .*± ", page)
    assert "- Given checkpoints, trained with another budget: given." in page
    assert "FID over images seen" not in page
    assert "ode, prior gaussian, NFE 1: failed: " in page  # it takes two a step
    assert "10 samples of heat" in page


def test_checkpoints_of_one_run_make_a_curve(command, calm, tmp_path):
    early, late = sorted((calm / "work" / "ve" / "run" / "checkpoints").iterdir())
    given = (f"{early}:of=ve;name=early", f"{late}:of=ve;name=late", f"{late}:of=other;name=same")
    common = (*COMMON[len(SETTINGS) :], "--steps", 4)
    words = ("compare", *given, *common)
    code, _, err = command("compare", *given, f"{late}:sampler=ode;of=ve;name=twice", *common)
    assert code == 2
    assert "of: late is a checkpoint of ve at 24 images, too" in err
    for stage in ("page", "train,page"):  # nothing to draw yet
        assert command(*words, "--stage", stage)[0] == 0
        assert "over images" not in (tmp_path / "out" / "results" / "page.md").read_text()
    assert command(*words)[0] == 0
    page = (tmp_path / "out" / "results" / "page.md").read_text()
    assert page.startswith("# Comparison\n\n3 runs, given checkpoints, 12 samples")
    assert "another budget" not in page
    table = page.partition("## FID over images seen")[2]
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    assert rows[0] == ["FID, prior gaussian, images seen", "ve", "other"]
    assert [row[0] for row in rows[2:4]] == ["16", "24"]
    assert rows[2][2] == "–"
    assert rows[3][1] == rows[3][2] != rows[2][1]  # the same weights, and others
    assert (tmp_path / "out" / "results" / "figures" / "images.png").is_file()
    assert command("compare", *given[:2], given[2].replace("other", "third"), *common)[0] == 0
    page = (tmp_path / "out" / "results" / "page.md").read_text()
    assert "images seen | ve" in page
    assert "| third" in page


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "name the runs"),
        (("ve:of=run",), "of: for checkpoints; runs of this study use --track"),
        (("cifar10-tiny:of=a/b;name=c",), "of: got 'a/b', expected letters, digits, dots, dashes: 'a-b'"),
        (("vee",), "no recipe, process or checkpoint 'vee'; did you mean 've'?"),
        (("ve:weighting",), "got 'weighting', expected KEY=VALUE"),
        (("flow-matching:weighting=noise",), "weighting: changes nothing for this process"),
        (("ve:weigting=noise",), "did you mean 'weighting'?"),
        (("ve:seed=1",), "seed: the same for all runs; say it with --seeds"),
        (("ve:sampler=odee",), "did you mean 'ode'?"),
        (("ve:sampler=heun",), "needs a model that predicts the velocity; use"),
        (("anisotropic:learns=reverse_drift;sampler=ode",), "needs the score by itself"),
        (("anisotropic-paper:sampler=exponential",), "needs the drift"),
        (("ve:process.diffusivity=geometric(1",), "a bracket is not closed"),
        (("ve", "ve"), "two runs are called 've'"),
        (("ve:name=a/b",), "expected letters, digits, dots, dashes"),
        (("ve", "--images", "4", "--edit", "photos", "--strokes", "0"), "'--strokes': got '0', expected a number"),
        (("ve", "--budget", "soon"), "--budget: got 'soon', expected a time such as"),
        (("ve", "--budget", "1min", "--images", "4"), "give one of them"),
        (("ve", "--images", "4", "--prior", "gauss"), "priors: got ['gauss']"),
        (("ve", "--images", "4", "--steps", "0"), "steps: got '0'"),
        (("ve", "--images", "4", "--seeds", "a"), "--seeds: got 'a'"),
        (("ve", "--images", "4", "--stage", "trian"), "did you mean 'train'?"),
        (("ve", "--images", "4", "--only", "heat"), "unknown --only 'heat'; valid: ve"),
        (("ve", "--images", "4", "--for", "1 day"), "--for: got '1 day'"),
        (("ve", "--images", "4", "--edit", "data", "--strengths", "2"), "strengths: got [2.0]"),
        (("ve", "--images", "4", "--n", "3"), "n: got 3, expected a whole number, 10 or more"),
        (("ve:n=5", "--images", "4"), "n: got '5', expected a whole number, 10 or more"),
        (("ve:steps=inf", "--images", "4"), "steps: got 'inf', expected a whole number"),
        ((":name=a", "--images", "4"), "expected a recipe, process or checkpoint first"),
        (("cifar10-ve-small", "--images", "4"), "the recipe expects 3×32×32"),
        (("--stage", "page"), "holds no comparison"),
    ],
)
def test_a_mistake_is_one_line(refused, words, line, tmp_path):
    more = COMMON[len(SETTINGS) :] if words[:1] == ("cifar10-ve-small",) else COMMON
    given = words if words == ("--stage", "page") else (*more, *words)
    assert refused("compare", *given, says=line) == ""
    assert not (tmp_path / "out").exists()


def test_without_a_feature_network_pixels_are_compared(command, tmp_path):
    words = ["compare", "ve", "flow-matching", *SETTINGS, "--data", "data", "--device", "cpu", "--images", 8]
    words += ["--n", 12, "--steps", "3,4", "--prior", "gaussian,simulate", "--network", "none"]
    code, said, err = command(*words, "--dry-run")
    assert code == 0, err
    assert "metrics" in said.splitlines()[-2]
    code, said, err = command(*words)
    assert code == 0, err
    names = ("sliced_wasserstein", "spectrum_error", "edges")
    page = re.sub(" +", " ", (tmp_path / "out" / "results" / "page.md").read_text())
    each = [" | ".join([*(f"{n}, {prior}" for n in names), "NFE"]) for prior in ("gaussian", "simulate")]
    assert all(head in page for head in each)
    assert "12 samples: below 10,000 the numbers are biased and noisy." in page
    assert "sliced_wasserstein, spectrum_error, edges over NFE" in page
    assert "no feature network" in page
    assert "FID" not in page + said
    assert "dataset" not in page  # images of one's own have no name
    for note in (
        "Training too short to measure its time: ve, flow-matching.",
        "NFE that differ from --steps, as a step costs more than one: flow-matching 2 for 3.",
    ):
        assert f"- {note}" in page
        assert note in " ".join(said.split())
    told = " ".join(command(*words[:-2], "--network", "colors:means")[2].split())
    assert "out holds another study: --network was none, now a feature network;" in told
    open_study(tmp_path / "other", "comparison", {"n": 12, "compared_by": "features"}, {})
    with pytest.raises(ValueError, match="another study: --network was a feature network, now none;"):
        open_study(tmp_path / "other", "comparison", {"n": 12, "compared_by": "pixels"}, {})
    narrow = write_page(tmp_path / "out", read_study(tmp_path / "out", "comparison")).narrow[0]
    assert narrow[4:] == [*each[0].split(" | ")[:3], *each[1].split(" | ")[:3], "NFE", "sampling, ms/image"]
    for row in rows(tmp_path / "out"):
        values = {value["name"]: value["value"] for value in row["results"][0]["gaussian-4"]["report"]["values"]}
        assert all(0 < values[name] < np.inf for name in names)


def test_weights_are_asked_for_only_where_something_is_measured(command, monkeypatch, tmp_path):
    """At a terminal: training and sampling need no feature network."""
    asked = []

    def confirm(question: str, **options: object) -> bool:
        asked.append(question)
        return False

    monkeypatch.setattr("typer.confirm", confirm)
    words = ["compare", "ve", *SETTINGS, "--data", "data", "--device", "cpu", "--n", 12, "--images", 8, "--steps", 4]
    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(getattr(sys, stream), "isatty", lambda: True)
    for stage in ("train", "sample,page", "page"):
        assert command(*words, "--stage", stage)[0] == 0
        assert asked == []
    command(*words, "--stage", "evaluate")
    assert "download" in asked.pop()
    assert command(*words, "--stage", "train", "--track", 1, out=tmp_path / "tracked")[0] == 0
    assert command(*words, *NETWORK)[0] == 0
    assert command(*words, "--stage", "evaluate,page")[0] == 0  # all results are there: nothing is measured
    assert asked == []


@pytest.mark.parametrize(
    "words", [("compare", "ve", "--images", 8), ("sweep", "ve", "--grid", "lr=1e-3,1e-4", "--images", 8)]
)
def test_samples_on_a_cpu_are_few_unless_their_number_is_given(command, tmp_path, words):
    """Said beside the times of a dry run, and kept by a study that is continued."""
    note = "256 samples are the default on this device (cpu): change it with --n"
    given = [*words, *SETTINGS, "--data", "data", "--device", "cpu", "--steps", 4, "--network", "none"]
    assert command(*given, "--dry-run")[1].splitlines()[-1] == note
    assert note not in "".join(command(*given, "--dry-run", "--n", 12)[1:])
    begun = command(*given, "--n", 12, "--for", "1s")
    assert begun[0] == 0, begun[2]
    code, said, err = command(*given)
    assert (code, note in said + err) == (0, False)
    assert json.loads((tmp_path / "out" / "results" / "study.json").read_text())["fixed"]["n"] == 12
    code, said, err = command(*given, "--for", "1s", out=tmp_path / "many")
    assert note in err
    assert json.loads((tmp_path / "many" / "results" / "study.json").read_text())["fixed"]["n"] == 256
