"""Paths, terminals and orders that nobody thinks of."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import anisodiff
from anisodiff.data import prepare
from anisodiff.io.atomic import atomic, clear_orphans, leaving_nothing
from anisodiff.io.checkpoint import alone
from anisodiff.io.records import read_json, write_json
from anisodiff.metrics import Context, FeatureNetwork, evaluate
from anisodiff.metrics.features import function_network
from anisodiff.training import TrainConfig
from anisodiff.training.run_folder import RunDescription, write_run
from tests.support.children import in_child


def photos(folder, count: int = 3):
    folder.mkdir(parents=True)
    for number in range(count):
        noise = np.random.default_rng(number).integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    return folder


def test_what_a_killed_writer_left_is_removed(tmp_path):
    out = tmp_path / "made.zip"
    names = [f"{name}-unfinished" for name in (".made-0123abcd", ".other-0123abcd", ".made-note")]
    for name in (f"{names[0]}.zip", f"{names[0]}.npz", f"{names[1]}.zip", f"{names[2]}.zip"):
        (tmp_path / name).touch()
    clear_orphans(out)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".made-0123abcd-unfinished.npz",
        ".made-note-unfinished.zip",
        ".other-0123abcd-unfinished.zip",
    ]


def test_what_a_killed_preparation_left_goes_at_once(tmp_path):
    """Killed while it writes: the next one removes its hidden folder and lock, however young they are."""
    source = photos(tmp_path / "photos")

    def die(done: int, total: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(2):
        assert in_child(lambda: prepare(source, tmp_path / "out", size=8, progress=die)) != 0
    left = sorted(path.name for path in tmp_path.glob(".out*"))
    assert [name.endswith(".lock") for name in left] == [True, False]  # a folder of the second one alone
    prepare(source, tmp_path / "out", size=8)
    assert list(tmp_path.glob(".out*")) == []


def test_what_a_killed_run_left_in_its_folder_goes(tmp_path):
    """Whoever holds the lock of a folder removes it, at any depth; files of a user and locked folders stay."""
    for folder in ("samples", "others"):
        (tmp_path / folder).mkdir()
    kept = ["others/.lock", "others/.0-01234567-unfinished.part", "samples/.notes-20261118.md", ".env-deadbeef"]
    gone = [".config-0123abcd-unfinished.yaml", "samples/.step-1-01234567-unfinished.png"]
    for name in (*kept, *gone):
        (tmp_path / name).touch()
    with alone(tmp_path):
        write_run(tmp_path, RunDescription(config=TrainConfig(), data=tmp_path))
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {*kept, "config.yaml"}


@pytest.mark.parametrize(
    "words",
    [
        ("train", "ve", "--data", "nowhere", "-o", "a/b"),
        ("train", "ve", "--data", "photos", "-o", "a/b", "--from", "nowhere"),
        ("sample", "nowhere", "-o", "a/b"),
        ("sample", "cifar10-tiny", "--prior", "nonsense", "-o", "a/b"),
        ("edit", "cifar10-tiny", "nowhere.png", "-o", "a/b"),
        ("data", "prepare", "text", "-o", "a/b"),
        ("data", "prepare", "broken", "-o", "a/b"),
        ("compare", "ve", "--data", "data", "--reference", "nowhere", "--network", "none", "-o", "a/b"),
        ("evaluate", "photos", "-r", "nowhere", "--network", "none", "--json", "a/b.json"),
    ],
)
def test_a_refusal_leaves_no_folders(command, tmp_path, words):
    photos(tmp_path / "photos")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_text("no picture")
    (tmp_path / "text").write_text("words")
    command("data", "prepare", "photos", "-o", "data", "--size", 8)
    before = sorted(tmp_path.rglob("*"))
    code, _, err = command(*words)
    assert code == 2, err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_refusal_keeps_results(tmp_path):
    with pytest.raises(ValueError, match="no"), leaving_nothing(tmp_path / "a" / "b", "note"):
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "b" / "note").touch()
        (tmp_path / "a" / "b" / "result").touch()
        raise ValueError("no")
    assert (tmp_path / "a" / "b" / "result").exists()
    with pytest.raises(ValueError, match="no"), leaving_nothing(tmp_path / "a", "note"):
        raise ValueError("no")
    assert (tmp_path / "a").exists()  # it was there before


def test_a_refusal_keeps_the_work_of_a_neighbor(tmp_path):
    """Two commands make one missing folder together, and one of them is refused."""
    with pytest.raises(ValueError, match="no"), leaving_nothing(tmp_path / "runs" / "x", "note"):
        for name in ("x", "y"):
            (tmp_path / "runs" / name).mkdir(parents=True)
            (tmp_path / "runs" / name / "note").touch()
        raise ValueError("no")
    assert sorted(path.name for path in (tmp_path / "runs").rglob("*")) == ["note", "y"]


def test_a_path_that_is_no_utf8(tmp_path, command):
    """Written, read back and printed, on a terminal without most letters, too; the names of files are bytes."""
    odd = os.fsdecode(b"\xff-photos")
    write_json(tmp_path / "a.json", {"path": odd, "σ": 1})
    assert read_json(tmp_path / "a.json") == {"path": odd, "σ": 1}
    photos(tmp_path / odd)
    code, _, err = command("forward", f"{odd}/0.png", "-o", f"{odd}.png", "--size", 8, "-p", "ve")
    assert code == 0, err
    code, _, err = command("forward", f"nowhere{odd}", "-o", "a.png")
    assert (code, err.count("\n")) == (2, 1)
    done = subprocess.run(
        [sys.executable, "-m", "anisodiff", "data", "prepare", odd, "-o", f"{odd}-out", "--size", "8"],
        cwd=tmp_path, capture_output=True, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(anisodiff.__file__).parents[1]), "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert b"\\udcff-photos-out" in done.stdout
    small = [word for key in ("network.nf=4", "network.blocks=1", "calibration=16") for word in ("--set", key)]
    words = ["train", "ve", "--data", f"{odd}-out", "-o", f"{odd}-run", "--images", 0, *small, "--device", "cpu"]
    assert command(*words)[0] == 0
    words = [
        "--data",
        f"{odd}-out",
        "--n",
        10,
        "--steps",
        1,
        "--network",
        "none",
        "--device",
        "cpu",
        "-o",
        f"{odd}-c",
    ]
    code, _, err = command("compare", f"{odd}-run", *words)
    assert code == 0, err
    assert "\\udcff" in (tmp_path / f"{odd}-c" / "results" / "page.md").read_text(encoding="utf-8")


def test_markup_in_a_path_is_a_path(command, tmp_path):
    photos(tmp_path / "[bold]x[/red]")
    code, out, err = command(
        "train", "ve", "--data", "[bold]x[/red]", "-o", "[run]", "--images", 0, "--device", "cpu"
    )
    assert code == 0, err
    assert "[bold]x[/red]" in err
    assert "[run]" in out


def test_numbers_do_not_depend_on_the_order_of_files(tmp_path):
    network: FeatureNetwork = function_network("rows", lambda x: x.float().flatten(1)[:, ::40] / 255, weights="rows")
    generator = torch.Generator().manual_seed(0)
    samples, reference = torch.randint(0, 256, (2, 60, 3, 16, 16), dtype=torch.uint8, generator=generator)
    order = torch.randperm(60, generator=generator)
    context, metrics = Context(cache=tmp_path), ("fid", "kid", "prdc")
    one = evaluate(samples, reference, network=network, metrics=metrics, context=context)
    two = evaluate(samples[order], reference[order.flip(0)], network=network, metrics=metrics, context=context)
    for a, b in zip(one.values, two.values):
        assert a.value == pytest.approx(b.value, rel=1e-6), a.name


def test_nan_is_not_passed_on_in_silence():
    u = torch.rand(1, 1, 8, 8)
    u[0, 0, 3, 3] = float("nan")
    for function in (anisodiff.drift, anisodiff.noise_scale):
        with pytest.raises(ValueError, match="NaN or infinite"):
            function(u, 1.0, 0.5)
        for given, name in (
            ((float("nan"), 0.5), "(diffusivity|intensity)"),
            ((1.0, torch.tensor([torch.inf])), "inv_"),
        ):
            with pytest.raises(ValueError, match=f"^{name}.*: got NaN or infinity"):
                function(torch.rand(1, 1, 8, 8), *given)


def test_an_output_folder_made_by_a_failed_write_goes(tmp_path):
    from anisodiff.io.atomic import replacing

    with pytest.raises(ValueError, match="bad"), replacing(tmp_path / "a" / "b.txt"):
        raise ValueError("bad")
    assert not list(tmp_path.iterdir())
    with atomic(tmp_path / "c" / "d.txt") as temporary:
        temporary.write_text("kept")
    assert io.StringIO((tmp_path / "c" / "d.txt").read_text()).read() == "kept"
