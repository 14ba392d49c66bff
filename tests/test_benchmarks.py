"""The benchmark scripts run, with tiny settings."""

import io
import json
import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import anisodiff
from anisodiff.data import prepare
from anisodiff.dct import dct2, idct2
from anisodiff.experiments import check_names, parse_run
from anisodiff.processes.presets import preset
from anisodiff.registry import build_sampler
from anisodiff.training import Plan
from anisodiff.training.recipes import recipe
from anisodiff.training.run_folder import read_run
from tests.support.exact_bound import SIZE, ExactModel, exact_prior
from tests.support.oracles import F64, generator, keys

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def script(monkeypatch, capsys):
    """Run a script as `python benchmarks/NAME` does, in this process; returns what it printed."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def run(name: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(BENCHMARKS / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_forward_benchmark(script, tmp_path):
    words = ["--device", "cpu", "--sizes", "8", "--pixels", "64", "--seconds", "0", "--modes", "eager"]
    words += ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]
    script("forward.py", *words)
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [row["kind"] for row in rows] == ["tamed", "exponential"]
    assert all(row["rate"] > 0 and row["floor"] > 0 for row in rows)
    assert (tmp_path / "r.md").read_text().count("| eager |") == 2


def rows_of_images(folder: Path, count: int) -> None:
    """A file in the layout of the CIFAR-10 package: one image of 32² a row."""
    pixels = np.random.default_rng(0).integers(0, 255, (count, 1024, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "data_batch_1.png")


def test_linear_score_benchmark(script, tmp_path):
    rows_of_images(tmp_path, 24)
    words = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--images", "10", "--others", "10"]
    words += ["--steps", "50", "--cases", "ve", "5 windows", "--chains", "--shipped"]
    script("linear_score.py", *words)
    cases = json.loads((tmp_path / "out" / "results.json").read_text())["cases"]
    assert set(cases) == {"ve", "5 windows"}
    assert max(abs(x - 1) for x in cases["ve"]["ratio"]) < 0.02
    assert set(cases["5 windows"]["wrong"]) == {"w 5 % low", "V 5 % high", "drift at u_t"}
    assert (tmp_path / "out" / "tables.md").read_text(encoding="utf-8").count("| 5 windows |") == 1
    assert Image.open(tmp_path / "out" / "target-variance.png").size[0] > 500


def test_ode_likelihood_benchmark(script, tmp_path):
    """The flow of Gaussian images has their density; and the script runs, with too few steps to say anything."""
    found = runpy.run_path(str(BENCHMARKS / "ode_likelihood.py"))
    model = ExactModel(anisodiff.process("ve", SIZE, sigma_max=5.0))
    times = 0.05 + (model.T - 0.05) * torch.linspace(0, 1, 401, dtype=F64) ** 2
    signal, noise = model.powers(times[:1])
    u = 0.5 + idct2((signal + noise).sqrt() * torch.randn(5, 1, SIZE, SIZE, dtype=F64, generator=generator(1)))
    power = (signal + noise)[0, 0]
    want = -0.5 * (dct2(u - 0.5).square() / power + (2 * torch.pi * power).log()).sum((-3, -2, -1))
    assert torch.allclose(found["log_density"](model, exact_prior(model), u, times, keys(5)), want, atol=0.01)
    shades = np.array([90, 160], dtype=np.uint8)[:, None, None, None]
    np.savez(tmp_path / "two.npz", images=np.broadcast_to(shades, (2, 32, 32, 3)))
    words = ["cifar10-tiny", "--images", str(tmp_path / "two.npz"), "--count", "2", "--steps", "2", "--times", "2"]
    flow, bound = (line.split() for line in script("ode_likelihood.py", *words).splitlines())
    assert (flow[0], bound[0], len(flow), len(bound)) == ("flow:", "bound:", 4, 4)


def test_trainings_of_equal_time(script, tmp_path):
    """Trained to its end, sampled, measured without a feature network."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
    np.save(tmp_path / "set.npy", pixels)
    words = ["--data", str(tmp_path / "set.npy"), "--holdout", "4", "--runs", "ve;lr=1e-3", "--seconds", "300"]
    words += ["--set", "network.nf=8", "network.blocks=1", "batch=4", "calibration=16", "images=8", "sample_every=0"]
    words += ["--n", "4", "--steps", "2", "--out", str(tmp_path / "out")]
    assert "no 450 s left; the same command continues" in script("equal_time.py", *words, "--for", "449")
    printed = script("equal_time.py", *words)
    rows = [line for line in printed.splitlines() if line.startswith("| set.npy")]
    assert [row.split(" | ")[1:3] for row in rows] == [["`ve;lr=1e-3`", "0"]]
    assert rows[0].endswith(" 8 |")  # images seen
    again = script("equal_time.py", *words, "--seeds", "0", "1", "--for", "449")
    assert "set.npy, seed 1: no 450 s left" in again  # seed 0 is there
    assert rows[0] in again
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {"", ".txt", ".png", ".json", ".jsonl", ".md"}


