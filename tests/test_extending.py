"""`docs/extending.md` is followed to the letter in a copy of the package: shared tests, train, sample, compare."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.record import pictures

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n# (\S+?)(?:: (\w+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
TINY = "network=tiny-unet network.width=8 batch=8 warm_up=8 calibration=16 checkpoint_every=0 sample_every=0"
SETTINGS = [word for item in TINY.split() for word in ("--set", item)]


def blocks() -> list[tuple[str, str, str]]:
    """(file, table or nothing, code) of the page."""
    return BLOCK.findall((ROOT / "docs" / "extending.md").read_text(encoding="utf-8"))


def insert(path: Path, table: str, line: str) -> None:
    """Put a line at the head of a table."""
    text = path.read_text(encoding="utf-8")
    found = re.search(rf"^{table}\b[^\n]*?(?:\{{|\[|\(\n    \{{)\n", text, re.MULTILINE)
    assert found, f"{path} has no table {table}"
    path.write_text(text[: found.end()] + f"    {line}" + text[found.end() :], encoding="utf-8")


@pytest.fixture(scope="module")
def extended(tmp_path_factory) -> Path:
    """A copy of the package and its tests with everything on the page added."""
    copy = tmp_path_factory.mktemp("extended")
    ignored = shutil.ignore_patterns("__pycache__", "*.safetensors")
    for folder in ("src", "tests", "benchmarks"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
    for name in ("pyproject.toml", "docs"):
        place = ROOT / name
        shutil.copytree(place, copy / name) if place.is_dir() else shutil.copy(place, copy / name)
    for file, table, code in blocks():
        if not table:
            (copy / file).write_text(code, encoding="utf-8")
            continue
        insert(copy / file, table, code)
    np.save(copy / "raw.npy", pictures(24))
    return copy


def run(extended: Path, *words: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{extended / 'src'}{os.pathsep}{extended}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=extended, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def test_the_page_adds_a_process_a_sampler_and_a_network():
    files = [file for file, table, _ in blocks() if not table]
    assert [Path(file).stem for file in files] == ["vp", "ddim", "tiny_unet"]
    assert sorted(table for _, table, _ in blocks() if table) == [
        "NETWORKS", "OWN", "PROCESSES", "SAMPLERS", "TABLE", "TABLE",
    ]  # fmt: skip


def test_the_shared_tests_know_all_three(extended):
    """Selected by name: rows of the additions, and at least thirty of them."""
    told = run(
        extended, "-m", "pytest", "-p", "no:cacheprovider", "-k", "vp or ddim or tiny-unet", "tests/processes",
        "tests/models", "tests/samplers/test_own_times.py", "tests/networks/test_network_contract.py",
        "tests/networks/test_classes.py", "tests/training/test_baseline_runs.py",
    ).stdout  # fmt: skip
    counted = re.search(r"(\d+) passed", told)
    assert counted, told
    assert int(counted[1]) >= 30, told
    assert "failed" not in told


def test_the_code_of_the_page_is_as_ours(extended):
    """By the same linter and formatter."""
    files = [extended / file for file, table, _ in blocks() if not table]
    for command in (["check"], ["format", "--check"]):
        run(extended, "-m", "ruff", *command, *files)


COMMANDS = """
import json, pathlib, sys
from anisodiff.cli.main import run
from tests.metrics.conftest import save_network

save_network(pathlib.Path("tiny.pt"))
for words in json.loads(sys.argv[1]):
    sys.argv = ["anisodiff", *map(str, words)]
    try:
        run()
    except SystemExit as stop:
        assert not stop.code, words
"""


def test_it_trains_samples_and_is_compared(extended):
    common = ("--device", "cpu", "-o")
    commands = [
        ["train", "vp", "--data", "raw.npy", "--images", 24, *common, "run", *SETTINGS],
        ["sample", "run", "--n", 2, "--steps", 4, "--sampler", "ddim", *common, "made"],
        ["compare", "vp", "vp:sampler=ddim;name=ddim", "--data", "run/data", "--images", 16, "--n", 12, "--steps", 4,
         "--network", "tiny.pt", "--trust-code", "--input", "unit", "--batch", 4, *common, "study", *SETTINGS],
    ]  # fmt: skip
    run(extended, "-c", COMMANDS, json.dumps(commands))
    assert len(list((extended / "made").glob("*.png"))) == 2
    page = (extended / "study" / "results" / "page.md").read_text(encoding="utf-8")
    assert re.search(r"\| vp +\|", page)
    assert re.search(r"\| ddim +\|", page)
