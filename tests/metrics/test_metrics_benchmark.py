"""The benchmark script of the metrics, with a tiny network and a few images."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from tests.metrics.conftest import publish, save_network

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "metrics.py"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module that takes the tiny network for the published one; its weights lie in two pieces."""
    spec = importlib.util.spec_from_file_location("metrics_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "metrics_benchmark", module)
    monkeypatch.syspath_prepend(str(SCRIPT.parent))  # as when the script is run: it imports its neighbors
    spec.loader.exec_module(module)
    single = save_network(tmp_path / "single.pt")
    save_network(tmp_path / "half.pt", half=True)
    content = single.read_bytes()
    (tmp_path / "single.pt.1").write_bytes(content[:1000])
    (tmp_path / "single.pt.2").write_bytes(content[1000:])
    module.PUBLISHED = publish(single)
    rng = np.random.default_rng(0)
    for name, low in (("data_batch_1.png", 0), ("test_batch.png", 60)):
        rows = rng.integers(low, 255, (24, 1024, 3), dtype=np.uint8)
        Image.fromarray(rows).save(tmp_path / name)
    return module


def words(folder: Path, *more: object) -> list[str]:
    fixed = ["--cifar", folder, "--inception", folder / "half.pt", "--device", "cpu", "--batch", 12]
    return [str(w) for w in (*fixed, "--train", 24, "--test", 20, "--output", folder / "out.json", *more)]


def rows_of(folder: Path) -> dict[str, float]:
    return {row["name"]: row["value"] for row in json.loads((folder / "out.json").read_text())["rows"]}


def test_half_against_single_storage_from_pieces(script: ModuleType, tmp_path: Path) -> None:
    pieces = [tmp_path / "single.pt.1", tmp_path / "single.pt.2"]
    script.main(words(tmp_path, "--storage-only", "--single", *pieces))
    rows = rows_of(tmp_path)
    base, changed = rows["FID train against test"], rows["single precision storage: FID train against test"]
    assert rows["single precision storage: change of that FID"] == pytest.approx(changed - base, abs=1e-15)
    assert 0 < abs(changed - base) < 1e-2 * base  # rounding of the weights to 11 bits is seen, and small
    assert 0 < rows["single precision storage: RMS feature difference"] < 1e-3
    assert "PRDC" not in " ".join(rows)
    script.main(words(tmp_path, "--storage-only", "--single", tmp_path / "single.pt"))
    whole = rows_of(tmp_path)
    assert whole["single precision storage: FID train against test"] == changed  # joined: the very same file


def test_everything_with_tf32(script: ModuleType, tmp_path: Path) -> None:
    script.main(words(tmp_path, "--tf32"))
    rows = rows_of(tmp_path)
    assert {"FID train against test", "KID train against test", "precision", "TF32: change of that FID"} <= {*rows}
    assert rows["TF32: change of that FID"] == 0  # a CPU has none


def test_wrong_weights_and_equal_files_are_refused_before_any_work(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_network(tmp_path / "other.pt", seed=3)
    with pytest.raises(ValueError, match="these are not the tiny-net weights"):
        script.main(words(tmp_path, "--storage-only", "--single", tmp_path / "other.pt"))
    for more in (["--storage-only"], ["--storage-only", "--single", tmp_path / "half.pt"]):
        with pytest.raises(SystemExit):
            script.main(words(tmp_path, *more))
    assert "nothing to compare" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()
