"""The benchmarks of training run, with tiny settings."""

import importlib.util
import json
import sys
import time
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = "size=8;channels=1;network.nf=8;network.multipliers=[1,1];network.blocks=1;batch=4"


def benchmark(name):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_training_benchmark(tmp_path):
    module = benchmark("train")
    recipes = [f"cifar10-{name}-small:{TINY}" for name in ("ve", "anisotropic")]
    words = ["--device", "cpu", "--seconds", "0", "--calibration", "64", "--json", str(tmp_path / "r.json")]
    module.main([*recipes, *words, "--markdown", str(tmp_path / "r.md")])
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert all(row["rate"] > 0 and 0 < row["share"] < 1 and row["batch"] == 4 for row in rows)
    assert (tmp_path / "r.md").read_text().count("8×8") == 2
    assert all(row["loss"] > 0 and not row["generation"] for row in rows)


def test_costs_over_batch_size_and_nfe(tmp_path, monkeypatch):
    module = benchmark("train")
    recipes = [f"cifar10-{name}-small:{TINY}" for name in ("ve", "flow-matching")]
    words = [*recipes, "--device", "cpu", "--seconds", "0", "--calibration", "16", "--nfe", "10", "--count", "2"]
    words += ["--batches", "2", "4", "--sizes", "8", "16", "--nfes", "20", "--json", str(tmp_path / "r.json")]
    module.main([*words, "--for", "-1"])  # no time for any
    assert not (tmp_path / "r.json").exists()
    module.main([*words, "--figure", str(tmp_path / "r.png")])
    held = (tmp_path / "r.json").read_text()
    rows = json.loads(held)["rows"]
    assert [(row["size"], row["batch"]) for row in rows] == 2 * [("8×8", 4), ("8×8", 2), ("16×16", 1)]
    assert [list(row["generation"]) for row in rows] == 2 * [["10", "20"], ["10"], ["10"]]
    assert all(seconds > 0 for row in rows for seconds in row["generation"].values())
    assert (tmp_path / "r.png").stat().st_size > 10_000
    monkeypatch.setattr(module, "run", None)  # nothing is measured twice
    module.main([*words, "--markdown", str(tmp_path / "r.md")])
    assert (tmp_path / "r.json").read_text() == held
    assert (tmp_path / "r.md").read_text().count("16×16") == 2


def test_network_benchmark():
    module = benchmark("network_speed")
    row = module.measure(
        "tiny@8:2", compiled=False, device="cpu", began=time.time(), seconds=0.0, peak=1e12, profile=False
    )  # fmt: skip
    assert (row.size, row.batch, row.compiled, row.recompute, row.gib) == (8, 2, False, False, None)
    assert min(row.first_step, row.training, row.sampling) > 0
    assert module.line(row).count("|") == module.HEAD.count("|") + 4
