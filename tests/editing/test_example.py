"""The editing example runs from beginning to end."""

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "05_editing.py"


@pytest.fixture
def example(monkeypatch, tmp_path, capsys):
    """Run it in a folder of its own; returns what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*words) -> list[str]:
        monkeypatch.setattr(sys, "argv", [SCRIPT.name, *map(str, words)])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def test_it_trains_paints_sweeps_and_keeps(example, tmp_path):
    lines = example("--size", 8, "--train", 64, "--steps", 4)
    assert lines[0] == "painting: 6 colors"
    picked, back = (float(line.split()[-1].rstrip("),")) for line in (lines[1].split(",")[0], lines[1]))
    assert picked == back
    assert 0.1 < picked < 1
    assert lines[2] == "kept exactly below: True"
    assert all((tmp_path / name).stat().st_size > 5000 for name in ("editing.png", "sweep.png"))
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) <= 80
