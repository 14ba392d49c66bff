"""The benchmark of training runs, with tiny settings."""

import importlib.util
import json
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "train.py"
TINY = "size=8;channels=1;network.nf=8;network.multipliers=[1,1];network.blocks=1;batch=4"


def test_training_benchmark(tmp_path):
    spec = importlib.util.spec_from_file_location("benchmark_train", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    recipes = [f"cifar10-{name}-small:{TINY}" for name in ("ve", "anisotropic")]
    words = ["--device", "cpu", "--seconds", "0", "--calibration", "64", "--json", str(tmp_path / "r.json")]
    module.main([*recipes, *words, "--markdown", str(tmp_path / "r.md")])
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert all(row["rate"] > 0 and 0 < row["share"] < 1 and row["batch"] == 4 for row in rows)
    assert (tmp_path / "r.md").read_text().count("8×8") == 2
