"""benchmarks/flagship.py: a training in pieces, through small transfers."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from anisodiff.data import prepare
from anisodiff.io.checkpoint import find, newest
from anisodiff.training import read_log
from tests.training.conftest import pixels

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = ("network.nf=8", "network.blocks=1", "batch=4", "calibration=16", "log_every=4", "checkpoint_every=0")


@pytest.fixture(scope="module")
def flagship():
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("flagship")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("flagship")
    np.save(folder / "raw.npy", np.repeat(pixels(), 3, axis=1))
    return prepare(folder / "raw.npy", folder / "data", size=8, channels=3).dataset.path


@pytest.fixture
def piece(flagship, data, tmp_path, monkeypatch):
    """`flagship.py piece` on a machine of its own; ``steps`` of training. Returns its run and what it wrote."""

    def run(name: str, *words: str, steps: int = 6, packs: str = "packs") -> tuple[Path, Path]:
        folder, out, done = tmp_path / name / "run", tmp_path / name / "out", [0]
        given = ["--data", str(data), "--train", "1e9", "--packs", str(tmp_path / packs), "--out", str(out)]
        given += ["--n", "3", "--steps", "5", "--device", "cpu", *(f"--set={key}" for key in SMALL), *words]

        def trained(config, dataset, output, *, hooks, **options):
            def stop() -> bool:
                done[0] += 1
                return done[0] >= steps

            return real(config, dataset, output, hooks=flagship.Hooks(**{**vars(hooks), "stop": stop}), **options)

        real = flagship.train
        with monkeypatch.context() as patch:
            patch.setattr(flagship, "train", trained)
            patch.setattr(sys, "argv", ["flagship.py", "piece", str(folder), *given])
            flagship.main()
        return folder, out

    return run


def test_a_run_goes_on_elsewhere_with_what_was_packed(flagship, piece, tmp_path):
    recipe = ("--recipe", "cifar10-ve-tiny")
    first, out = piece("first", *recipe)
    assert {path.name for path in out.iterdir()} == {"ve-0000000024.json", "ve-0000000024.png"}
    second, out = piece("second", *recipe)  # a machine that has the packs alone
    saved = find(second)
    assert saved.step == 12
    assert [record["step"] for record in read_log(second)] == list(range(1, 13))
    assert json.loads((out / "ve-0000000048.json").read_text())["facts"]["images"] == 48
    # it was continued, not begun: Adam has counted all steps
    assert {float(x) for name, x in saved.tensors("state/optimizer").items() if name.startswith("step.")} == {12.0}
    assert find(first).step == 6
    # a branch begins with its EMA
    branch, _ = piece("branch", "--recipe", "cifar10-anisotropic-gentle-tiny", "--from", str(second), packs="others")
    assert find(branch).meta["start"]["images"] == 48
    again, _ = piece("again", "--recipe", "cifar10-anisotropic-gentle-tiny", packs="others")  # and goes on, too
    assert find(again).step == 12


def test_parts_keep_what_a_run_needs(flagship, piece, tmp_path):
    run, _ = piece("first", "--recipe", "cifar10-ve-tiny")
    saved, packs = newest(run), tmp_path / "small"
    parts = flagship.pack(run, packs, "difference", "factored", size=20_000)
    assert len(parts) > 5
    assert max(path.stat().st_size for path in parts) < 20_500
    # taken a few at a time, as many as fit, from a folder that is not touched
    first, calls = 0, 0
    while first < len(parts):
        out = tmp_path / f"taken-{calls}"
        first, calls = flagship.take(packs, first, out, most=50_000), calls + 1
        found = [path for path in out.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in found) <= 50_000
        assert len(found) == 2 or first == len(parts)
        shutil.copytree(out, tmp_path / "there", dirs_exist_ok=True)
    assert flagship.unpack(tmp_path / "there", tmp_path / "elsewhere") == saved.step
    made = newest(tmp_path / "elsewhere")
    assert made.meta == saved.meta
    assert read_log(tmp_path / "elsewhere") == read_log(run)
    ema, found = saved.tensors("model"), made.tensors("model")
    for name, x in ema.items():
        rounded = x.half().float() if name.startswith("network.") else x
        assert torch.equal(found[name], rounded), name
    raw = saved.tensors("state/weights")
    for name, x in made.tensors("state/weights").items():
        most = (raw[name] - ema[f"network.{name}"].half().float()).abs().max()
        assert (x - raw[name]).abs().max() <= most / 127 + 1e-7, name
    adam = made.tensors("state/optimizer")
    for name, x in saved.tensors("state/optimizer").items():
        if name.startswith("exp_avg_sq.") and x.dim() > 1:
            torch.testing.assert_close(adam[name].flatten(1).mean(1), x.flatten(1).mean(1), rtol=1e-4, atol=1e-20)
            torch.testing.assert_close(adam[name].flatten(1).mean(0), x.flatten(1).mean(0), rtol=1e-4, atol=1e-20)
        elif not name.startswith("exp_avg."):
            assert torch.equal(adam[name], x), name


def test_a_killed_piece_has_packed_its_last_checkpoint(flagship, piece, tmp_path):
    """Packs are written while training goes on; here it ends without the pack of its end."""

    class Killed(Exception):
        pass

    def pack(*_: object, **__: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flagship, "pack", pack)
        with pytest.raises(Killed):
            piece("first", "--recipe", "cifar10-ve-tiny", "--set=checkpoint_every=12")
    (packed,) = {part.step for part in flagship.complete(tmp_path / "packs")}
    assert packed in (3, 6)  # the newest when the packing process began to read
    second, _ = piece("second", "--recipe", "cifar10-ve-tiny", steps=2)
    assert find(second).step == packed + 2


def test_an_incomplete_pack_does_not_count(flagship, piece, tmp_path):
    run, _ = piece("first", "--recipe", "cifar10-ve-tiny")
    older = flagship.pack(run, tmp_path / "older", "difference", "factored", size=40_000)
    piece("first", "--recipe", "cifar10-ve-tiny")  # the same run goes on
    newer = flagship.pack(run, tmp_path / "newer", "difference", "factored", size=40_000)
    both = tmp_path / "both"
    for k, folder in enumerate(("older", "newer")):
        shutil.copytree(tmp_path / folder, both / str(k))
    assert [part.step for part in flagship.complete(both)] == [12] * len(newer)
    last = both / "1" / newer[-1].relative_to(tmp_path / "newer")
    held = last.read_bytes()
    last.write_bytes(held[:-1])  # a transfer that broke off
    assert [part.step for part in flagship.complete(both)] == [6] * len(older)
    last.write_bytes(held[:-1] + bytes([held[-1] ^ 1]))
    assert [part.step for part in flagship.complete(both)] == [6] * len(older)
    last.write_bytes(b"")
    assert flagship.unpack(both, tmp_path / "elsewhere") == 6
    shutil.rmtree(both / "0")
    with pytest.raises(SystemExit, match="no complete pack"):
        flagship.unpack(both, tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("weights", "moments"), [("half", "eight"), ("difference", "factored"), ("ema", "anew")]
)  # stored apart, without knowing of each other
def test_every_way_to_store_can_be_continued(flagship, piece, tmp_path, weights, moments):
    run, _ = piece("first", "--recipe", "cifar10-ve-tiny", steps=2)
    _, state = flagship.expand(flagship.compact(newest(run), weights, moments))
    raw = newest(run).tensors("state/weights")
    assert {name: state["weights"][name].shape for name in raw} == {name: x.shape for name, x in raw.items()}
    adam = newest(run).tensors("state/optimizer")
    assert set(state["optimizer"]) == (set() if moments == "anew" else set(adam))
    for name, x in state["optimizer"].items():
        assert x.shape == adam[name].shape
        if moments == "eight" and name.startswith("exp_avg_sq."):
            assert (x > 0).all() or x.dim() < 2 or not (adam[name].flatten(1).sum(1) > 0).all()
    words = ("--recipe", "cifar10-ve-tiny", "--weights", weights, "--moments", moments)
    flagship.pack(run, tmp_path / "own", weights, moments)
    there, _ = piece("there", *words, steps=2, packs="own")
    assert find(there).step == 4
