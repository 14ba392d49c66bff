"""Windows and macOS: nothing that only POSIX has, names that every file system takes, text that says its encoding."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
PROGRAM = """
import sys
from tests.support import windows
windows.simulate()

import importlib, os, pkgutil, signal
import anisodiff
assert not hasattr(os, "fork") and not hasattr(signal, "SIGKILL")
for module in pkgutil.walk_packages(anisodiff.__path__, "anisodiff."):
    if module.name != "anisodiff.__main__" and ".kernels" not in module.name and "keyed_kernels" not in module.name:
        importlib.import_module(module.name)

from typer.testing import CliRunner
from anisodiff.cli.main import app

def command(*words):
    result = CliRunner().invoke(app, [*map(str, words), "--device", "cpu"], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert result.exit_code == 0, result.output

small = [f"--set={item}" for item in (
    "network.nf=4", "network.multipliers=[1]", "network.blocks=1", "batch=4", "calibration=16", "log_every=4",
    "checkpoint_every=4", "sample_every=0", "warm_up=0",
)]
run = ("train", "ve", "--data", "pictures.npy", "-o", "run", "--holdout", 4, "--track", "none", *small)
for images in (8, 16):  # begun, and continued; the third checkpoint removes the first
    command(*run, "--images", images)
command("sample", "run", "--n", 2, "--steps", 2, "--out", "samples")
command("sample", "run", "--n", 2, "--steps", 2, "--out", "samples.zip")
command("edit", "run", "samples", "--steps", 2, "--out", "edited")
anisodiff.load("cifar10-tiny")
os.mkdir("empty")
anisodiff.data.prepare("pictures.npy", "empty", size=8, channels=1)
with anisodiff.io.atomic.atomic("/dev/null") as temporary:
    temporary.write_bytes(b"not a regular file")
"""


def test_imports_trains_samples_and_edits_without_what_only_posix_has(tmp_path):
    np.save(tmp_path / "pictures.npy", np.random.default_rng(0).integers(0, 256, (24, 8, 8), np.uint8))
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-c", PROGRAM],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    names = [path.name for path in tmp_path.rglob("*")]
    assert len(names) > 20
    reserved = re.compile(r'[<>:"|?*\\\x00-\x1f]|[. ]$|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)', re.IGNORECASE)
    assert not [name for name in names if reserved.search(name)]
