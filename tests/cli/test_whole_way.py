"""A folder of photographs from the first command to the last number: the transcript of getting-started, in small."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
from PIL import Image

from anisodiff.data import open_dataset
from tests.support.children import interruptible

SMALL = [
    word
    for setting in (
        "size=8", "network.nf=8", "network.multipliers=[1, 1]", "network.blocks=1", "batch=8", "calibration=32",
        "checkpoint_every=80", "sample_every=0",
    )
    for word in ("--set", setting)
]  # fmt: skip


def photographs(path, count=60):
    """Odd sizes, one picture of a single pixel, one file that is no picture."""
    path.mkdir()
    rng = np.random.default_rng(0)
    for k in range(count):
        height, width = rng.integers(20, 60, 2)
        ramp = np.linspace(60, 200, width) * rng.uniform(0.5, 1.2, (height, 1))
        Image.fromarray(np.stack([ramp, ramp * 0.9, ramp * 0.7], -1).clip(0, 255).astype(np.uint8)).save(
            path / f"{k:03d}.jpg"
        )
    Image.new("RGB", (1, 1)).save(path / "dot.png")
    (path / "broken.png").write_text("no picture")


def test_from_a_folder_to_numbers(command, tmp_path):
    photographs(tmp_path / "photos")
    words = [sys.executable, "-m", "anisodiff", "train", "--data", "photos", "--holdout", "10%", "-o", "run"]
    words += ["--device", "cpu", *SMALL]
    with interruptible():
        child = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    begin = time.monotonic()
    while not (tmp_path / "run" / "checkpoints").is_dir():
        assert child.poll() is None, child.stdout.read()
        assert time.monotonic() - begin < 120
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=60)[0]
    assert child.returncode == 130, said
    assert "picked for 55 images on cpu: 8×8, process anisotropic-gentle, network tiny" in said
    assert "kept aside: 6 images in run/heldout, never trained on" in said
    assert "first step after " in said
    assert "continue with: anisodiff train -o run" in said

    steps = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])["step"]
    code, out, err = command("train", "-o", "run", "--images", 8 * (steps + 20), "--device", "cpu")
    assert code == 0, err
    assert f"continuing from step-{steps:08d}" in err
    assert f"finished at step {steps + 20}" in out

    code, out, err = command("sample", "run", "--n", 12, "--steps", 8, "--out", "made", "--grid", "made.png")
    assert code == 0, err
    assert len(list((tmp_path / "made").glob("*.png"))) == 12
    code, out, err = command(
        "edit", "run", "photos/000.jpg", "--strokes", 4, "--candidates", 2, "--steps", 8, "--out", "edits"
    )
    assert code == 0, err
    assert list((tmp_path / "edits").rglob("*.png"))

    metrics = ("--metrics", "sliced,spectrum,edges", "--n", 12, "--steps", 8)
    code, out, err = command("evaluate", "run", *metrics, "--json", "report.json")
    assert code == 0, err
    report = json.loads((tmp_path / "report.json").read_text())
    names = {value["name"] for value in report["values"]}
    assert {"sliced_wasserstein", "sliced_wasserstein_heldout", "spectrum_error", "spectrum_error_heldout"} <= names
    assert report["protocol"]["reference_count"] == len(open_dataset(tmp_path / "run" / "data")) == 55
    assert len(open_dataset(tmp_path / "run" / "heldout")) == 6
