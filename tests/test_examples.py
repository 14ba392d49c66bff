"""The examples run and say something true; the README's program prints what the README says."""

import contextlib
import io
import re
import runpy
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import anisodiff
from tests.training.conftest import NETWORK

ROOT = Path(__file__).parents[1]
EXAMPLES = [
    ("01_see_a_process.py", ["--size", "16", "--output", "see.png"]),
    ("02_define_your_own.py", ["--size", "8"]),
    ("03_closed_forms.py", ["--size", "4", "--samples", "400"]),
    ("04_terminal_state.py", ["--images", "16", "--size", "8"]),
    ("05_editing.py", ["--size", "8", "--train", "64", "--steps", "4"]),
]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(sorted(page for folder in (".", "results", "reference") for page in (ROOT / "docs" / folder).glob("*.md"))),
]


@pytest.fixture
def example(monkeypatch, tmp_path, capsys):
    """Run an example in a folder of its own; returns what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, words: list[str]) -> str:
        monkeypatch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_every_example_is_tried_and_short():
    scripts = sorted((ROOT / "examples").glob("*.py"))
    assert [p.name for p in scripts] == [name for name, _ in EXAMPLES]
    assert all(len(p.read_text(encoding="utf-8").splitlines()) <= 80 for p in scripts)


def test_see_a_process(example, tmp_path):
    out = example(*EXAMPLES[0])
    rows = [[float(v) for v in re.findall(r"-?\d+\.\d+", line)[1:-1]] for line in out.splitlines() if "t = " in line]
    assert len(rows) == 6
    assert rows[0] == pytest.approx([1.0] * 4)
    assert rows[-1][-1] < 0.5 < rows[2][0]  # fine detail is gone at T, coarse structure is there at 0.8
    assert (tmp_path / "see.png").exists()


def test_define_your_own(example):
    out = example(*EXAMPLES[1])
    assert "three ways, one process: True" in out
    gaps = [float(v) for v in re.findall(r"from 160 windows (\S+)", out)]
    assert len(gaps) == 4
    assert gaps == sorted(gaps, reverse=True)  # more windows, smaller error
    assert "refused: the exponential step needs isotropic noise" in out


def test_closed_forms(example):
    out = example(*EXAMPLES[2])
    assert out.rstrip().endswith("\nagree")


def test_terminal_state(example):
    rows = example(*EXAMPLES[3]).splitlines()[2:]
    assert len(rows) == 5
    assert rows[0].endswith("dependent on U_0")
    ratios = [float(row.split()[1]) for row in rows]
    assert ratios[0] > 100 * ratios[-1]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_readmes_program_prints_what_it_says(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```\s+prints\s+```\n(.*?)```", text, re.DOTALL)
    assert found is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(found[1], {})
    assert printed.getvalue() == found[2]
    assert (tmp_path / "grid.png").stat().st_size > 1000


def test_the_program_in_getting_started_runs():
    text = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    seen: dict = {}
    exec(found[1], seen)
    assert seen["u"].shape == (8, 3, 32, 32)
    assert len(seen["path"]) == 3
    torch.testing.assert_close(seen["v"], 2 * seen["u"] - 1, rtol=0, atol=1e-3)


def test_the_program_for_own_images_runs_in_small(monkeypatch, tmp_path, capsys):
    """As it stands on the page, but for the length and the size of the network."""
    text = (ROOT / "docs" / "own-images.md").read_text(encoding="utf-8")
    found = re.search(r"## From Python.*?```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    small = "batch=4, calibration=16, log_every=4, device='cpu', network=NETWORK"
    program = (
        found[1].replace("images=200_000", f"images=8, {small}").replace("images=400_000", "images=12, device='cpu'")
    )
    assert program.count("device='cpu'") == 2
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for k, photo in enumerate(torch.rand(6, 16, 16, 3, generator=torch.Generator().manual_seed(0))):
        Image.fromarray((255 * photo).byte().numpy()).save(tmp_path / "photos" / f"{k}.png")
    seen: dict = {"NETWORK": NETWORK}
    exec(program, seen)
    out = capsys.readouterr().out.splitlines()
    assert [float(line) > 0 for line in out[:2]] == [True, True]
    assert out[2].startswith("True Generator(run: process ")
    assert seen["images"].shape == (16, 3, 16, 16)
    assert (tmp_path / "samples.png").stat().st_size > 1000
    assert seen["model"].outcome.images == 12


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A model of 32², as the shipped one, but small: one step of training."""
    photos, output = tmp_path_factory.mktemp("photos"), tmp_path_factory.mktemp("run")
    for k in range(4):
        Image.fromarray((255 * torch.rand(32, 32, 3)).byte().numpy()).save(photos / f"{k}.png")
    words = {"process": "ve", "images": 4, "batch": 4, "calibration": 16, "network": NETWORK, "size": 32}
    return anisodiff.train(photos, output, **words, device="cpu")


