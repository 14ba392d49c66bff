"""Stopped, killed, damaged, refused: a run goes on as if nothing had been."""

import dataclasses
import json
import os
import resource
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import kill_soak
from safetensors.torch import load, load_file, save

from anisodiff.data.dataset import fingerprint, open_dataset
from anisodiff.io.checkpoint import alone, folder_of
from anisodiff.io.tensor_files import put_tensors
from anisodiff.processes import presets
from anisodiff.training import Damaged, Hooks, Plan, find, load_model, newest, read, read_log, train
from anisodiff.training.setup import describe, differences
from anisodiff.training.start import load_start
from tests.support.children import in_child
from tests.support.forged import forge, forge_config
from tests.training.conftest import SMALL, WINDOWS, assert_equal, folder, tiny


def steps(run) -> list[str]:
    return sorted(path.name for path in folder_of(run).iterdir())


def test_keeps_the_last_two(calm):
    assert steps(calm) == ["step-00000009", "step-00000010"]


@pytest.mark.parametrize("process", ["heat", WINDOWS], ids=["heat", "windows"])
def test_continuing_is_bitwise_equal_to_never_having_stopped(dataset, tmp_path, process):
    config = tiny(process=process)
    train(config, dataset, tmp_path / "calm", track=())
    for images in (4, 12, 28, 40):
        train(dataclasses.replace(config, images=images), dataset, tmp_path / "run", track=())
    assert_equal(tmp_path / "run", tmp_path / "calm")


def test_ctrl_c_saves_and_exits(dataset, calm, tmp_path):
    for number in (signal.SIGINT, signal.SIGTERM):
        done = []

        def ask(_, done=done, number=number):
            done.append(None)
            if len(done) == 2:
                os.kill(os.getpid(), number)

        outcome = train(tiny(), dataset, tmp_path, hooks=Hooks(on_log=ask), track=())
        assert not outcome.finished
        assert newest(tmp_path).step == outcome.step
    assert train(tiny(), dataset, tmp_path, track=()).finished
    assert_equal(tmp_path, calm)
    assert [record["step"] for record in read_log(tmp_path)] == sorted({r["step"] for r in read_log(tmp_path)})


def test_a_fault_at_every_write(dataset, tmp_path):
    """The n-th effect on the disk fails, for every n: the run goes on, and ends where it would have."""
    config = tiny(process="ve", images=28, ema="constant(0.9)")
    train(dataclasses.replace(config, images=20), dataset, tmp_path / "half", track=())

    def continued(name: str, fatal: int) -> tuple[Path, list[str], list[str]]:
        """A run from step 5 on, whose effect number ``fatal`` fails; its effects, and what it said."""
        run, seen, said = tmp_path / name, list[str](), list[str]()
        shutil.copytree(tmp_path / "half", run)

        def observe(effect: str) -> None:
            seen.append(effect)
            if len(seen) == fatal:
                raise OSError(5, "Input/output error")  # of a full disk: tests/attacks

        hooks = Hooks(observe=observe, say=said.append)
        assert train(config, dataset, run, hooks=hooks, track=()).finished
        return run, seen, said

    calm, effects, _ = continued("undisturbed", 0)
    count = effects.index("begin", 1)  # all those of the first checkpoint written
    assert {"begin", "write model.safetensors", "sync manifest.json", "rename"} < set(effects[:count])
    assert effects[count - 1] == "prune step-00000003"
    for fatal in range(1, count + 1):
        run, _, said = continued(f"run-{fatal}", fatal)
        complained = [line for line in said if "step 6: Input/output error; last good: step-00000005" in line]
        assert len(complained) == (fatal < count)  # what cannot be pruned is no loss
        for step in folder_of(run).glob("step-*"):
            read(step)
        assert not list(folder_of(run).glob(".partial-*"))
        assert_equal(run, calm)