def test_study_two_compares_recipes():
    """What it calls, by echo: every row is trained, its sampler fits, and seed 1 repeats rows of seed 0."""
    words = ["sh", str(BENCHMARKS / "study_two.sh"), "data", "out", "--device", "cpu"]
    told = subprocess.run(words, env=os.environ | {"ANISODIFF": "echo"}, capture_output=True, text=True, check=True)
    *calls, page = (line.split() for line in told.stdout.splitlines())
    assert page == ["compare", "--out", "out", "--stage", "page"]
    rows = [[parse_run(word) for word in call if word.startswith("cifar10-")] for call in calls]
    assert [call[call.index("--seeds") + 1] for call in calls] == ["0", "1"]
    assert {run.text for run in rows[1]} < {run.text for run in rows[0]}
    assert rows[0][0] == rows[1][0]  # network, batch and optimizer of all
    check_names(rows[0])
    for run in rows[0]:
        assert not run.checkpoint
        plan = Plan.of(recipe(run.base).changed(run.changes))
        if run.sampler != "auto":
            build_sampler(run.sampler, plan.process, plan.provided)


def test_structure_and_texture(script, tmp_path):
    """The whole study in its smallest form; a second call finds all of it; other settings are refused."""
    words = ["--tiny", "--out", str(tmp_path), "--device", "cpu", "--kinds", "median", "--strengths", "0.5", "0.8"]
    models = {"cartoon", "cartoon-late", "blur", "ve", "ve-conditional"}
    words += ["--runs", *sorted(models)]
    printed = script("structure_texture.py", *words)
    late, size = read_run(tmp_path / "runs" / "cartoon-late").config.process, 16
    assert late["diffusivity"].endswith(", r=4)")
    usual = preset("cartoon", size, smoothing=late["smoothing"], sigma_end=0.1)["diffusivity"]
    assert usual == late["diffusivity"].replace("r=4", "r=2")
    assert f"wrote {tmp_path / 'README.md'}" in printed
    rows = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert {row["run"] for row in rows} == models | {"input", "photograph"}
    assert len(rows) == 2 + (2 + 1) * (3 + 2 + 3)  # NFE 2 by two samplers, 10 by one; one, two and three starts
    assert not any(row.get("refused") for row in rows)
    assert all(0 <= row["edge_f1"] <= 1 for row in rows)
    assert all((row["sliced_wasserstein"] == 0) == (row["run"] == "photograph") for row in rows)
    assert next(row for row in rows if row["run"] == "input")["edge_f1"] == 1.0
    told = (tmp_path / "README.md").read_text()
    assert told.count("| ve |") == told.count("| ve, edges kept |") == 2
    least = min(row["sliced_wasserstein"] for row in rows if (row["run"], row["asked"]) == ("ve-conditional", 2))
    assert f"| {least:.4g} |" in told
    assert (tmp_path / "median.png").is_file()
    assert script("structure_texture.py", *words).splitlines()[-1] == f"wrote {tmp_path / 'README.md'}"
    with pytest.raises(SystemExit, match="holds a study with other settings"):
        script("structure_texture.py", *words, "--seed", "1")


def test_ecosystem(script, tmp_path, monkeypatch):
    """Stopped at once, then to the end: all parts, each result once."""
    pytest.importorskip("diffusers")
    words = ["unet", "classes", "inverse", "--tiny", "--out", str(tmp_path), "--device", "cpu"]
    monkeypatch.setenv("FOR", "0")
    assert "time is up: the same command continues" in script("ecosystem.py", *words)
    monkeypatch.setenv("FOR", "600")
    printed = script("ecosystem.py", *words)
    assert "time is up" not in printed
    trip = json.loads((tmp_path / "unet" / "round-trip.json").read_text())
    assert trip["equal_images"]
    assert trip["equal_weights"]
    assert json.loads((tmp_path / "unet" / "numbers.json").read_text())["samples"] == 12
    told = (tmp_path / "README.md").read_text(encoding="utf-8")
    for process in ("ve", "anisotropic-gentle", "flow-matching"):
        guided = json.loads((tmp_path / "classes" / process / "w2.json").read_text())
        assert guided["nfe"] <= 8 < 2 * guided["steps"] + 2
        assert (tmp_path / "classes" / process / "w2.png").is_file()
        assert told.count(f"| {process} |") == 5 + 4  # rows of classes, and of operators
    assert told.count("| Wiener |") == 4
    assert script("ecosystem.py", *words).splitlines() == [f"wrote {tmp_path / 'README.md'}"]


