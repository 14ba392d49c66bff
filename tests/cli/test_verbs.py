"""The command line: what it writes, and what it says to a mistake."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image

from anisodiff.cli import main
from anisodiff.data import prepare
from anisodiff.training import TrainConfig
from anisodiff.training.run_folder import RunDescription, write_run


def photo(path: Path, size: tuple[int, int] = (40, 30), seed: int = 0) -> Path:
    brightest = 60 + 15 * (seed % 13)
    pixels = np.random.default_rng(seed).integers(0, brightest, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def test_forward_writes_figure_animation_and_states(command, tmp_path):
    photo(tmp_path / "a.png")
    code, out, err = command(
        "forward", "a.png", "--size", "16", "--times", "1,0,2", "-o", "f.png", "--animation", "f.gif",
        "--frames", "5", "--states", "f.npz",
    )  # fmt: skip
    assert code == 0
    assert out.split() == ["wrote", "f.png", "wrote", "f.gif", "wrote", "f.npz"]
    assert err == "--times: sorted, from 0 to T\n"
    assert 900 < Image.open("f.png").size[0] < 1100  # three panels, not six
    assert Image.open("f.gif").n_frames >= 5
    raw = np.load("f.npz")
    assert raw["times"].tolist() == [0.0, 1.0, 2.0]
    assert raw["states"].shape == (3, 3, 16, 16)
    original = np.asarray(Image.open("a.png").crop((5, 0, 35, 30)).resize((16, 16), Image.Resampling.LANCZOS))
    np.testing.assert_allclose(raw["states"][0].transpose(1, 2, 0), original / 255, atol=1e-6)


def test_forward_depends_on_the_seed_alone(command, tmp_path):
    photo(tmp_path / "a.png")
    states = []
    for name, seed in (("1.npz", 7), ("2.npz", 7), ("3.npz", 8)):
        assert command("forward", "a.png", "--size", "8", "--seed", seed, "--states", name)[0] == 0
        states.append(np.load(name)["states"])
    assert np.array_equal(states[0], states[1])
    assert not np.array_equal(states[0], states[2])


def test_forward_takes_presets_files_and_settings(command, tmp_path):
    (tmp_path / "c.yaml").write_text("preset: heat\nintensity: 0\nT: 1\n")
    assert command("forward", "--size", "8", "--config", "c.yaml", "--states", "a.npz", "--times", "0,1")[0] == 0
    words = ["--process", "heat", "--set", "intensity=zero", "--set", "T=1"]
    assert command("forward", "--size", "8", *words, "--states", "b.npz", "--times", "0,1")[0] == 0
    assert np.array_equal(np.load("a.npz")["states"], np.load("b.npz")["states"])


def test_forward_and_diagnose_take_the_process_of_a_run(command, refused, tmp_path):
    (tmp_path / "run").mkdir()
    config = TrainConfig(process={"preset": "heat", "T": 1.0}, size=8)
    write_run(tmp_path / "run", RunDescription(config=config))
    for number in range(2):
        photo(tmp_path / "run" / f"{number}.png", seed=number)
    for name in ("run", "run/config.yaml"):
        code, _, err = command("forward", "--size", "8", "--config", name, "--states", "a.npz")
        assert code == 0, err
        assert np.load("a.npz")["times"][-1] == 1.0
    code, out, err = command("diagnose", "run", "--config", "run", "--json")  # at its size
    assert code == 0, err
    assert json.loads(out)["process"]["T"] == 1.0
    assert json.loads(out)["size"] == [8, 8]
    (tmp_path / "part.yaml").write_text("process: heat\n")
    code, out, err = command("diagnose", "run", "--config", "part.yaml", "--json")
    assert code == 0, err
    assert json.loads(out)["size"] == [32, 32]  # the file has none
    (tmp_path / "run" / "log.jsonl").touch()  # now it is a run that has begun, and its pictures are grids
    for words in (["diagnose", "run"], ["train", "--data", "run", "-o", "new"]):
        says = "run is a run, and its pictures are grids of samples: give the images it was trained on"
        refused(*words, says=says)
    says = "holds no run: expected config.yaml, which `anisodiff train` writes"
    refused("forward", "--size", "8", "--config", ".", says=says)


@pytest.mark.parametrize("flag", ["--gallery", "--design", "--transitions"])
def test_the_papers_figures(command, flag):
    code, _, err = command("forward", flag, "--size", "12", "-o", "figure.png")
    assert code == 0, err
    assert min(Image.open("figure.png").size) > 400


def test_demo(command, tmp_path, monkeypatch):
    titles, save = [], Figure.savefig

    def look(figure, *words, **keys):
        titles.extend(axes.get_title() for axes in figure.axes)
        save(figure, *words, **keys)

    monkeypatch.setattr(Figure, "savefig", look)
    code, out, _ = command("demo", "--size", "24", "--samples", "2", "--steps", "3", "-o", "out")
    assert code == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "gallery.png", "anisotropic-gentle.png", "anisotropic-gentle.gif", "anisotropic.png", "anisotropic.gif",
        "ve.png", "ve.gif",
        "samples.png", "generation.png", "edit.png",
    }  # fmt: skip
    assert "gallery.png" in out
    assert titles[-6:] == ["generated", "6 colors", "seed 0", "seed 1", "seed 2", "seed 3"]


def test_diagnose_prints_a_table_and_json(command, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for k in range(12):
        photo(folder / f"{k}.png", (16, 16), seed=k)
    (folder / "broken.png").write_bytes(b"not a picture")
    code, out, _ = command("diagnose", "photos", "--size", "8", "--process", "heat", "-o", "plot.png")
    assert code == 0
    assert "Result: U_T depends on U_0: SNR above 0.87 (the smallest that 12 images show) in band" in out
    assert "raise the intensity" in out
    assert Image.open("plot.png").size[0] > 500
    code, out, _ = command("diagnose", "photos", "--size", "8", "--process", "ve", "--set", "sigma_min=0.0123456")
    assert out.splitlines()[0].rstrip() == "ve with sigma_min = 0.01235"
    code, out, _ = command("diagnose", "photos", "--size", "8", "--process", "ve", "--json")
    numbers = json.loads(out)
    assert code == 0
    assert numbers["images"] == 12
    assert numbers["process"]["step"] == "exact"
    assert numbers["found_by_chance"] == pytest.approx(1 / 12)


def test_diagnose_takes_a_prepared_dataset(command, refused, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (12, 3, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "raw.npy", pixels)
    prepare(tmp_path / "raw.npy", tmp_path / "data", size=8, channels=3)
    code, out, _ = command("diagnose", tmp_path / "data", "--size", "8", "--process", "heat", "--json")
    assert code == 0
    assert json.loads(out)["images"] == 12
    says = "was prepared as 8×8, got --size 32; set --size 8"
    refused("diagnose", tmp_path / "data", "--process", "heat", says=says)


MISTAKES = [
    (["forward", "missing.png"], "no such file"),
    (["forward", "folder"], "is a folder"),
    (["forward", "text.png"], "not an image"),
    (["forward", "truncated.png"], "truncated"),
    (["forward", "pixel.png"], "at least 3×3"),
    (["forward", "good.png", "--size", "2"], "3"),
    (["forward", "good.png", "--process", "anisotropik"], "did you mean 'anisotropic'"),
    (["forward", "good.png", "--set", "diffusivity=-1"], "≥ 0"),
    (
        ["forward", "good.png", "--set", "drift_anisotropy=-1"],
        "_anisotropy must stay > 0 (infinite: isotropy), got -1",
    ),
    (["forward", "good.png", "--set", "drift_anisotropy=0"], "_anisotropy must stay > 0 (infinite: isotropy), got 0"),
    (["forward", "good.png", "--set", "lambda=0"], "unknown key 'lambda'; did you mean 'drift_anisotropy'?"),
    (["forward", "good.png", "--set", "difusivity=1"], "did you mean 'diffusivity'"),
    (["forward", "good.png", "--set", "intensity=.nan"], "nan"),
    (["forward", "good.png", "--set", "T"], "KEY=VALUE"),
    (["forward", "good.png", "--set", "noise_anisotropy=0.1"], "step='tamed'"),
    (["forward", "good.png", "--times", "0,3"], "[0, T]"),
    (["forward", "good.png", "--times", "0,nan"], "[0, T]"),
    (["forward", "good.png", "--times", "now"], "--times: got 'now', expected numbers like 0,0.5,1"),
    (["forward", "good.png", "--config", "missing.yaml"], "cannot read config"),
    (["forward", "good.png", "--config", "list.yaml"], "expected keys and values"),
    (["forward", "good.png", "--config", "unknown.yaml"], "unknown key 'alpha'"),
    (["forward", "good.png", "--config", "broken.yaml"], "not valid YAML: expected ',' or ']', but got ':', line 2"),
    (["forward", "good.png", "-o", "figure.bmp"], ".png, .pdf or .svg"),
    (["forward", "good.png", "--animation", "a.mp4"], ".gif"),
    (["forward", "good.png", "--states", "a.txt"], ".npz"),
    (["forward", "good.png", "--gallery", "--design"], "exclude"),
    (["forward", "good.png", "--device", "tpu"], "unknown device"),
    (["forward", "good.png", "--process", "ve", "--config", "heat.yaml"], "contradict"),
    (["forward", "good.png", "-o", "a.png", "--animation", "a.png"], "same file"),
    (["forward", "--gallery", "--set", "T=1"], "--set goes with one process, not with the paper's figures"),
    (["forward", "--gallery", "--process", "ve"], "--process goes with one process, not with the paper's figures"),
    (["forward", "good.png", "--size", "100000"], "2048"),
    (["forward", "-p", "heat", "--set", "step=tamed(norm=none)", "--set", "diffusivity=1e9"], "not finite"),
    (["diagnose", "folder", "-o", "d.bmp"], ".png, .pdf or .svg"),
    (["forward", "good.png", "--output", "text.png/figure.png"], "cannot write"),
    (["diagnose", "missing"], "cannot read missing (No such file or directory)"),
    (["diagnose", "folder"], "folder holds no images"),
    (["fourward"], "unknown command 'fourward'; did you mean 'forward'?"),
    (["forward", "good.png", "--device", "cuda:99"], "(requested 'cuda:99'); use"),
]


@pytest.mark.parametrize(("words", "says"), MISTAKES, ids=[" ".join(w) for w, _ in MISTAKES])
def test_mistakes_are_one_clear_line_and_leave_nothing(command, tmp_path, words, says):
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.png").write_text("hello")
    photo(tmp_path / "good.png")
    (tmp_path / "truncated.png").write_bytes((tmp_path / "good.png").read_bytes()[:900])
    photo(tmp_path / "pixel.png", (1, 1))
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    (tmp_path / "heat.yaml").write_text("preset: heat\n")
    (tmp_path / "unknown.yaml").write_text("alpha: 2\n")
    (tmp_path / "broken.yaml").write_text("diffusivity: [1, 2\n  x: {")
    before = sorted(p.name for p in tmp_path.rglob("*"))
    code, _, err = command(*words)
    assert code == 2
    assert says in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err
    if err.startswith("anisodiff: "):
        assert err.count("\n") == 1
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.text(max_size=12), value=st.text(max_size=16))
def test_garbage_settings_never_end_in_a_traceback(command, key, value):
    code, _, err = command("forward", "--size", "4", "--set", f"{key}={value}", "--times", "0")
    assert code in (0, 2)
    assert "Traceback" not in err


def test_the_module_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "anisodiff", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("anisodiff 0.")


def test_cuda_asked_for_without_one(refused):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    refused("forward", "--device", "cuda", says="no CUDA device")


def test_an_interrupt_is_answered_in_one_line(monkeypatch, capsys):
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("anisodiff.cli.diagnose.diagnose", interrupted)
    monkeypatch.setattr("sys.argv", ["anisodiff", "diagnose"])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert (ended.value.code, capsys.readouterr().err) == (130, "anisodiff: stopped\n")