def test_a_failing_last_write_is_one_clear_line(dataset, tmp_path):
    train(tiny(images=20), dataset, tmp_path, track=())

    def fail(name: str):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"step 10: No space left on device; last good: step-00000005"):
        train(tiny(), dataset, tmp_path, hooks=Hooks(observe=fail), track=())
    assert newest(tmp_path).step == 5


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "manifest", "config"])
def test_a_damaged_newest_checkpoint_is_passed_over(dataset, calm, tmp_path, damage):
    run = tmp_path / "run"
    shutil.copytree(calm, run)
    last = folder_of(run) / "step-00000010"
    victim = last / {"manifest": "manifest.json", "config": "config.json"}.get(damage, "state/optimizer.safetensors")
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "missing":
        victim.unlink()
    else:
        victim.write_bytes(data[: len(data) // 2] if damage in ("cut", "manifest") else data)
    with pytest.raises(Damaged):
        read(last)
    assert find(run).step == 9
    said: list[str] = []
    train(tiny(), dataset, run, hooks=Hooks(say=said.append), track=())
    assert any("damaged" in line and "step-00000010" in line for line in said)
    assert any("continuing from step-00000009" in line for line in said)
    assert_equal(run, calm)


def test_nothing_whole_is_not_overwritten(dataset, calm, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(calm, run)
    for step in folder_of(run).iterdir():
        (step / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"no checkpoint of .* is complete"):
        train(tiny(), dataset, run, track=())
    with pytest.raises(ValueError, match=r"manifest.json is missing: the checkpoint is incomplete"):
        find(run)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"process.diffusivity": 1.0}, "process.diffusivity was 'geometric.* now"),
        ({"lr": 5e-4}, "lr was 0.001, now 0.0005"),
        ({"batch": 8, "seed": 3}, "batch was 4, now 8; seed was 0, now 3"),
        ({"network.nf": 16}, "network.nf was 8, now 16"),
        ({"ema": "constant(0.9)"}, "ema"),
        ({"weighting": "noise"}, "weighting was 'state', now 'noise'"),
    ],
)
def test_another_run_is_refused_by_name(dataset, calm, changes, words):
    before = {path: path.read_bytes() for path in folder_of(calm).rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=words):
        train(tiny().changed(changes), dataset, calm, track=())
    assert before == {path: path.read_bytes() for path in folder_of(calm).rglob("*") if path.is_file()}


def test_other_data_are_refused(dataset, calm):
    pixels = 255 - dataset.images
    other = dataclasses.replace(dataset, images=pixels, fingerprint=fingerprint(pixels))
    with pytest.raises(ValueError, match=r"holds a run on other images \(array .*\); choose another"):
        train(tiny(), other, calm, track=())
    with pytest.raises(ValueError, match="the data are 1×8×8"):
        train(tiny(channels=3), dataset, calm, track=())


def test_length_and_intervals_may_change(dataset, calm, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(calm, run)
    longer = tiny(images=48, log_every=4, checkpoint_every=0, accumulation=2)
    assert train(longer, dataset, run, track=()).step == 12


def test_never_and_in_use(dataset, calm):
    with pytest.raises(ValueError, match=r"already holds a run \(step-00000010\)"):
        train(tiny(), dataset, calm, resume=False, track=())
    with alone(calm), pytest.raises(ValueError, match="in use by another run"):
        train(tiny(), dataset, calm, track=())


def test_what_a_checkpoint_says_and_loads(dataset, calm):
    saved = find(calm)
    assert saved.step == 10
    assert saved.meta["images"] == 40
    assert saved.meta["data"]["fingerprint"] == dataset.fingerprint
    assert saved.meta["process"]["step"] == "exact"
    loaded = load_model(calm)
    u = torch.rand(2, 1, 8, 8)
    t = torch.tensor([0.3, 1.5], dtype=torch.float64)
    score, _ = loaded.model(u, t)
    assert score.shape == u.shape
    tensors = load_file(saved.path / "model.safetensors")
    assert tensors.keys() == loaded.model.state_dict().keys()
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, tensors[name])


def test_a_run_of_an_older_version_goes_on(dataset, calm):
    """A setting that did not exist yet was at its default."""
    saved = newest(calm)
    meta = {
        **saved.meta,
        "config": {k: v for k, v in saved.meta["config"].items() if k not in ("times", "channel_pca")},
    }
    assert differences(meta, describe(Plan.of(tiny()), dataset)) == []
    other = describe(Plan.of(dataclasses.replace(tiny(), times="uniform")), dataset)
    assert differences(meta, other) == ["times was 'level', now 'uniform'"]


def test_hooks_see_the_averaged_model_and_keep_the_prior(dataset, tmp_path):
    seen = {}
    u, t = torch.rand(2, 1, 8, 8), torch.tensor([0.3, 1.5], dtype=torch.float64)

    def look(model, step, prior):
        assert prior["mean"].shape == (1, 8, 8)  # also in a run that was continued
        with torch.no_grad():
            seen[step] = model(u, t)[0].clone()

    config = tiny(sample_every=20)
    hooks = Hooks(on_interval=look, fit_prior=lambda process, images: {"mean": images.mean(0)})
    train(dataclasses.replace(config, images=20), dataset, tmp_path, hooks=hooks, track=())
    train(config, dataset, tmp_path, hooks=Hooks(on_interval=look), track=())
    assert sorted(seen) == [5, 10]
    loaded = load_model(tmp_path)
    torch.testing.assert_close(loaded.model(u, t)[0], seen[10])
    assert loaded.prior["mean"].shape == (1, 8, 8)