def test_equal_smoothing(script, tmp_path):
    """Strengths that remove the same share in every way, and the command that compares them."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(60, 200, (12, 1, 4, 4)).repeat(2, 2).repeat(2, 3)
    np.save(tmp_path / "raw.npy", (coarse + rng.integers(-30, 30, (12, 1, 8, 8))).astype(np.uint8))
    prepare(tmp_path / "raw.npy", tmp_path / "data", size=8, channels=1)
    words = [str(tmp_path / "data"), "--share", "0.5", "--out", str(tmp_path / "out"), "--dry-run"]
    *rows, command = script("equal_smoothing.py", *words, "--", "--images", "64").splitlines()
    assert len(rows) == 7
    assert all(abs(float(row.rpartition(" ")[2]) - 0.5) < 2e-3 for row in rows)
    texts = [word.strip("'") for word in command.split("' ") for word in word.split(" '")]
    runs = [parse_run(text) for text in texts if ";name=" in text]
    assert len(runs) == 7
    assert command.endswith("--images 64 --steps 100")  # a stiff drift needs more of them, unless they are given
    assert script("equal_smoothing.py", *words, "--", "--steps", "8").endswith("--steps 8\n")
    words[words.index("0.5")] = "0.1"
    assert script("equal_smoothing.py", *words).endswith("--steps 50\n")


def test_learned_process(script, tmp_path):
    """All cases to their end; the control stays, the others move; a second call finds all of it."""
    rng = np.random.default_rng(0)
    for name in ("train", "test"):
        coarse = rng.integers(60, 200, (24, 1, 4, 4)).repeat(2, 2).repeat(2, 3)
        np.save(tmp_path / f"{name}.npy", (coarse + rng.integers(-30, 30, (24, 1, 8, 8))).astype(np.uint8))
        prepare(tmp_path / f"{name}.npy", tmp_path / name, size=8, channels=1)
    words = [str(tmp_path / "train"), str(tmp_path / "test"), "--out", str(tmp_path / "out"), "--device", "cpu"]
    words += ["--images", "48", "--batch", "8", "--nf", "8", "--held-out", "16", "--seeds", "0"]
    printed = script("learned_process.py", *words)
    runs = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json")}
    assert set(runs) == {"ve-0", "from-ve-0", "from-drift-0", "isotropic-0"}
    last = {name: run["curve"][-1] for name, run in runs.items()}
    assert last["ve-0"]["a"] == [0.0] * 9
    assert runs["ve-0"]["removed"] == pytest.approx(0, abs=1e-6)
    assert max(last["from-ve-0"]["a"]) > 0
    assert last["from-drift-0"]["a"] != [0.1] * 9
    assert runs["from-drift-0"]["removed"] > 0.05
    assert (last["isotropic-0"]["edge"], last["isotropic-0"]["reference"]) == (None, 1.0)
    assert [len(row["mean"]) for row in runs["ve-0"]["slopes"]] == [9] * 5
    assert all(len(run["held_out"]) == 16 for run in runs.values())
    assert printed.count("| 0 | from-") == 2
    assert script("learned_process.py", *words) in printed


def test_scaled_smoothing(script, tmp_path):
    """At scale 1 the bits are those of the model; another scale has others."""
    images = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    np.save(tmp_path / "set.npy", images)
    prepare(tmp_path / "set.npy", tmp_path / "set", size=32, channels=3)
    words = ["cifar10-tiny", "--train", str(tmp_path / "set"), "--test", str(tmp_path / "set"), "--count", "2"]
    words += ["--calibration", "12", "--times", "1", "--scales", "0.5"]
    told = script("scaled_smoothing.py", *words).splitlines()
    assert told[0].startswith("scale 1: ")
    assert told[0].endswith("to scale 1 +0.0000 ± 0.0000")
    assert told[1].startswith("scale 0.5: ")
    assert not told[1].endswith("to scale 1 +0.0000 ± 0.0000")


def test_starts_and_repeats(script, tmp_path):
    """Starts of three kinds at two levels of noise, and samples that are repeated."""
    rng = np.random.default_rng(0)
    for name in ("train", "test"):
        colors = rng.permutation(np.arange(0, 256, 32, dtype=np.uint8))[:, None, None, None]
        np.save(tmp_path / f"{name}.npy", np.broadcast_to(colors, (8, 32, 32, 3)))
        prepare(tmp_path / f"{name}.npy", tmp_path / name, size=32, channels=3)
    sets = ["--train", str(tmp_path / "train"), "--test", str(tmp_path / "test"), "--device", "cpu"]
    words = ["starts", "cifar10-tiny", *sets, "--n", "2", "--steps", "3", "--sigmas", "0.87", "1e9"]
    printed = script("starts.py", *words, "--out", str(tmp_path / "starts"))
    rows = [json.loads(path.read_text()) for path in sorted((tmp_path / "starts").glob("*.json"))]
    assert [(row["sigma"], row["start"]) for row in rows] == [
        (s, kind) for s in (0.87, 1e9) for kind in ("gaussian", "test", "train")
    ]
    assert rows[0]["t"] < rows[-1]["t"] == 2.0
    assert [row.get("recovery") for row in rows[:3]] == [None, 1, 1]  # gray levels survive that noise
    assert all(row["gallery"] == 8 for row in rows if row["start"] != "gaussian")
    assert len(printed.splitlines()) == 8 + 6
    np.savez(tmp_path / "made.npz", images=rng.integers(0, 256, (64, 32, 32, 3), dtype=np.uint8))
    words = ["repeats", str(tmp_path / "made.npz"), "--train", str(tmp_path / "train"), "--device", "cpu"]
    printed = script("starts.py", *words, "--times", "1", "8", "--out", str(tmp_path / "again"))
    names, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in printed.splitlines())
    table = [dict(zip(names, line)) for line in lines]
    assert [(row["distinct"], row["copies"]) for row in table] == [("64", "1"), ("8", "1"), ("8", "8")]
    assert float(table[2]["recall"]) == 0  # a sample's five nearest neighbors are its copies
    assert table[1]["coverage"] == table[2]["coverage"]


def test_painted_dataset(script, tmp_path):
    np.save(tmp_path / "raw.npy", np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8))
    prepare(tmp_path / "raw.npy", tmp_path / "data", size=8, channels=3)
    script("paint_dataset.py", str(tmp_path / "data"), str(tmp_path / "out.npy"), "--paint", "strokes(colors=2)")
    painted = np.load(tmp_path / "out.npy")
    assert painted.shape == (3, 8, 8, 3)
    assert all(len(np.unique(image.reshape(-1, 3), axis=0)) == 2 for image in painted)


def test_latent_edges_benchmark(script, monkeypatch):
    """A latent that is the image, averaged, has its edges; one of noise has none."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    measure = runpy.run_path(str(BENCHMARKS / "latent_edges.py"), run_name="latent_edges")["measure"]
    rng = torch.Generator().manual_seed(0)
    blocks = torch.rand(32, 1, 6, 6, generator=rng)  # squares of random gray levels, edges between them
    whole = torch.nn.functional.interpolate(blocks, scale_factor=8)
    shifts = torch.randint(0, 8, (32, 2), generator=rng).tolist()
    images = torch.stack([one.roll(shift, (-2, -1)) for one, shift in zip(whole, shifts)])
    images = images + 0.02 * torch.randn(images.shape, generator=rng)
    mean = torch.nn.functional.avg_pool2d(images, 2)
    found = measure(images.expand(-1, 3, -1, -1), torch.cat([mean, torch.randn(mean.shape, generator=rng)], 1), 2)
    same, noise = found["channels"]
    assert same["correlation"] > 0.7
    assert same["contrast"] > 1.5
    assert abs(same["control"]) < 0.1
    assert abs(noise["correlation"]) < 0.05
    assert noise["contrast"] == pytest.approx(1, abs=0.03)
    assert found["pixels"]["contrast"] > 1.5


