"""Many images on the disk: stopped, continued, grown, refused, joined; nothing finished is ever lost."""

import errno
import json
import shutil
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import anisodiff
from anisodiff.generation import SamplingConfig, read_protocol, write_samples
from anisodiff.io.grids import to_pixels
from anisodiff.metrics import image_set, read_batches
from anisodiff.metrics.protocol import Generation


class Silent(nn.Module):
    """The residual of the Wiener filter: nothing. Costs nothing, and the samples are those of Gaussian data."""

    def forward(self, x, condition, dropout_key=None):
        return torch.zeros_like(x)


class Rounding(nn.Module):
    """Answers depend on the shape of the batch and the place in it, as kernels round; only much more."""

    def forward(self, x, condition, dropout_key=None):
        place = torch.arange(len(x), dtype=x.dtype)[:, None, None, None]
        return torch.zeros_like(x) + 0.02 * place + 0.05 * len(x)


@pytest.fixture(scope="module")
def generator(runs):
    found = anisodiff.load(runs("heat"), "cpu")
    found.model.network = Silent()
    return found


def files(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class Fault:
    """Fails just before effect number ``fatal`` on the disk."""

    def __init__(self, fatal: int, error: BaseException) -> None:
        self.fatal, self.error, self.seen = fatal, error, 0

    def __call__(self, effect: str) -> None:
        self.seen += 1
        if self.seen == self.fatal:
            raise self.error


def test_a_thousand_samples_stopped_in_the_middle_are_the_same_files(generator, tmp_path):
    """Ten batches, stopped in the sixth."""
    seeds, options = range(1000), SamplingConfig(steps=2, batch=100)
    write_samples(generator, seeds, tmp_path / "calm", options)
    stopped = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        write_samples(generator, seeds, stopped, options, observe=Fault(2 * 543, KeyboardInterrupt()))
    assert len(list(stopped.glob("*.png"))) == 542
    said = []
    outcome = write_samples(generator, seeds, stopped, options, say=said.append)
    assert (outcome.made, outcome.count) == (1000 - 542, 1000)
    assert said == ["continuing: 542 of 1000 images are already there"]
    calm, other = files(tmp_path / "calm"), files(stopped)
    assert len(calm) == 1001
    assert calm == other


@pytest.mark.parametrize("kept", [[0, 1, 2], [0, 1, 2, 3, 4, 5, 6], [0, 2, 9, 10], []])
def test_a_restart_makes_the_batches_that_were_meant(runs, tmp_path, kept):
    """Rounding differs between shapes of a batch: what is missing is made beside its old neighbors."""
    rounding = anisodiff.load(runs("heat"), "cpu")
    rounding.model.network = Rounding()
    options = SamplingConfig(steps=3, batch=5)
    write_samples(rounding, range(12), tmp_path / "calm", options)
    stopped = tmp_path / "stopped"
    stopped.mkdir()
    for name in ("protocol.json", *(f"{seed:08d}.png" for seed in kept)):
        shutil.copy(tmp_path / "calm" / name, stopped / name)
    outcome = write_samples(rounding, range(12), stopped, options)
    assert files(stopped) == files(tmp_path / "calm")
    assert outcome.made == 12 - len(kept)
    batches = [range(5), range(5, 10), range(10, 12)]
    assert outcome.spent == 3 * sum(len(b) for b in batches if not set(b) <= set(kept))


def test_what_is_spent_is_counted_not_what_is_allowed(runs, tmp_path):
    """`dopri5` stops where its tolerance is met; every sample has its own number of evaluations."""
    flow = anisodiff.load(runs("flow-matching"), "cpu")
    options = SamplingConfig(steps=2000, sampler="dopri5(tolerance=1e-3)", batch=2)
    outcome = write_samples(flow, range(4), tmp_path / "made", options)
    parts = [range(2), range(2, 4)]
    found = [flow.sample_with(flow.reverse_process(options), part, flow.prior(), batch=2).nfe for part in parts]
    assert outcome.spent == round(2 * sum(found))
    assert 4 * 7 <= outcome.spent < 4 * 2000


def test_a_full_disk_is_one_line_and_loses_nothing(generator, tmp_path):
    for fatal in (1, 7, 8):  # the first write, a write and a rename in the middle
        folder = tmp_path / str(fatal)
        full = Fault(fatal, OSError(errno.ENOSPC, "No space left on device"))
        with pytest.raises(OSError, match="No space left on device") as caught:
            write_samples(generator, range(8), folder, SamplingConfig(steps=2), observe=full)
        finished = (fatal - 1) // 2
        assert f"{finished} finished images are kept" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert caught.value.errno == errno.ENOSPC
        assert sorted(files(folder)) == [*(f"{seed:08d}.png" for seed in range(finished)), "protocol.json"]
        assert write_samples(generator, range(8), folder, SamplingConfig(steps=2)).made == 8 - finished


@pytest.mark.parametrize("suffix", [".zip", ".npz", ".png"])
def test_one_file_is_joined_from_parts_that_survive(generator, tmp_path, suffix):
    calm, out = tmp_path / f"calm{suffix}", tmp_path / f"out{suffix}"
    write_samples(generator, range(12), calm, SamplingConfig(steps=3))
    with pytest.raises(KeyboardInterrupt):
        write_samples(generator, range(12), out, SamplingConfig(steps=3), observe=Fault(11, KeyboardInterrupt()))
    parts = tmp_path / f"out{suffix}.parts"
    assert len(list(parts.glob("*.png"))) == 5
    assert not out.exists()
    with pytest.raises(ValueError, match="samples: steps was 3, now 4; choose"):
        write_samples(generator, range(12), out, SamplingConfig(steps=4))
    assert write_samples(generator, range(12), out, SamplingConfig(steps=3)).made == 7
    assert out.read_bytes() == calm.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {
        p + suffix + e for p in ("calm", "out") for e in ("", ".json")
    }
    said = []
    assert write_samples(generator, range(12), out, SamplingConfig(steps=3), say=said.append).made == 0
    assert "nothing to do" in said[0]
    if suffix != ".png":  # a grid may be drawn anew; samples are not overwritten
        with pytest.raises(ValueError, match="holds other samples"):
            write_samples(generator, range(12), out, SamplingConfig(steps=4))
        with pytest.raises(ValueError, match="is finished"):
            write_samples(generator, range(20), out, SamplingConfig(steps=3))
        out.with_name(f"{out.name}.json").unlink()
        with pytest.raises(ValueError, match=r"out\..*\.json is missing: choose another --out"):
            write_samples(generator, range(12), out, SamplingConfig(steps=3))
    else:
        assert write_samples(generator, range(12), out, SamplingConfig(steps=4)).made == 12


def test_a_disk_full_while_joining_keeps_the_parts(generator, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "out.zip"
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="No space left") as caught:
        patch.setattr(zipfile.ZipFile, "writestr", full)
        write_samples(generator, range(3), out, SamplingConfig(steps=2))
    assert f"all 3 images are kept in {out}.parts" in str(caught.value)
    assert len(list((tmp_path / "out.zip.parts").glob("*.png"))) == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.zip.parts"]
    assert write_samples(generator, range(3), out, SamplingConfig(steps=2)).made == 0
    assert sorted(files(tmp_path)) == ["out.zip", "out.zip.json"]


def test_a_kill_between_joining_and_tidying_up_does_no_harm(generator, tmp_path, monkeypatch):
    out = tmp_path / "out.zip"

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        write_samples(generator, range(3), out, SamplingConfig(steps=2))
    before = out.read_bytes()
    assert write_samples(generator, range(3), out, SamplingConfig(steps=2)).made == 0
    assert out.read_bytes() == before
    assert sorted(files(tmp_path)) == ["out.zip", "out.zip.json"]


def test_a_kill_while_tidying_up_does_no_harm(generator, tmp_path):
    """Killed before every single removal: the same command ends, with the same bytes and nothing left."""
    config = SamplingConfig(steps=4)
    write_samples(generator, range(3), tmp_path / "whole.zip", config)
    expected = (tmp_path / "whole.zip").read_bytes()
    for fatal in range(1, 5):  # three images and the protocol
        out, removed = tmp_path / f"{fatal}.zip", []

        def kill(effect, fatal=fatal, removed=removed):
            removed.append(effect) if effect == "remove" else None
            if len(removed) == fatal:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_samples(generator, range(3), out, config, observe=kill)
        assert out.with_name(f"{out.name}.parts").is_dir()
        assert write_samples(generator, range(3), out, config).made == 0
        assert not out.with_name(f"{out.name}.parts").exists()
        assert out.read_bytes() == expected


def test_the_three_containers_hold_the_same_pixels(generator, tmp_path):
    expected = to_pixels(generator.sample(10, seed=5, steps=3))
    for name in ("folder", "set.zip", "set.npz"):
        write_samples(generator, range(5, 15), tmp_path / name, SamplingConfig(steps=3, batch=4))
        walked = next(read_batches(image_set(tmp_path / name), 10))
        assert np.array_equal(walked[:, :1].permute(0, 2, 3, 1).numpy(), expected), name
        protocol = read_protocol(tmp_path / name)
        assert Generation(**{key: protocol[key] for key in ("nfe", "prior", "seed")}) == Generation(
            nfe=3, prior="gaussian", seed=5
        )
        assert (protocol["seeds"], protocol["count"], protocol["size"]) == ("5-14", 10, [8, 8])
        assert protocol["checkpoint"] == generator.origin.model
    with np.load(tmp_path / "set.npz") as arrays:
        assert arrays["images"].shape == (10, 8, 8, 1)
        assert arrays["seeds"].tolist() == list(range(5, 15))
    with zipfile.ZipFile(tmp_path / "set.zip") as archive:
        assert json.loads(archive.read("protocol.json"))["sampler"].startswith("exponential")


def test_a_folder_grows_and_is_repaired(generator, tmp_path):
    folder = tmp_path / "run-0.5"
    write_samples(generator, range(4), folder, SamplingConfig(steps=3))
    first = files(folder)
    assert write_samples(generator, range(9), folder, SamplingConfig(steps=3, batch=2)).made == 5
    assert read_protocol(folder)["seeds"] == "0-8"
    assert {name: first[name] for name in first if name != "protocol.json"}.items() <= files(folder).items()
    with pytest.raises(ValueError, match="seeds was '0-8', now '0-3'"):
        write_samples(generator, range(4), folder, SamplingConfig(steps=3))
    whole = files(folder)
    (folder / "00000002.png").write_bytes(whole["00000002.png"][:40])  # as after a crash of the machine
    (folder / ".00000003.77.part").write_bytes(b"half")
    assert write_samples(generator, range(9), folder, SamplingConfig(steps=3)).made == 1
    assert files(folder) == whole


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": 5}, "samples: steps was 4, now 5; choose"),
        ({"sampler": "ode", "steps": 7}, "sampler was"),
        ({"prior": "simulate"}, "prior was 'gaussian', now 'simulate'"),
    ],
)
def test_other_settings_are_refused(generator, data, tmp_path, change, says):
    generator._images = data
    write_samples(generator, range(3), tmp_path / "out", SamplingConfig(steps=4))
    before = files(tmp_path / "out")
    with pytest.raises(ValueError, match=says) as caught:
        write_samples(generator, range(3), tmp_path / "out", SamplingConfig(**{"steps": 4, **change}))
    assert "\n" not in str(caught.value)
    assert files(tmp_path / "out") == before


