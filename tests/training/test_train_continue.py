"""`train -o RUN` alone, `--config`, `--dry-run` as a config, `--holdout`, `--images` in proportion."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

from anisodiff.data import open_dataset
from anisodiff.registry import DEFAULT_PROCESS
from anisodiff.training import Hooks, TrainConfig, find, newest, read_log, train
from anisodiff.training.config import scaled
from anisodiff.training.recipes import recipe
from anisodiff.training.run_folder import NAME, read_run
from tests.support.children import interruptible
from tests.support.forged import forge_config
from tests.training.conftest import SMALL, assert_equal, folder, tiny

CPU = ("--device", "cpu")
TINY = [*SMALL, "size=8"]


def photos(path: Path, count: int = 12) -> Path:
    return folder(path / "photos", count=count)


def test_the_folder_alone_continues_a_run_and_ends_in_the_same_bits(train_command, tmp_path):
    photos(tmp_path)
    words = ["train", "heat", "--data", "photos", *CPU]
    assert train_command(*words, "-o", "calm", "--images", 24, settings=TINY).exit_code == 0
    first = train_command(*words, "-o", "run", "--images", 12, settings=TINY)
    assert first.exit_code == 0, first.output
    shutil.rmtree(tmp_path / "photos")  # the prepared images suffice
    again = train_command("train", "-o", "run", "--images", 24, *CPU)
    assert again.exit_code == 0, again.output
    assert "continuing from step-00000003: 12 images seen" in again.output
    assert_equal(tmp_path / "run", tmp_path / "calm")
    described = read_run(tmp_path / "run")
    assert described.data == tmp_path / "run" / "data"
    assert described.config.images == 24  # the new length is the run's
    assert described.config.to_dict() == find("run").meta["config"]
    done = train_command("train", "-o", "run", *CPU)
    assert done.output.endswith("\nalready finished: 24 images seen; train longer with --images N\n")
    told = train_command("train", "-o", "run", "--set", "lr=1", *CPU)
    assert "lr was" in str(told.exception)
    assert read_run(tmp_path / "run") == described  # what was refused is not written


def test_where_there_is_nothing_to_train_the_run_keeps_its_length(train_command, tmp_path):
    photos(tmp_path)
    words = ["train", "heat", "--data", "photos", *CPU]
    assert train_command(*words, "--images", 24, settings=TINY).exit_code == 0
    described = (tmp_path / "run" / NAME).read_bytes()
    for again in (["train", *CPU], words):
        told = train_command(*again, "--images", 11, settings=TINY)
        assert told.exit_code == 0, told.output
        assert "nothing to train: 24 images seen already, more than 11" in told.output
        assert "warm-up" not in told.output
        assert (tmp_path / "run" / NAME).read_bytes() == described


def test_a_longer_run_keeps_its_warm_up_and_its_choices(train_command, tmp_path):
    """Also with the whole command again: what was picked for the first length stays."""
    photos(tmp_path)
    words = ["train", "heat", "--data", "photos", "-o", "run", *CPU]
    settings = [item for item in TINY if not item.startswith(("warm_up", "log_every"))]
    assert train_command(*words, "--images", 8, settings=settings).exit_code == 0
    begun = read_run(tmp_path / "run").config
    longer = train_command(*words, "--images", 16, settings=settings)
    assert longer.exit_code == 0, longer.output
    assert read_run(tmp_path / "run").config == begun.changed({"images": 16})


def test_a_dry_run_of_something_else_is_not_about_the_run_that_is_there(train_command, tmp_path):
    photos(tmp_path)
    assert train_command("train", "heat", "--data", "photos", *CPU, "--images", 4, settings=TINY).exit_code == 0
    small = [*SMALL[1:4], "size=16"]
    told = train_command("train", "cifar10-ve-small", "--dry-run", *CPU, settings=small)
    assert told.exit_code == 0, told.output
    found = yaml.safe_load(told.stdout)
    assert (found["warm_up"], "data" in found) == (recipe("cifar10-ve-small").warm_up, False)
    told = train_command("train", "--dry-run", *CPU)  # of the run itself
    assert yaml.safe_load(told.stdout) == {**find("run").meta["config"], "data": str(tmp_path / "run" / "data")}


def test_a_run_killed_before_its_first_checkpoint_begins_again(train_command, tmp_path):
    photos(tmp_path)
    words = ["train", "heat", "--data", "photos", *CPU, "--images", 8]
    assert train_command(*words, "-o", "calm", settings=TINY).exit_code == 0
    assert train_command(*words, "-o", "run", settings=TINY).exit_code == 0
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert train_command("train", "-o", "run", *CPU).exit_code == 0
    assert_equal(tmp_path / "run", tmp_path / "calm")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "data").rename(tmp_path / "elsewhere")
    told = train_command("train", "-o", "run", *CPU)
    assert "the images of run are not at" in str(told.exception)
    assert "give --data PATH" in str(told.exception)
    assert (
        train_command("train", "-o", "run", "--data", "elsewhere", "--images", 8, *CPU, settings=TINY).exit_code == 0
    )


def test_python_writes_the_description_too(dataset, tmp_path):
    train(tiny(images=4), dataset, tmp_path / "run", track=())
    found = read_run(tmp_path / "run")
    assert found.config == tiny(images=4)
    assert found.data == dataset.path
    assert found.heldout is None


def test_a_dry_run_prints_a_config_that_trains(train_command, tmp_path):
    photos(tmp_path)
    settings = [*TINY, "images=8"]
    dry = train_command("train", "heat", "--data", "photos", "--dry-run", *CPU, settings=settings)
    assert dry.exit_code == 0, dry.output
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "run.yaml").write_text(dry.stdout)
    assert set(yaml.safe_load(dry.stdout)) == {*TrainConfig().to_dict(), "data"}
    assert "# parameters: " in dry.stdout
    assert "# the whole run: 2 steps, 8 images" in dry.stdout
    by_file = train_command("train", "--config", "sub/run.yaml", "-o", "by-file", *CPU)
    assert by_file.exit_code == 0, by_file.output
    assert (
        train_command("train", "heat", "--data", "photos", "-o", "by-words", *CPU, settings=settings).exit_code == 0
    )
    assert_equal(tmp_path / "by-file", tmp_path / "by-words")
    words = ["train", "--config", "sub/run.yaml", "--images", 7, "--seed", 5, "--set", "lr=1e-5"]
    told = train_command(*words, "-o", "changed", *CPU)
    assert told.exit_code == 0, told.output
    config = find("changed").meta["config"]
    assert (config["images"], config["seed"], config["lr"]) == (7, 5, 1e-5)
    assert read_run(tmp_path / "changed").data == tmp_path / "changed" / "data"
    again = train_command("train", "--config", "changed", "--data", "by-file/data", "-o", "again", *CPU)  # of a run
    assert again.exit_code == 0, again.output
    assert_equal(tmp_path / "again", tmp_path / "changed")
    assert read_run(tmp_path / "again").data == tmp_path / "by-file" / "data"


def test_a_file_of_a_process_alone_is_enough(train_command, tmp_path):
    """That of `forward --config`; without a preset it changes the default, as do the keys of a file of more."""
    photos(tmp_path)
    for text, preset in (
        ("preset: ve\nT: 1\n", "ve"), ("T: 1\n", DEFAULT_PROCESS), ("process: {T: 1}\nflip: false\n", DEFAULT_PROCESS)
    ):  # fmt: skip
        (tmp_path / "mine.yaml").write_text(text)
        words = ["train", "--config", "mine.yaml", "--data", "photos", "-o", f"run{len(text)}", "--images", 0, *CPU]
        told = train_command(*words, settings=TINY)
        assert told.exit_code == 0, told.output
        assert read_run(tmp_path / f"run{len(text)}").config.process == {"preset": preset, "T": 1}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--config", "bad.yaml"], "bad.yaml"),
        (["heat", "--config", "good.yaml"], "got the recipe 'heat' and --config good.yaml: give one of them"),
        (["--config", "good.yaml"], "no data for good.yaml: give --data PATH"),
        (["-o", "nowhere"], "nowhere holds no run; give --data PATH or a recipe to start one"),
        (["--data", "photos", "-o", "photos"], "photos lies among the images in photos"),
        (["--data", ".", "-o", "run"], "run lies among the images in ., "),
        (["--data", "photos", "-o", "photos/run", "--dry-run"], "choose a folder outside photos"),
        (["--data", "photos", "--holdout", "0%"], "which is none of 12 images"),
        (["--data", "photos", "--holdout", "0"], "which is none of 12 images"),
        (["--data", "photos", "--holdout", "100%"], "which is 12 of 12 images"),
        (["--data", "photos", "--holdout", "13"], "holdout: got 13, but there are 12 images; expected"),
        (["--data", "photos", "--holdout", "some"], "expected a share such as 10%"),
        (["--data", "photos", "--holdout", "-3"], "expected a share such as 10%"),
        (["--data", "photos", "--holdout", "2.5"], "expected a share such as 10%"),
        (["--data", "photos", "--holdout", ""], "expected a share such as 10%"),
    ],
)
def test_a_mistake_is_one_line(train_command, tmp_path, words, expected):
    photos(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.yaml").write_text("lrr: 1\n")
    (tmp_path / "good.yaml").write_text("lr: 1e-3\n")
    told = train_command("train", *words, *CPU)
    assert isinstance(told.exception, ValueError), told.output
    assert expected in str(told.exception)
    assert "\n" not in str(told.exception)
    assert len(list((tmp_path / "photos").iterdir())) == 12


def stored(path: Path) -> set[bytes]:
    return {image.tobytes() for image in open_dataset(path).images}


@pytest.mark.parametrize("kind", ["folder", "array", "prepared"])
def test_a_part_is_kept_aside_and_never_trained_on(train_command, tmp_path, kind):
    source = photos(tmp_path, 20)
    if kind == "array":
        pictures = sorted(source.iterdir(), key=lambda path: path.name)
        np.save(tmp_path / "all.npy", np.stack([np.asarray(Image.open(path)) for path in pictures]))
        source = tmp_path / "all.npy"
    assert train_command("data", "prepare", source, "-o", "all").exit_code == 0
    source = tmp_path / "all" if kind == "prepared" else source
    words = ["train", "heat", "--data", source, "-o", "run", *CPU, "--images", 8]
    first = train_command(*words, "--holdout", "20%", settings=SMALL)
    assert first.exit_code == 0, first.output
    assert "kept aside: 4 images in run/heldout, never trained on" in first.output
    described = read_run(tmp_path / "run")
    assert (described.data, described.heldout) == (tmp_path / "run" / "data", tmp_path / "run" / "heldout")
    trained, aside = stored(described.data), stored(described.heldout)
    assert (len(trained), len(aside)) == (16, 4)
    assert trained | aside == stored(tmp_path / "all")
    assert not trained & aside
    assert find("run").meta["data"]["images"] == 16
    for again in (["train", "-o", "run", "--images", 12, *CPU], [*words[:-1], 16], [*words, "--holdout", "4"]):
        told = train_command(*again, settings=SMALL if "--data" in again else ())
        assert told.exit_code == 0, told.output
        assert read_run(tmp_path / "run").heldout == described.heldout
    if kind == "folder":
        other = train_command(*words, "--holdout", "10%", settings=SMALL)
        assert "run kept 4 of 20 images aside, --holdout 10% is 2" in str(other.exception)
    inside = train_command("train", "heat", "--data", "run/data", "-o", "run", "--holdout", "2", *CPU, settings=SMALL)
    assert "are the images of the run itself" in str(inside.exception)


def test_a_shorter_recipe_is_shorter_in_everything():
    full = recipe("cifar10-ve")
    part = scaled(full, {"images": full.images // 100, "log_every": 3000})
    assert part.warm_up == full.warm_up // 100
    assert part.log_every == 3000  # as given
    assert part.checkpoint_every == 100 * full.batch  # not every few steps
    assert part.sample_every == 2_560_000 // 100
    double = scaled(full, {"images": 2 * full.images})
    for key in ("warm_up", "log_every", "checkpoint_every", "sample_every"):
        assert getattr(double, key) == 2 * getattr(full, key)
    assert scaled(full, {"lr": 1e-3}) == full.changed({"lr": 1e-3})
    assert scaled(full, {"images": 0}) == full.changed({"images": 0})
    assert scaled(full.changed({"sample_every": 0}), {"images": 10**6}).sample_every == 0


def test_ctrl_c_before_the_first_step_says_how_to_continue(tmp_path):
    photos(tmp_path)
    settings = [word for item in [*TINY, "calibration=200000"] for word in ("--set", item)]
    words = ["train", "anisotropic", "--data", "photos", "-o", "run", "--images", "8", "--device", "cpu", *settings]
    source = str(Path(__file__).parents[2] / "src")
    env = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    run = [sys.executable, "-m", "anisodiff"]
    with interruptible():
        child = subprocess.Popen([*run, *words], cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    with child:
        assert child.stderr is not None
        for line in child.stderr:
            if "measuring the preconditioning on 12 images, 200000 draws in all" in line:
                break
        child.send_signal(signal.SIGINT)
        rest = child.stderr.read().strip().splitlines()
    assert child.returncode == 130
    assert rest[-1] == "stopped; continue with: anisodiff train -o run"
    assert "Traceback" not in "".join(rest)
    described = read_run(tmp_path / "run")
    assert described.data == tmp_path / "run" / "data"
    assert described.config.calibration == 200000


def test_a_dry_run_says_what_would_become_of_the_run_there(train_command, tmp_path):
    photos(tmp_path)
    folder(tmp_path / "others", count=13)
    words = ("train", "heat", "--data", "photos", *CPU, "--images", 4)
    for never in ((), ("--resume", "never")):
        told = train_command(*words, *never, "--dry-run", settings=TINY).output
        assert "without --dry-run" not in told
    assert train_command(*words, settings=TINY).exit_code == 0
    steps = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    for more, says in (
        ((), "this command would continue it"),
        (("--images", 8), "this command would continue it"),
        (("--set", "lr=0.5"), "would be refused (run was begun with other settings: lr was "),
        (("--resume", "never"), "would be refused (run already holds a run; continue it with --resume auto"),
        (("--data", "others"), "holds another dataset (folder photos, 12 files)"),
    ):
        told = train_command(*words, *more, "--dry-run", settings=TINY)
        assert told.exit_code == 0, told.output
        (line,) = (line for line in told.output.splitlines() if "without --dry-run" in line)
        assert says in line, line
        assert line.count("choose another") == ("refused" in line), line
        real = train_command(*words, *more, settings=TINY)
        assert bool(real.exit_code) == ("refused" in line), real.output
    assert steps <= {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    named = train_command("train", "--network", "tiny", *CPU, "--dry-run")  # it keeps its arguments
    assert "this command would continue it" in named.output
    shutil.rmtree(tmp_path / "run" / "checkpoints")  # the images alone are in the way, too
    words = ("train", "heat", "--data", "others", *CPU, "--images", 4)
    told = train_command(*words, "--dry-run", settings=TINY).output
    assert "# without --dry-run this command would be refused (" in told
    assert "data holds another dataset" in told
    assert told.count("choose another") == 1
    assert train_command(*words, settings=TINY).exit_code == 1


def test_a_dry_run_compares_the_part_that_is_trained_on(train_command, tmp_path):
    """Of a prepared dataset cut in two, the run knows the fingerprint of one part."""
    photos(tmp_path, count=20)
    assert train_command("data", "prepare", "photos", "-o", "set", "--size", 8).exit_code == 0
    words = ("train", "heat", "--data", "set", "--holdout", "20%", *CPU, "--images", 4)
    assert train_command(*words, settings=SMALL).exit_code == 0
    assert "this command would continue it" in train_command(*words, "--dry-run", settings=SMALL).output
    assert train_command(*words, settings=SMALL).exit_code == 0


def test_the_first_line_names_the_folder_that_is_continued(train_command, tmp_path):
    photos(tmp_path)
    folder(tmp_path / "others", count=13)
    assert train_command("data", "prepare", "others", "-o", "set", "--size", 8).exit_code == 0
    words = ("train", "heat", "--data", "photos", *CPU, "--images", 6)
    assert "run in run" not in train_command(*words, settings=TINY).output
    for more in ((), words):
        told = train_command(*(more or ("train", *CPU)), settings=TINY)
        assert told.output.splitlines()[0] == "continuing the run in run", told.output
        assert "already finished: 8 images seen; train longer" in told.output  # of 6 in batches of 4
        assert "continuing from" not in told.output
    for more, says in (  # a refusal is the only line
        (("train", "ve", *words[2:]), "run holds a run of heat, not of ve; choose another folder"),
        (
            (*words, "--set", "lr=0.5"),
            "run was begun with other settings: lr was 0.0004, now 0.5; choose another folder, or start a new ",
        ),
        ((*words, "--data", "others"), "to continue the run"),
        ((*words, "--data", "set"), "run holds a run on other images (folder photos, 12 files); choose another"),
    ):
        told = train_command(*more, settings=TINY)
        assert says in str(told.exception), told.output
        assert "overwrite" not in str(told.exception)
        assert not told.output
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    told = train_command("train", *CPU)
    assert told.output.splitlines()[0] == "starting the run that run/config.yaml describes", told.output


def test_pictures_that_are_enlarged_are_told_once(train_command, tmp_path):
    photos(tmp_path)
    Image.new("L", (1, 1)).save(tmp_path / "photos" / "dot.png")
    line = "1 of 13 {}images is enlarged by more than a factor of two, the smallest from 1×1"
    words = ("train", "heat", "--data", "photos", *CPU, "--images", 4)
    dry = train_command(*words, "--dry-run", settings=TINY).output
    assert dry.count(line.format("sampled ")) == dry.count("more than a factor of two") == 1
    told = train_command(*words, settings=TINY).output
    assert told.count(line.format("")) == told.count("more than a factor of two") == 1
    for more in (("train", "heat", "--dry-run", "--data", "run/data"), ("data", "prepare", "photos", "-o", "set")):
        assert train_command(*more, settings=TINY if more[0] == "train" else ()).output.count(line.format("")) == 1


def test_small_sets_are_told(train_command, tmp_path):
    photos(tmp_path)
    told = train_command("train", "heat", "--data", "photos", *CPU, "--images", 4, settings=TINY)
    assert "12 images: the model will memorize them" in told.output
    words = ("train", "heat", "--data", "photos", *CPU, "--dry-run", "-o", "other")
    assert "# up to 12 images: the model will memorize them" in train_command(*words, settings=TINY).output
    words = (*words, "--holdout", 2)
    assert "# up to 10 images: the model will memorize them" in train_command(*words, settings=TINY).output
    assert "measuring the preconditioning on 12 images, 32 draws in all" in told.output
    told = train_command("train", "-o", "run", "--images", 0, *CPU)
    assert "memorize" not in told.output
    (tmp_path / "run" / NAME).write_text("lr: [")
    assert NAME in str(train_command("train", "-o", "run", *CPU).exception)


def test_the_first_grid_comes_by_the_clock_and_changes_nothing(dataset, calm, tmp_path):
    """One grid as soon as the time is up, the next one not before ``sample_every``; the weights do not notice."""
    steps: list[int] = []

    def show(model, step, prior):
        steps.append(step)
        return len(steps) > 1  # the first time it would take too long

    stages: dict[str, str] = {}
    hooks = Hooks(
        on_interval=show,
        first_after=1e-9,
        progress=lambda stage, done, total, note="": stages.__setitem__(stage, note),
    )
    train(tiny(sample_every=36), dataset, tmp_path, hooks=hooks, track=())
    assert steps == [1, 2, 9]
    assert_equal(tmp_path, calm)
    assert list(stages) == ["calibrating", "training"]  # the images were checked before
    assert "images/s, loss " in stages["training"]
    records = read_log(tmp_path)
    assert 0 < records[0]["first_step_seconds"] < records[1]["first_grid_seconds"]
    assert all("first_step_seconds" not in record for record in records[1:])


def test_a_start_that_is_refused_leaves_no_new_run(train_command, tmp_path):
    """Before its images are prepared: what keeps the weights from being read, too."""
    folder(tmp_path / "photos", count=20)
    words = ["train", "ve", "--data", "photos", "--images", 8, *CPU]
    assert train_command(*words, "-o", "start", settings=SMALL).exit_code == 0
    step = newest(tmp_path / "start").path
    meta = json.loads((step / "config.json").read_text())
    for config in ({"nf": 16384}, {"nf": "1e5"}, {"blocks": 256}):
        changed = {**meta["config"], "network": {**meta["config"]["network"], **config}}
        forge_config(step, {**meta, "config": changed})
        told = train_command(*words, "-o", "new", "--from", "start", settings=SMALL)
        assert told.exit_code != 0
        assert not (tmp_path / "new").exists(), config
    forge_config(step, meta)
    assert train_command(*words, "-o", "new", "--from", "start", settings=SMALL).exit_code == 0


def test_a_refused_holdout_leaves_the_run_as_it_was(train_command, tmp_path):
    folder(tmp_path / "photos", count=20)
    words = ["train", "ve", "--data", "photos", "-o", "run", "--images", 8, *CPU]
    assert train_command(*words, settings=SMALL).exit_code == 0
    told = train_command(*words, "--holdout", "20%", settings=SMALL)
    assert "run kept 0 of 20 images aside, --holdout 20% is 4; omit --holdout to" in str(told.exception)
    assert not (tmp_path / "run" / "heldout").exists()
    assert train_command(*words, settings=SMALL).exit_code == 0
    told = train_command(*words[:5], "other", *words[6:], "--holdout", 1, settings=SMALL)
    assert "expected at least 2" in str(told.exception)


def test_a_run_without_its_file_continues_from_its_checkpoint(train_command, tmp_path):
    folder(tmp_path / "photos", count=20)
    words = ["train", "ve", "--data", "photos", "-o", "run", "--holdout", "20%", "--images", 8, *CPU]
    assert train_command(*words, settings=SMALL).exit_code == 0
    before = read_run(tmp_path / "run")
    (tmp_path / "run" / "config.yaml").unlink()
    assert read_run(tmp_path / "run") == before
    assert train_command("train", "-o", "run", "--images", 16, *CPU).exit_code == 0
    assert read_run(tmp_path / "run").heldout == tmp_path / "run" / "heldout"
    assert find("run").step == 4


def test_a_dry_runs_file_has_start_and_held_out_part(train_command, tmp_path):
    folder(tmp_path / "photos", count=20)
    words = ["train", "ve", "--data", "photos", "-o", "run", "--holdout", "20%", "--images", 8, *CPU]
    assert train_command(*words, settings=SMALL).exit_code == 0
    dry = train_command("train", "ve", "--data", "photos", "--from", "run", "--dry-run", *CPU, settings=SMALL)
    (tmp_path / "dry.yaml").write_text(dry.stdout[dry.stdout.index("process:") :])
    assert read_run(tmp_path / "dry.yaml").start == tmp_path / "run"
    dry = train_command("train", "--data", "photos", "--holdout", "20%", "--dry-run", *CPU, settings=SMALL)
    (tmp_path / "part.yaml").write_text(dry.stdout[dry.stdout.index("process:") :])
    assert "holdout: 20%" in train_command("train", "--config", "part.yaml", "--dry-run", *CPU).stdout
    assert train_command("train", "--config", "part.yaml", "-o", "parted", "--images", 8, *CPU).exit_code == 0
    assert len(open_dataset(tmp_path / "parted" / "heldout")) == 4
    dry = train_command("train", "--config", "run", "--dry-run", *CPU)
    (tmp_path / "again.yaml").write_text(dry.stdout)
    assert read_run(tmp_path / "again.yaml").heldout == tmp_path / "run" / "heldout"


def test_the_length_scales_a_file_as_it_scales_a_recipe(train_command, tmp_path):
    folder(tmp_path / "photos", count=20)
    config = TrainConfig(process="ve", network="tiny", size=8, channels=1, images=8000, warm_up=800, batch=4)
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(config.to_dict()))
    told = train_command("train", "--config", "long.yaml", "--data", "photos", "--images", 80, "--dry-run", *CPU)
    assert "warm_up: 8\n" in told.stdout
