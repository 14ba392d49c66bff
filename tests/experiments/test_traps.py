"""What a study must not do silently: mix methods, evaluations or pictures, lose a point, or fail after hours."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from anisodiff.cli.feature_network import Choice
from anisodiff.cli.study import StudyOptions, open_data
from anisodiff.experiments import Deadline
from anisodiff.experiments.layout import Place
from anisodiff.experiments.results import Row
from anisodiff.experiments.sweep import score_of
from anisodiff.experiments.training import keep_start
from anisodiff.training import Snapshot, Store, TrainConfig, newest
from tests.experiments.conftest import COMMON

SHORT = (*COMMON, "--images", 8)


def results(out):
    held = json.loads((out / "results" / "page.json").read_text())
    return {row["name"]: row["results"][0] for row in held["rows"]}


def refused(answer, words):
    """One line that says ``words``, and nothing trained."""
    code, said, err = answer
    assert (code, said) == (2, "")
    assert words in err.splitlines()[-1]
    assert "measuring the preconditioning" not in err


def test_what_would_fail_after_training_is_said_before(command, tmp_path):
    out = tmp_path / "out"
    refused(command("compare", "ve", *SHORT, "--reference", "nowhere"), "nowhere: neither a path nor a named set")
    refused(command("compare", "ve", *SHORT, "--network", "none.pt"), "none.pt: no such file")
    for more in (("--track", 1), ("--edit", "photo0.png", "--dry-run")):
        none = command("compare", "ve", *SHORT, "--network", "none", *more)
        refused(none, "--track and --edit measure FID, which needs a feature network: got --network none")
    none = command("sweep", "ve", "--grid", "lr=1e-3,1e-4", *SHORT, "--network", "none", "--metric", "fid")
    refused(
        none,
        "--metric fid needs a feature network, got --network none; choose sliced_wasserstein, spectrum_error or ",
    )
    refused(command("compare", "ve", "heat:from=nowhere", *SHORT), "heat:from=nowhere': no such folder: nowhere")
    refused(command("compare", "ve", *SHORT, "--edit", "photo0.png", out=tmp_path / "edits"), "edit: got one picture")
    words = ("compare", "ve", "cifar10-tiny", *SHORT)  # the shipped model, of another size
    refused(command(*words), "'cifar10-tiny': it makes images of 3×32×32 (channels, height, width), --data has 1×8×8")
    assert not (out / "work").exists()
    code, said, _ = command("compare", "ve", *SHORT, "--reference", "nowhere", "--stage", "train")
    assert code == 0  # on a machine that only trains nothing of this need be there
    assert "not finished" in said


def test_two_in_one_folder_are_refused(command):
    words = ("compare", "ve", "heat:name=ve-seed1", *SHORT, "--seeds", "0,1")
    refused(command(*words), "two runs would lie in the folder 've-seed1'")


@pytest.mark.parametrize("dry", [True, False])
def test_photographs_get_the_size_that_the_device_can_train(tmp_path, dry, capsys):
    album = tmp_path / "album"
    album.mkdir()
    for number in range(12):
        noise = np.random.default_rng(number).integers(0, 255, (300, 300, 3), dtype=np.uint8)
        Image.fromarray(noise).save(album / f"{number}.png")
    network = Choice(name="inception", weights=None, given=None, tf32=False, download=False, trust_code=False)
    asked = StudyOptions(
        data=album, out=tmp_path / "out", n=12, steps="3", prior="gaussian", seeds="0", overrides=[], reference=None,
        network=network, span=None, batch=None, compile=False, device="cpu",
    )  # fmt: skip
    found = open_data([], {}, asked, dry=dry)
    assert (found.channels, found.size) == (3, (32, 32))
    assert dry or "picked 32×32 with 3 channels: all sampled images are 300×300" in capsys.readouterr().err
    found = open_data([], {"size": 16}, replace(asked, out=tmp_path / "small"), dry=dry)
    assert (found.channels, found.size) == (3, (16, 16))
    assert dry or capsys.readouterr().err.endswith("; picked 3 channels\n")


def test_nothing_is_prepared_inside_a_folder_of_something_else(command, tmp_path):
    album = tmp_path / "album"
    album.mkdir()
    Image.new("L", (16, 16), 90).save(album / "one.png")
    words = [word for word in SHORT if word not in ("--data", "data")]
    refused(command("compare", "ve", *words, "--data", album, out=album), "holds something that is no study")
    refused(command("compare", "ve", *words, "--data", album, out=album / "study"), "choose a folder outside")
    assert len(list(album.iterdir())) == 1
    assert [path.name for path in album.iterdir()] == ["one.png"]


def test_a_sampler_that_cannot_leaves_no_point_open(command, tmp_path):
    words = ("compare", "ve:sampler=ode", *COMMON, "--images", 24, "--steps", 1, "--track", 2, "--json")
    code, said, err = command(*words)
    assert code == 0, err
    assert json.loads(said)["finished"]
    found = results(tmp_path / "out")["ve-sampler-ode"]
    assert found["track-2"]["failed"] == found["gaussian-1"]["failed"]


def test_fine_tuning_is_measured_before_any_training(command, prepared, tmp_path):
    first, out = tmp_path / "first", tmp_path / "out"
    assert command("compare", "ve", *SHORT, out=first)[0] == 0
    run = shutil.copytree(first / "work" / "ve" / "run", tmp_path / "somewhere" / "run")
    words = (*COMMON, "--images", 24, "--track", 2, "--steps", 4, "--set", "lr=0.1")
    code, _, err = command("compare", f"ve:from={run};name=tuned", *words, "--stage", "train")
    assert code == 0, err
    zero = newest(out / "work" / "tuned" / "track" / "0").tensors("model")
    begun, ended = (newest(path).tensors("model") for path in (run, out / "work" / "tuned" / "run"))
    network = [name for name in begun if name.startswith("network.")]
    assert all(torch.equal(zero[name], begun[name]) for name in network)
    assert any(not torch.equal(zero[name], ended[name]) for name in network)
    assert all(torch.equal(value, ended[name]) for name, value in zero.items() if name not in network)
    tuned, place = out / "work" / "tuned" / "run", Place(out=tmp_path / "copy", name="tuned", training="tuned")
    shutil.copytree(tuned, place.run)
    with pytest.raises(ValueError, match="no longer what the run began with"):
        keep_start(TrainConfig.from_dict(newest(tuned).meta["config"]), prepared, place, str(tuned))
    elsewhere = run.rename(tmp_path / "moved")  # known by its weights, not by where it lies
    shutil.copytree(elsewhere, tmp_path / "run")
    code, _, err = command("compare", f"ve:from={tmp_path / 'run'};name=tuned", *words)
    assert code == 0, err
    found = results(out)["tuned"]
    assert (found["track-0"]["images"], found["track-0"]["seconds"]) == (0, 0)
    assert found["track-0"]["fid"] != found["track-2"]["fid"]
    assert str(tmp_path) not in (out / "results" / "page.json").read_text()
    shutil.rmtree(tmp_path / "run")
    shutil.copytree(out / "work" / "tuned" / "run", tmp_path / "run")  # other weights under the same name
    code, _, err = command("compare", f"ve:from={tmp_path / 'run'};name=tuned", *words)
    assert code == 2
    assert "tuned: start_model was" in err


def test_a_run_that_takes_over_tables_and_prior_keeps_points(command, prepared, tmp_path):
    """The same process on the same images: nothing is fitted, and there is no checkpoint yet at the first point."""
    first, out = tmp_path / "first", tmp_path / "out"
    assert command("compare", "ve", *SHORT, out=first)[0] == 0
    run = first / "work" / "ve" / "run"
    words = (*COMMON, "--images", 24, "--track", 2, "--steps", 4, "--set", "log_every=4", "--stage", "train")
    code, _, err = command("compare", f"ve:from={run};name=tuned", *words)
    assert code == 0, err
    kept, begun = newest(out / "work" / "tuned" / "track" / "1"), newest(run)
    assert all(torch.equal(value, begun.tensors("prior")[name]) for name, value in kept.tensors("prior").items())

    # a twin of the start with other weights, everything that is written about it the same
    changed = {name: value + name.startswith("network.") for name, value in begun.tensors("model").items()}
    twin = Snapshot(step=begun.step, meta=begun.meta, model=changed, state={}, prior=begun.tensors("prior"))
    Store(tmp_path / "twin").save(twin)
    tuned, place = out / "work" / "tuned" / "run", Place(out=tmp_path / "copy", name="tuned", training="tuned")
    shutil.copytree(tuned, place.run)
    config = TrainConfig.from_dict(newest(tuned).meta["config"])
    with pytest.raises(ValueError, match="no longer what the run began with"):
        keep_start(config, prepared, place, str(tmp_path / "twin"))
    keep_start(config, prepared, place, str(run))
    assert newest(place.track(0)) is not None

    shutil.rmtree(out / "work" / "tuned" / "track" / "0")
    code, said, err = command("compare", f"ve:from={run};name=tuned", *words[:-2], "--json")
    assert code == 0, err
    assert json.loads(said)["finished"]
    found = results(out)["tuned"]
    assert {"track-1", "track-2"} <= found.keys()
    assert found["track-0"] == {"failed": "the weights that the training began with were not kept"}


def test_points_of_a_run_under_way_can_be_measured(command, tmp_path, monkeypatch):
    class Short(Deadline):
        asked = 0

        def over(self, need=0.0):
            self.asked += 1
            return self.asked > 7

    words = ("compare", "ve", *COMMON, "--images", 40, "--track", 2, "--steps", 3)
    with monkeypatch.context() as patched:
        patched.setattr("anisodiff.cli.study.deadline_of", lambda _: Short())
        assert "not finished" in command(*words, "--stage", "train")[1]
    out = tmp_path / "out" / "results"
    assert command(*words, "--stage", "sample,evaluate")[0] == 0
    assert not (out / "ve" / "train.json").exists()
    early = json.loads((out / "ve" / "track-1.json").read_text())
    assert early["images"] == 24
    assert command(*words)[0] == 0
    assert json.loads((out / "ve" / "track-1.json").read_text()) == early
    assert newest(tmp_path / "out" / "work" / "ve" / "track" / "1") is None  # nor kept a second time, later
    assert (out / "ve" / "track-2.json").exists()


def test_curves_of_unequal_nfe_say_so(command, tmp_path):
    words = (*COMMON, "--images", 24, "--track", 1, "--edit", "photo0.png", "--edit", "photo1.png")
    assert command("compare", "ve", *words, "--steps", 3, "--strengths", 0.5)[0] == 0
    page = tmp_path / "out" / "results" / "page.md"
    assert "12 samples each; gaussian, 3 NFE." in page.read_text()
    assert command("compare", "ve", "heat", *words, "--steps", "3,4", "--strengths", 0.5)[0] == 0
    told = page.read_text()
    assert "**Prior and NFE differ**: ve: gaussian, 3; heat: gaussian, 4" in told
    edits = re.findall(r"\| (ve|heat) +\| 0.5 +\| (\d+) ", told)
    assert edits == [("ve", "3"), ("heat", "4")]
    held = json.loads((tmp_path / "out" / "results" / "page.json").read_text())["study"]["fixed"]
    assert held["features"].startswith("tiny")  # the measure, in the raw numbers of the very first call, too


def test_an_adaptive_sampler_is_drawn_where_it_was_not_at_its_limit(command, tmp_path):
    run = "flow-matching:sampler=dopri5(tolerance=0.01);name=flow"
    assert command("compare", run, *SHORT, "--steps", 400, "--batch", 5)[0] == 0
    held = results(tmp_path / "out")["flow"]["gaussian-400"]["sampling"]
    assert held["nfe"] == 400  # what was allowed
    parts = sorted((tmp_path / "out" / "work" / "flow" / "gaussian-400").glob("0*.npz"))
    made = [(float(np.load(path)["nfe"]), len(np.load(path)["images"])) for path in parts]
    assert sum(count for _, count in made) == 12
    assert held["mean_nfe"] == pytest.approx(sum(nfe * count for nfe, count in made) / 12)
    assert 7 <= held["mean_nfe"] < 200
    page = (tmp_path / "out" / "results" / "page.md").read_text()
    assert re.search(rf"\| flow .*\| {held['mean_nfe']:.0f} ", page)


def test_other_pictures_of_the_same_name_are_refused(command, prepared, tmp_path):
    (tmp_path / "other").mkdir()
    shutil.copy(prepared.path.parent / "photo3.png", tmp_path / "other" / "photo0.png")
    words = ("compare", "ve", *SHORT, "--steps", 3, "--strengths", 0.5, "--edit", "photo1.png", "--edit")
    assert command(*words, "photo0.png", "--stage", "train,sample")[0] == 0
    code, _, err = command(*words, tmp_path / "other" / "photo0.png")
    assert code == 2
    assert "is of other pictures" in err
    assert command(*words, "photo0.png")[0] == 0
    code, _, err = command(*words, tmp_path / "other" / "photo0.png")
    assert code == 2
    assert "edit-0.5.json is of other pictures" in err


@pytest.mark.parametrize(
    ("base", "grid"), [("ve", "prior=gaussian,simulate"), ("ve:prior=simulate", "weighting=state,noise")]
)
def test_a_sweep_ranks_points_with_their_own_prior(command, tmp_path, base, grid):
    code, said, err = command("sweep", base, *SHORT, "--grid", grid, "--steps", 3)
    assert code == 0, err
    rows = [line.split("|") for line in said.splitlines() if line.startswith("|")][2:]
    fids = [float(row[2].strip("* ≈")) for row in rows]
    assert len(fids) == 2
    assert fids == sorted(fids)
    words = (tmp_path / "out" / "results" / "sweep.md").read_text().split("\n\n")[1]
    assert "simulate" in words


def test_a_point_that_failed_with_one_seed_does_not_go_on(tmp_path):
    good = {"train": {"images": 8}, "gaussian-3": {"report": {"values": [{"name": "fid", "value": 7.0}]}}}
    place = Place(out=tmp_path, name="a", training="a")

    def row(*held):
        return Row(name="a", label="a", seeds=(0, 1), results=held, places=(place, place))

    assert score_of(row(good, good), "gaussian", "fid") == 7.0
    assert score_of(row(good, {"train": {"failed": "it diverged"}}), "gaussian", "fid") is None
    assert score_of(row(good, {**good, "gaussian-3": {"failed": "it diverged"}}), "gaussian", "fid") is None
