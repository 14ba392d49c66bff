"""The benchmark scripts run, with tiny settings."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_forward_benchmark(tmp_path):
    words = ["--device", "cpu", "--sizes", "8", "--pixels", "64", "--seconds", "0", "--modes", "eager"]
    words += ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]
    subprocess.run([sys.executable, BENCHMARKS / "forward.py", *words], check=True, capture_output=True)
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert [row["kind"] for row in rows] == ["tamed", "exponential"]
    assert all(row["rate"] > 0 and row["floor"] > 0 for row in rows)
    assert (tmp_path / "r.md").read_text().count("| eager |") == 2