def programs(page: str) -> list[str]:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize(
    ("page", "made"),
    [
        ("editing", "images"), ("generating", "images"), ("inverse-problems", "path"), ("processes", "a"),
        ("samplers", "images"),
    ],
)  # fmt: skip
def test_the_programs_of_a_page_run_one_after_the_other(page, made, small, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(anisodiff, "load", lambda name: {"RUN": small, "cifar10-tiny": small}[name])
    for name, size in (("photo.jpg", (40, 30)), ("small.png", (8, 8))):
        Image.fromarray((255 * torch.rand(*size, 3)).byte().numpy()).save(name)
    seen: dict = {}
    for program in programs(page):
        exec(program, seen)
    assert seen.get("generator", small) is small
    assert torch.as_tensor(seen[made]).isfinite().all()


def test_the_programs_on_evaluation_run_in_small(small, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(small.origin.path, "run")
    pixels = torch.randint(256, (6, 32, 32, 3), dtype=torch.uint8).numpy()
    np.savez("photos.npz", pixels)
    for name in ("samples.zip", "train.zip"):
        with zipfile.ZipFile(name, "w") as archive:
            for k, picture in enumerate(pixels):
                with archive.open(f"{k}.png", "w") as file:
                    Image.fromarray(picture).save(file, "PNG")
    for program in programs("evaluation"):
        exec(program.replace("n=256, steps=20", "n=4, steps=4"), {})
    printed = capsys.readouterr().out
    assert all(f"| {name} " in printed for name in ("bits", "fid", "spectrum_error"))


def test_the_program_on_classes_runs_in_small(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    for kind in ("cat", "dog"):
        (tmp_path / "animals" / kind).mkdir(parents=True)
        for k in range(3):
            Image.fromarray((255 * torch.rand(16, 16, 3)).byte().numpy()).save(f"animals/{kind}/{k}.png")
    few = "batch=4, images=8, calibration=16, device='cpu', network=NETWORK, process='ve', progress=False"
    seen: dict = {"NETWORK": NETWORK}
    exec(
        programs("classes")[0].replace('classes="auto"', f'classes="auto", {few}').replace("sample(16", "sample(2"),
        seen,
    )
    assert capsys.readouterr().out == "('cat', 'dog')\n"
    assert seen["guided"].shape == (2, 3, 16, 16)


def test_the_config_in_getting_started_is_a_process():
    text = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
    found = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert found is not None
    keys = yaml.safe_load(found[1])
    made = anisodiff.process(keys.pop("preset"), 128, **keys)
    assert made.identity()["step"] == "exponential(windows=40, tolerance=1e-06)"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_and_pictures_exist(page):
    targets = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    for target in targets:
        if not target.startswith("http"):
            assert (page.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "log.md"], ids=lambda p: p.name)
def test_lines_of_prose_are_short(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    prose = [line for line in text.splitlines() if not line.startswith(("|", "    ", "!["))]
    assert [line for line in prose if len(line) > 100] == []


def test_the_figure_of_the_results_shows_the_numbers_of_the_pages(tmp_path):
    figure = runpy.run_path(str(ROOT / "docs" / "results_figures.py"))["main"](tmp_path / "summary.png")
    assert Image.open(tmp_path / "summary.png").size == Image.open(ROOT / "docs/results/summary.png").size
    pages = ["results/README.md", "results/details.md", "results/structure-texture.md"]
    said = set(
        re.findall(r"\d+(?:\.\d)?", "".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in pages))
    )
    *panels, cartoons = figure.axes
    for axes in panels:
        shown = {f"{y:.1f}" for line in axes.get_lines() for y in line.get_ydata()}
        assert len(shown) > 6
        assert shown <= said, shown - said
    assert {f"{min(line.get_ydata()):.0f}" for line in cartoons.get_lines()} <= said  # the page has the best strength