def test_tensors_of_every_kind_are_safetensors(tmp_path):
    tensors = {
        "a": torch.rand(3, 4), "b": torch.rand(2, dtype=torch.float64), "c": torch.arange(5), "d": torch.tensor(1.5),
        "e": torch.rand(0, 3), "f": torch.rand(2, 3).bfloat16(), "g": torch.rand(2, 3, 4, 4).mT,
        "h": torch.tensor([True, False]), "i": torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    }  # fmt: skip
    put_tensors(tmp_path / "x.safetensors", tensors)
    back = load_file(tmp_path / "x.safetensors")
    assert back.keys() == tensors.keys()
    for name, value in tensors.items():
        assert back[name].dtype == value.dtype
        assert torch.equal(back[name], value)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_full_disk_loses_nothing(dataset, calm, tmp_path):
    run, said = tmp_path / "run", tmp_path / "said.txt"
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_log(record) -> None:  # the disk is full between steps 4 and 8
        full = 4 <= record["step"] < 8
        resource.setrlimit(resource.RLIMIT_FSIZE, (6000 if full else hard, hard))

    def work() -> None:
        lines: list[str] = []
        outcome = train(tiny(), dataset, run, hooks=Hooks(on_log=on_log, say=lines.append), track=())
        said.write_text("\n".join(lines))
        assert outcome.finished

    assert in_child(work) == 0
    assert "cannot write a checkpoint at step 6: File too large; last good: step-00000003" in said.read_text()
    assert_equal(run, calm)
    assert steps(run) == ["step-00000009", "step-00000010"]


def test_six_kills(monkeypatch, capsys):
    """kill −9 at random moments and while writing; the script compares every file with an undisturbed run's."""
    monkeypatch.setattr(sys, "argv", ["kill_soak.py", "--kills", "6", "--steps", "12", "--json"])
    with pytest.raises(SystemExit) as ended:
        kill_soak.main()
    result = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0, result
    assert result["ok"]
    assert result["kills"] == 6
    assert result["while_writing"] == 3
    assert result["equal"] == result["rounds"] >= 1
    assert (result["damaged"], result["failed"]) == (0, 0)


def test_a_start_that_lacks_a_key_is_used_or_refused_in_one_line(dataset, tmp_path):
    """What every checkpoint has is required; a setting that did not exist yet was at its default."""
    train(tiny(images=4), dataset, tmp_path / "start", track=())
    plan = Plan.of(tiny())
    place, about = find(tmp_path / "start").path, describe(plan, dataset)
    whole = json.loads((place / "config.json").read_text())
    groups = {key: value for key, value in whole.items() if isinstance(value, dict)}
    paths = [*((key,) for key in whole), *((key, inner) for key, group in groups.items() for inner in group)]
    refused = set()
    for path in paths:
        lacking = json.loads(json.dumps(whole))
        (lacking if len(path) == 1 else lacking[path[0]]).pop(path[-1])
        forge_config(place, lacking)
        try:
            load_start(tmp_path / "start", plan, about)
        except ValueError as error:
            assert "\n" not in str(error)
            refused.add(path)
    required = {("config",), ("process",), ("network",), ("data",), ("step",), ("images",), ("data", "fingerprint")}
    assert required <= refused
    assert ("version",) not in refused
    assert ("config", "label_dropout") not in refused


def test_a_refused_start_writes_nothing_beside_the_images(calm, dataset, tmp_path):
    """What can be refused at once is refused before hours of reading, and leaves no verified.json."""
    shutil.copytree(dataset.path, tmp_path / "data", ignore=shutil.ignore_patterns("verified.json"))
    images = open_dataset(tmp_path / "data")
    other = tiny(network={**tiny().network, "blocks": 2})
    with pytest.raises(ValueError, match="its network differs: "):
        train(other, images, tmp_path / "run", start=calm, track=())
    assert not (tmp_path / "data" / "verified.json").exists()
    train(tiny(images=0), images, tmp_path / "run", start=calm, track=())
    assert (tmp_path / "data" / "verified.json").is_file()


