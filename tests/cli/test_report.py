"""A report on a terminal: at most 80 columns, each warning once; elsewhere Markdown."""

from __future__ import annotations

import io
import os
import pty
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from rich.console import Console

from anisodiff.cli.tables import draw_report
from anisodiff.metrics import Report, Value, evaluate
from anisodiff.metrics.protocol import few_samples_note
from tests.metrics.conftest import random_images
from tests.metrics.test_protocol import PROTOCOL

FEW, LATER = few_samples_note(200, 90), few_samples_note(200, 10)
REPORT = Report(
    protocol=PROTOCOL,
    values=(
        Value(name="fid", value=52.5602, note=FEW),
        Value(name="fid_infinity", value=44.0307, error=1.4, note=f"extrapolated to infinitely many samples; {FEW}"),
        Value(name="kid", value=0.000483979, error=0.0015, note=f"10 blocks of 20; {FEW}"),
        Value(name="precision", value=0.805, note=f"k=5, 200 against 90; {FEW}"),
        Value(name="recall", value=0.815, note=f"k=5, 200 against 90; {FEW}"),
        Value(name="closer_to_training_features", value=0.5, error=0.1, note="0.5 means none"),
        Value(name="recall_heldout", value=0.8, note=f"k=5, 200 against 10; {LATER}"),
        Value(name="fid_heldout", value=61.25, note=LATER),
        Value(name="kid_heldout", value=0.25, error=0.002, note=f"10 blocks of 20; {LATER}"),
    ),
)


def drawn(report: Report, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    draw_report(report, console)
    return console.file.getvalue()


def test_two_columns_with_each_note_once_below() -> None:
    text = drawn(REPORT)
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["metric", "reference", "held-out"]
    assert lines[1].split() == ["fid", "52.56", "¹", "61.25", "²"]
    rows = {line.split()[0]: line for line in lines[1:7]}
    assert rows["kid"].split()[1:] == ["0.000484", "±", "0.0015", "¹", "0.25", "±", "0.002", "²"]
    assert rows["closer_to_training_features"].split()[1:] == ["0.5", "±", "0.1"]
    flat = " ".join(text.split())
    for note in (f"¹ {FEW}", f"² {LATER}", "fid_infinity extrapolated to", "precision, recall k=5, 200 against 90"):
        assert flat.count(note) == 1
    assert flat.count("warning") == 2
    assert "k=5, 200 against 10 " not in flat  # what a number is, is said once: in the first column
    assert " ".join(REPORT.protocol.phrases()) in flat


def test_one_column_where_nothing_was_held_out_and_no_notes_where_there_are_none() -> None:
    text = drawn(replace(REPORT, values=(Value(name="spectrum_error", value=0.25),)), width=60)
    assert next(line.split() for line in text.splitlines() if line.strip()) == ["metric", "value"]
    assert "¹" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 60


def test_a_terminal_gets_the_table_and_a_pipe_markdown(
    command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, name in enumerate(("samples", "reference")):
        np.savez(tmp_path / f"{name}.npz", images=random_images(12, seed=seed).permute(0, 2, 3, 1).numpy())
    made = evaluate(tmp_path / "samples.npz", tmp_path / "reference.npz", metrics=("spectrum", "edges"))
    (tmp_path / "a.json").write_text(made.to_json())
    words = ["evaluate", "samples.npz", "-r", "reference.npz", "--metrics", "spectrum,edges", "--device", "cpu"]
    words += ["--compare", "a.json"]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    ours, theirs = pty.openpty()
    seen = bytearray()

    def read() -> None:
        with suppress(OSError):  # the other side is closed
            while part := os.read(ours, 65536):
                seen.extend(part)

    reader = Thread(target=read)
    reader.start()
    with monkeypatch.context() as terminal, os.fdopen(theirs, "w") as stream:
        terminal.setattr(sys, "stdout", stream)
        assert command(*words)[0] == 0
    reader.join(60)
    os.close(ours)
    lines = seen.decode().replace("\r", "").splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.startswith("|") for line in lines)
    assert sum("warning: 12 < 10,000 samples" in line for line in lines) == 1
    shown = f"{made['spectrum_error'].value:.4g}"
    starts = [line.split()[:2] for line in lines if line.startswith("spectrum_error")]
    assert starts == [
        ["spectrum_error", shown],
        ["spectrum_error", "decades"],  # the note below
        ["spectrum_error", f"{made['spectrum_error'].value:.6g}"],
    ]
    code, out, _ = command(*words)
    assert code == 0
    assert out.startswith("| metric ")
    assert out.count("warning: 12 < 10,000 samples") == 1
    assert "| metric           | samples" in out
