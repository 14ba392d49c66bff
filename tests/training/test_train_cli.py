"""`anisodiff train` and `anisodiff data prepare`: what they print, write and refuse."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from anisodiff.networks import NCSNppConfig
from anisodiff.samplers import Sampler
from anisodiff.training import Plan, TrainConfig, find, load_model, read_log
from anisodiff.training.run_folder import read_run
from tests.support.published_ncsnpp import forward, published_file
from tests.training.conftest import NETWORK, SMALL, folder


def test_trains_on_a_folder_says_what_it_picked_and_continues(train_command, tmp_path):
    folder(tmp_path / "photos")
    words = ["train", "--data", "photos", "-o", "run", "--device", "cpu", "--seed", 3]
    first = train_command(*words, "--images", 20, settings=SMALL)
    assert first.exit_code == 0, first.output
    assert "picked for 12 images on cpu: 16×16, grayscale, process anisotropic-gentle, network tiny" in first.output
    assert "finished at step 5: 20 images seen" in first.output
    again = train_command(*words, "--images", 28, "--json", settings=SMALL)
    assert "continuing from step-00000005: 20 images seen" in again.output
    outcome = json.loads(again.stdout.splitlines()[-1])
    assert (outcome["step"], outcome["finished"], outcome["skipped"]) == (7, True, 0)
    assert find("run").meta["config"]["seed"] == 3
    assert [record["step"] for record in read_log("run")] == [2, 4, 5, 6, 7]
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    assert isinstance(train_command(*words, "--resume", "never", settings=SMALL).exception, ValueError)


def test_own_images_are_trained_on_with_the_network_of_the_start(train_command, tmp_path):
    folder(tmp_path / "photos")
    words = ["train", "--data", "photos", "--device", "cpu", "--images", 4, "--from", "cifar10-tiny", "-o"]
    few = ["batch=4", "calibration=16", "warm_up=0", "sample_every=0"]
    told = train_command(*words, "run", settings=few)
    assert told.exit_code == 0, told.output
    assert "picked for 12 images on cpu: 32×32, process anisotropic-gentle, network tiny, " in told.output
    assert "starting from the weights of cifar10-tiny, after 6400000 images" in told.output
    for changes, reason in (
        (
            ["network.name=small"],
            "its network is for 32×32, and these images are 16×16; set size=32, or prepare them in that size",
        ),
        (["network.nf=16"], "its network differs: "),
        (["process.preset=flow-matching"], "does not predict what that of flow-matching predicts"),
    ):
        for dry in ([], ["--dry-run"]):  # a dry run refuses what the command refuses, in the same words
            told = train_command(*words, "other", *dry, settings=[*few, *changes])
            assert reason in str(told.exception), (changes, dry, told.output)
            assert not (tmp_path / "other" / "data").exists()  # before the images are prepared


def test_dry_run_without_data_writes_nothing(train_command, tmp_path):
    small = [*SMALL[:4], "size=8", "channels=1"]
    told = train_command("train", "cifar10-heat-small", "--dry-run", "--device", "cpu", settings=small)
    assert told.exit_code == 0, told.output
    for words in ("preset: heat", "parameters: ", "memory: ", "time per thousand images on cpu", "step = exact"):
        assert words in told.output
    assert not list(tmp_path.iterdir())
    folder(tmp_path / "photos", side=24)
    told = train_command("train", "--data", "photos", "--dry-run", "--device", "cpu", settings=SMALL[:4])
    assert "picked for up to 12 images on cpu: 24×24, grayscale" in told.output, told.output
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
    numbers = json.loads(
        train_command("train", "cifar10-heat-small", "--dry-run", "--json", "--device", "cpu", settings=small).stdout
    )
    assert numbers["steps"] == 12_500
    assert numbers["parameters"] > 10_000
    assert numbers["state_bytes"] == numbers["parameters"] * 4 * 5  # weights, gradients, two moments, EMA
    assert numbers["seconds_per_thousand"] > 0
    assert numbers["activation_bytes"] > 512 * 8 * 8 * 8 * 4 * 4  # more than a few feature maps of every image


@pytest.mark.parametrize(
    ("data", "says"), [("nowhere", "cannot read nowhere"), ("photos", "photos is no complete CIFAR-10")]
)
def test_a_dry_run_refuses_images_as_the_command_does(train_command, tmp_path, data, says):
    folder(tmp_path / "photos")
    words = ("train", "cifar10-ve-small", "--data", data, "--device", "cpu")
    real, dry = train_command(*words), train_command(*words, "--dry-run")
    assert isinstance(dry.exception, ValueError), dry.output
    assert str(real.exception) == str(dry.exception)
    assert says in str(dry.exception)


def test_dry_run_of_a_large_recipe_made_small(train_command):
    small = ["network.name=small", *SMALL[1:4], "size=16"]
    told = train_command("train", "lsun256-anisotropic", "--dry-run", "--json", "--device", "cpu", settings=small)
    assert told.exit_code == 0, told.output
    numbers = json.loads(told.stdout)
    assert numbers["config"]["dataset"] == "lsun"
    assert (numbers["steps"], numbers["batch"]) == (2_400_000, 4)
    assert numbers["process"]["diffusivity"] == "geometric(0.5, 32)"


def test_fine_tuning_from_a_published_file(train_command, tmp_path):
    """From a file in the layout of score_sde_pytorch to a run that continues; its second output begins with 0."""
    folder(tmp_path / "photos")
    settings = [*SMALL, "network.name=small", "network.dropout=0.1", "lr=0", "size=8"]
    words = ["train", "--data", "photos", "-o", "run", "--device", "cpu", "--from", "published.pth"]
    plan = Plan.of(TrainConfig(network={**NETWORK, "dropout": 0.1}, size=8, channels=1))
    config = NCSNppConfig(**plan.network.arguments)
    _, averaged = published_file(tmp_path / "published.pth", replace(config, out_channels=1))
    first = train_command(*words, "--images", 8, settings=settings)
    assert first.exit_code == 0, first.output
    assert "averaged weights in published.pth, after step 1234; its second output begins with 0" in first.output
    saved = find("run")
    assert saved.meta["start"] == {"file": "published.pth", "step": 1234, "weights": "ema"}
    assert saved.meta["config"]["parameterization"] == "ve"
    loaded = load_model("run").model.network.network
    x, c = torch.rand(2, 1, 8, 8), torch.tensor([0.1, -1.0])
    with torch.no_grad():
        out = loaded(x, c)
        expected = forward(averaged, config, x.double(), c.double()).float()
    torch.testing.assert_close(out[:, :1], expected, rtol=1e-4, atol=1e-5)
    assert out[:, 1:].abs().max() == 0
    assert train_command(*words, "--images", 16, settings=settings).exit_code == 0
    assert find("run").step == 4
    assert torch.equal(load_model("run").model.network.network.embed.features.w, loaded.embed.features.w)
    told = train_command(
        *words[:-1], "published.pth", "-o", "other", settings=[*settings, "parameterization=residual"]
    )
    assert "set parameterization=ve" in str(told.exception)
    told = train_command(*words[:-1], "run", "-o", "other", settings=settings)
    assert "its network has parameterization 've', got 'residual'; set parameterization=ve" in str(told.exception)
    (tmp_path / "broken.pth").write_bytes(b"no tensors")
    told = train_command(*words[:-1], "broken.pth", "-o", "other", settings=settings)
    assert "cannot be read as a file of tensors only" in str(told.exception)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["cifar10-anisotropc"], "did you mean 'cifar10-anisotropic'"),
        (["cifar10-anisotropic"], "give --data PATH (cifar10's archive"),
        ([], "run holds no run; give --data PATH or a recipe to start one"),
        (["ve"], "no data for ve: give --data PATH with your own images"),
        (["heat", "--data", "nowhere"], "nowhere"),
        (["heat", "--data", "https://x.y/z.zip"], "URLs are not downloaded: download the file, then give its path"),
        (["cifar10-ve", "--set", "leraning_rate=1"], "unknown key 'leraning_rate'; did you mean 'lr'?"),
        (["cifar10-ve", "--set", "zzz=1"], "unknown key 'zzz'; 'anisodiff train --dry-run' prints all keys"),
        (["cifar10-ve", "--set", "lr"], "KEY=VALUE"),
        (["cifar10-ve", "--set", "network.droput=1"], "did you mean 'dropout'"),
        (["cifar10-ve", "--set", "learns=scor"], "did you mean 'score'"),
        (["cifar10-ve", "--dry-run", "--set", "learns=score"], "the drift is known"),
        (["celeba64-heat"], "give --data PATH (celeba's archive"),
        (["empty"], "'empty' is a path, not a recipe; did you mean --data empty?"),
        (["empty", "--data", "photos"], "'empty' is a path, not a recipe; for the folder of the run: -o empty"),
        (["begun"], "'begun' is a run, not a recipe; to continue it: anisodiff train -o begun"),
        (["begun", "--data", "photos"], "to continue it: anisodiff train -o begun"),
        (["cifar10-ve", "--resume", "sometimes"], "unknown --resume"),
        (["heat", "--data", "empty"], "empty"),
        (["cifar10-ve", "--data", "prepared"], "the data are 1×16×16"),
        (["cifar10-ve", "--data", "prepared", "--dry-run"], "the data are 1×16×16"),
        (["ve", "--data", "prepared", "--dry-run", "--set", "size=8"], "the data are 1×16×16"),
    ],
)
def test_a_mistake_is_one_line(train_command, tmp_path, words, expected):
    (tmp_path / "empty").mkdir()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "config.yaml").touch()
    assert train_command("data", "prepare", folder(tmp_path / "photos"), "-o", "prepared").exit_code == 0
    told = train_command("train", *words, "--device", "cpu")
    assert isinstance(told.exception, ValueError), told.output
    assert expected in str(told.exception)
    assert "\n" not in str(told.exception)


def test_data_prepare(train_command, tmp_path):
    source = folder(tmp_path / "photos")
    (source / "bad.png").write_bytes(b"not a picture")
    told = train_command("data", "prepare", "photos", "--output", "set", "--size", 8, "--channels", 3)
    assert told.exit_code == 0, told.output
    assert "skipped bad.png" in told.output
    assert "picked" not in told.output
    for number, (words, picked) in enumerate(
        [
            (["--size", 8], "; picked 1 channel (grayscale)\n"),
            (["--channels", 3], "; picked 16×16: all sampled images are 16×16\n"),
            ([], "; picked 16×16 with 1 channel (grayscale): all sampled images are 16×16\n"),
        ]
    ):
        assert picked in train_command("data", "prepare", "photos", "-o", f"other-{number}", *words).output
    facts = json.loads(
        train_command("data", "prepare", "photos", "-o", "set", "--size", 8, "--channels", 3, "--json").stdout
    )
    assert (facts["made"], facts["images"], facts["channels"], facts["size"]) == (False, 12, 3, [8, 8])
    for words, expected in (
        (["cifar11"], "cifar10"),
        (["cifar10"], "say where"),
        (["cifar100", "photos"], "unknown dataset 'cifar100'; did you mean 'cifar10'?"),
        (["https://x.y/z.zip"], "URLs are not downloaded: download the file"),
        (["./photo/"], "cannot read photo (No such file or directory): expected a folder"),
        (["photo"], "photo is neither a path nor a dataset; valid: cifar10"),
        (["photos", "more"], "photos is a path: expected no second one"),
        (["photos", "--split", "test"], "--split is for sets given by name"),
        (["photos", "--max-skipped", 0], "1 image cannot be used, expected at most 0"),
    ):
        told = train_command("data", "prepare", "-o", "other", *words)
        assert isinstance(told.exception, ValueError)
        assert expected in str(told.exception)


def test_keeps_a_prior_and_writes_grids_also_after_a_restart(train_command, tmp_path):
    folder(tmp_path / "photos")
    words = ["train", "ve", "--data", "photos", "-o", "run", "--device", "cpu"]
    settings = [*SMALL, "sample_every=8", "checkpoint_every=8", "size=8"]
    first = train_command(*words, "--images", 8, settings=settings)
    assert first.exit_code == 0, first.output
    prior = find("run").tensors("prior")
    assert prior["mean"].shape == (1, 8, 8)
    assert prior["root"].shape == (8, 8, 1, 1)
    assert train_command(*words, "--images", 16, settings=settings).exit_code == 0
    grids = sorted(path.name for path in (tmp_path / "run" / "samples").iterdir())
    assert grids == ["step-00000002.png", "step-00000004.png"]
    picture = np.asarray(Image.open(tmp_path / "run" / "samples" / grids[-1]))
    assert picture.shape == (530, 530, 3)
    assert picture.std() > 1


@pytest.mark.filterwarnings("ignore:.*torn.png")
def test_what_is_picked_follows_what_was_asked_for(train_command, tmp_path):
    """Batch and length on the command line are in the line that says what was picked.

    Dry or not, it is the same, but for the number of images: a dry run does not decode them all.
    """
    folder(tmp_path / "photos", side=256)
    words = ["train", "heat", "--data", "photos", "--images", 8, "--device", "cpu"]
    settings = [*SMALL, "size=8"]
    (tmp_path / "photos" / "torn.png").write_bytes(b"torn")
    picked = "12 images on cpu: 8×8, grayscale, process heat, network tiny (nf=8), batch 4, 8 images seen"
    dry = train_command(*words, "--dry-run", "--json", settings=settings)
    assert f"picked for {picked.replace('12', 'up to 13')}" in dry.output
    assert "up to 13 images: the model will memorize them" in dry.output
    assert not (tmp_path / "run").exists()
    ran = train_command(*words, "-o", "run", settings=settings)
    assert f"picked for {picked}" in ran.output
    assert "12 images: the model will memorize them" in ran.output
    assert "up to" not in ran.output
    resolved = json.loads(dry.stdout[dry.stdout.index("{\n") :])["config"]
    assert resolved == find("run").meta["config"]
    assert not resolved["recompute"]  # that is for 256², and 8² was asked for


@pytest.mark.parametrize("process", ["flow-matching", "cartoon"])
def test_a_process_given_as_a_key_is_picked_for_as_one_given_by_name(train_command, tmp_path, process):
    """t_min, the channels' axes and the network's time features follow the process, however it is given."""
    folder(tmp_path / "photos", side=16)
    words = ["train", "--data", "photos", "--device", "cpu", "--dry-run", "--json"]
    configs = []
    for named, key in (([process], []), ([], [f"process={process}"]), ([], [f"process.preset={process}"])):
        dry = train_command(words[0], *named, *words[1:], settings=key)
        configs.append(json.loads(dry.stdout[dry.stdout.index("{\n") :])["config"])
    assert configs[0] == configs[1] == configs[2]


def test_a_file_with_some_keys_keeps_its_dataset_and_its_held_out_images(train_command, tmp_path):
    folder(tmp_path / "photos", side=16)
    some = "process: ve\ndataset: cifar10\nsize: 8\n"
    (tmp_path / "named.yaml").write_text(some)
    told = train_command("train", "--config", "named.yaml", "--data", "photos", "-o", "run", "--device", "cpu")
    assert "photos is no complete CIFAR-10" in str(told.exception)
    train_command("data", "prepare", "photos", "-o", "aside", "--size", 8)
    train_command("data", "prepare", "photos", "-o", "set", "--size", 8)
    (tmp_path / "held.yaml").write_text("process: ve\ndata: set\nheldout: aside\n")
    ran = train_command(
        "train", "--config", "held.yaml", "-o", "run", "--images", 8, "--device", "cpu", settings=SMALL
    )
    assert ran.exit_code == 0, ran.output
    assert read_run(tmp_path / "run").heldout == tmp_path / "aside"


def test_a_mistake_is_told_before_the_images_are_prepared(train_command, tmp_path):
    folder(tmp_path / "photos")
    for setting, expected in (
        ("lrr=1", "did you mean 'lr'"),
        ("network.nf=33", "nf: got 33"),
        ("process.noise_anisotropy=0.1", "step='tamed'"),
        ("t_min=3", "less than T"),
    ):
        told = train_command("train", "--data", "photos", "-o", "run", "--device", "cpu", settings=[setting])
        assert expected in str(told.exception)
        assert not (tmp_path / "run").exists()


def test_a_run_that_ends_within_its_warm_up_is_told(train_command, tmp_path):
    folder(tmp_path / "photos")
    words = ["train", "heat", "--data", "photos", "--device", "cpu", "--images", 8]
    short = train_command(*words, "-o", "short", settings=[*SMALL, "size=8"])
    assert (
        "the warm-up of 20 images is longer than the run of 8: the learning rate ends at 0.00016, not" in short.output
    )
    assert "--set warm_up=" in short.output
    batches = train_command(*words[:-1], 6, "--dry-run", settings=[*SMALL, "size=8"])
    assert "# the warm-up of 20 images is longer than the run of 6 (8 in whole batches): " in batches.output
    enough = train_command(*words, "-o", "enough", settings=[*SMALL, "size=8", "warm_up=8"])
    assert "warm-up" not in enough.output


def test_grids_of_anisotropic_noise_are_drawn_with_its_own_noise(train_command, tmp_path, monkeypatch):
    """The usual sampler takes Σ for α2²: where the noise stops at edges another one must draw the grids."""
    folder(tmp_path / "photos")
    used = []
    run = Sampler.run
    monkeypatch.setattr(Sampler, "run", lambda self, *a, **k: used.append(self.name) or run(self, *a, **k))
    settings = [*SMALL, "size=8", "sample_every=4", "process.step=tamed(dt=0.1)"]
    for changes, word in (([], "exponential"), (["process.noise_anisotropy=0.1"], "euler")):
        words = ["train", "--data", "photos", "-o", word, "--images", 4, "--device", "cpu"]
        told = train_command(*words, settings=[*settings, *changes])
        assert told.exit_code == 0, told.output
        assert used.pop() == word
        assert (tmp_path / word / "samples" / "step-00000001.png").is_file()
