"""What tests of all folders share."""

import gc
import sys

import pytest
import torch

from anisodiff.cli import main

torch.set_num_threads(
    1
)  # sums over threads round differently, and some tests compare with other processes bit by bit


def pytest_collection_finish() -> None:
    """What collecting has imported stays to the end: no garbage collection has to walk over it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def command(monkeypatch, tmp_path, capsys):
    """Run the command in a folder of its own; returns exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # a script, also under `python -m pytest`

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["anisodiff", *map(str, words)])
        code = 0
        try:
            main.run()
        except SystemExit as stop:
            code = int(stop.code or 0)
        seen = capsys.readouterr()
        return code, seen.out, seen.err

    return run


@pytest.fixture
def refused(command):
    """Run what is a mistake: exit code 2, and one line that ``says`` what; returns standard output."""

    def run(*words: object, says: str) -> str:
        code, out, err = command(*words)
        assert code == 2
        assert err.startswith("anisodiff: ")
        assert err.count("\n") == 1
        assert says in err
        return out

    return run