def test_only_the_setting_that_was_changed_is_told(generator, tmp_path):
    """Not the other seeds, which are refused for no other reason; and the NFE of a folder that names no steps."""
    write_samples(generator, range(3), tmp_path / "out", SamplingConfig(steps=4))
    with pytest.raises(ValueError, match="samples: steps was 4, now 5; choose"):
        write_samples(generator, range(1), tmp_path / "out", SamplingConfig(steps=5))
    record = json.loads((tmp_path / "out" / "protocol.json").read_text())
    del record["steps"]
    (tmp_path / "out" / "protocol.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="samples: nfe was 4, now 5; choose"):
        write_samples(generator, range(3), tmp_path / "out", SamplingConfig(steps=5))
    assert write_samples(generator, range(3), tmp_path / "out", SamplingConfig(steps=4)).made == 0
    assert read_protocol(tmp_path / "out")["steps"] == 4


def test_samples_of_an_earlier_checkpoint_are_refused_without_its_hashes(runs, tmp_path):
    generator = anisodiff.load(runs("ve"), "cpu")
    write_samples(generator, range(2), tmp_path / "out", SamplingConfig(steps=3))
    generator.origin = replace(generator.origin, model="another")
    with pytest.raises(ValueError) as refused:
        write_samples(generator, range(2), tmp_path / "out", SamplingConfig(steps=3))
    assert str(refused.value).endswith("made with another model or another checkpoint; choose another --out")


@pytest.mark.filterwarnings("ignore:most pixels:UserWarning")  # six evaluations are few
def test_where_a_sample_depends_on_its_batch_the_batch_is_recorded(runs, tmp_path):
    """`pc` takes the mean norms of a batch: other neighbors would give other images."""
    generator, config = anisodiff.load(runs("ve"), "cpu"), SamplingConfig(steps=6, sampler="pc", batch=3)
    assert write_samples(generator, range(5), tmp_path / "out", config).protocol["batch"] == 3
    for seeds, other, says in (
        (range(5), replace(config, batch=2), "batch was 3, now 2"),
        (range(6), config, "seeds was '0-4', now '0-5'"),
    ):
        with pytest.raises(ValueError, match=f"holds other samples: {says}"):
            write_samples(generator, seeds, tmp_path / "out", other)
    apart = replace(config, sampler="pc(norms=sample)")
    assert "batch" not in write_samples(generator, range(5), tmp_path / "apart", apart).protocol
    assert write_samples(generator, range(6), tmp_path / "apart", replace(apart, batch=2)).made == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no valid JSON"),
        ('{"format": "anisodiff edits"}', "is no record of samples"),
        ('{"format": "anisodiff samples", "version": 1, "seeds": "0"}', "has samples version 1, expected 2"),
        ('{"format": "anisodiff samples", "version": 2}', "seeds: got nothing, expected a value"),
        ('{"format": "anisodiff samples", "version": 2, "seeds": "x"}', "whole numbers and ranges"),
    ],
)
def test_a_malformed_protocol_is_one_line(generator, tmp_path, text, says):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "protocol.json").write_text(text)
    with pytest.raises(ValueError, match=says) as caught:
        write_samples(generator, range(3), tmp_path / "out", SamplingConfig(steps=4))
    assert "\n" not in str(caught.value)
    assert (tmp_path / "out" / "protocol.json").read_text() == text


def test_another_checkpoint_is_refused(generator, runs, tmp_path):
    write_samples(generator, range(3), tmp_path / "out", SamplingConfig(steps=12))
    with pytest.raises(ValueError, match="made with another model or another checkpoint"):
        write_samples(
            anisodiff.load(runs("anisotropic"), "cpu"), range(3), tmp_path / "out", SamplingConfig(steps=12)
        )


def test_foreign_files_and_busy_folders_are_left_alone(generator, tmp_path):
    from anisodiff.io.checkpoint import alone

    (tmp_path / "photos").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "photos" / "00000000.png")
    with pytest.raises(ValueError, match="files that are not samples"):
        write_samples(generator, range(3), tmp_path / "photos", SamplingConfig(steps=2))
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file"):
        write_samples(generator, range(3), tmp_path / "file", SamplingConfig(steps=2))
    with alone(tmp_path / "busy"), pytest.raises(ValueError, match="in use"):
        write_samples(generator, range(3), tmp_path / "busy", SamplingConfig(steps=2))