def test_a_state_that_cannot_be_read_leaves_the_run_as_it_was(calm, dataset, tmp_path):
    """The checksum fits, the tensors do not: refused before config.yaml says that the run is to go on."""
    shutil.copytree(calm, tmp_path / "run")
    (tmp_path / "run" / "config.yaml").unlink(missing_ok=True)
    forge(newest(tmp_path / "run").path, "state/optimizer.safetensors", b"no tensors")
    with pytest.raises(ValueError, match=r"cannot read .*optimizer"):
        train(tiny(images=80), dataset, tmp_path / "run", track=())
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize("file", ["weights", "optimizer", "counters"])
def test_a_state_with_other_tensors_is_refused_in_one_line(calm, dataset, tmp_path, file):
    """Missing, too many, or of a shape that would be broadcast."""
    shutil.copytree(calm, tmp_path / "run")
    step = newest(tmp_path / "run").path
    whole = load((step / "state" / f"{file}.safetensors").read_bytes())
    name = sorted(whole)[0]
    for changed in (
        {key: x for key, x in whole.items() if key != name},
        {**whole, "another": whole[name].clone()},
        {**whole, name: whole[name].reshape(-1)[:1].reshape([1] * (whole[name].dim() + 1))},
    ):
        forge(step, f"state/{file}.safetensors", save(changed))
        with pytest.raises(ValueError, match=rf"state/{file}\.safetensors is damaged: ") as caught:
            train(tiny(images=80), dataset, tmp_path / "run", track=())
        assert "\n" not in str(caught.value)


TABLES = ("edges", "phases", "mean", "axes", "data", "shares", "log_noise", "weight")


@pytest.mark.parametrize("table", TABLES)
def test_tables_of_another_shape_are_refused_in_one_line(calm, dataset, tmp_path, table):
    """By sampling and by a run that goes on: one value would be broadcast, or end in a traceback."""
    shutil.copytree(calm, tmp_path / "run")
    step, name = newest(tmp_path / "run").path, f"statistics_{table}"
    whole = load((step / "model.safetensors").read_bytes())
    for changed in (whole[name].flatten()[:1].clone(), torch.cat([whole[name]] * 2)):
        if changed.shape == whole[name].shape:
            continue
        forge(step, "model.safetensors", save({**whole, name: changed}))
        for work in (
            lambda: load_model(tmp_path / "run"),
            lambda: train(tiny(images=80), dataset, tmp_path / "run", track=()),
        ):
            with pytest.raises(ValueError, match=r"the tables in model\.safetensors are damaged: ") as caught:
                work()
            assert "\n" not in str(caught.value)


def test_a_log_that_leads_in_a_circle_is_refused_before_anything_is_written(calm, dataset, tmp_path):
    shutil.copytree(calm, tmp_path / "run")
    (tmp_path / "run" / "log.jsonl").unlink()
    (tmp_path / "run" / "log.jsonl").symlink_to("log.jsonl")
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    with pytest.raises(ValueError, match=r"log\.jsonl"):
        train(tiny(images=80), dataset, tmp_path / "run", track=())
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


def test_a_run_keeps_its_process_when_its_preset_changes(train_command, tmp_path, monkeypatch):
    folder(tmp_path / "photos", count=12)
    cpu = ("--device", "cpu")
    words = ["train", "heat", "--data", "photos", *cpu]
    assert train_command(*words, "--images", 24, "-o", "calm", settings=[*SMALL, "size=8"]).exit_code == 0
    assert train_command(*words, "--images", 12, settings=[*SMALL, "size=8"]).exit_code == 0
    before = presets.heat
    monkeypatch.setattr(presets, "heat", lambda size: {**before(size), "intensity": "geometric(0.01, 1)"})
    again = train_command("train", "--images", 16, *cpu)
    assert again.exit_code == 0, again.output
    whole = train_command(*words, "--images", 24, settings=[*SMALL, "size=8"])  # the first command, repeated
    assert whole.exit_code == 0, whole.output
    assert_equal(tmp_path / "run", tmp_path / "calm")
    for words_of_another, says in (
        (("train", "--set", "process.intensity=2"), "another run: process.intensity was "),
        (("train", "ve"), "run holds a run of heat, not of ve; choose another folder"),
        (("train", "flow-matching"), "run holds a run of heat, not of flow-matching; choose another folder"),
        (("train", "--data", "photos", "heat", "--resume", "never"), "run already holds a run; continue it with"),
    ):
        refused = train_command(*words_of_another, "--images", 32, *cpu)
        assert says in str(refused.exception)
    for more in (("--dry-run",), ("--dry-run", "--config", "run", "-o", "new")):  # as it was trained
        told = train_command("train", *more, *cpu)
        assert f"intensity: {before(8)['intensity']}" in told.output, told.output
        assert "would be refused" not in told.output