def test_windows_have_mixed_sizes_and_depend_on_name_and_seed(script, tmp_path):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as photos:
        for name in ("a/1.png", "a/2.png", "b/3.png"):
            pixels = np.random.default_rng(len(photos.namelist())).integers(0, 255, (20, 30, 3), dtype=np.uint8)
            photos.writestr(name, png(pixels))

    def cut(name: str, *words: str) -> tuple[bytes, ...]:
        script("cut_windows.py", str(tmp_path / "photos.zip"), "--out", str(tmp_path / name), *words)
        with zipfile.ZipFile(tmp_path / name) as windows:
            return tuple(windows.read(file) for file in sorted(windows.namelist()))

    words = ("--folder", "a/", "--sides", "8", "16")
    first = cut("1.zip", *words)
    sizes = [Image.open(io.BytesIO(file)).size for file in first]
    assert len(first) == 2
    assert all(8 <= side <= 16 for size in sizes for side in size)
    assert sizes[0] != sizes[1]
    assert cut("2.zip", *words) == first != cut("3.zip", *words, "--seed", "1")


def test_operations_of_a_network_are_counted_without_memory(script):
    from network_speed import count

    small, large = (count(Plan.of(recipe(name))) for name in ("cifar10-ve-small", "lsun256-ve"))
    assert (small[1], large[1]) == (6_807_363, 65_574_421)
    assert small[0] == pytest.approx(3.30e9, rel=0.01)  # the convolutions, two operations each
    assert large[0] > 100 * small[0]


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()
