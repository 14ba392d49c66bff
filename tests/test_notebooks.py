"""The notebooks run from the first cell to the last, in small; they are stored without outputs."""

import json
import re
from pathlib import Path

import pytest

BOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
SMALL = {
    "SIZE = 64": "SIZE = 16",
    "STEPS = 50": "STEPS = 4",
    "IMAGES = 200_000": "IMAGES = 8",
    "SETTINGS = {}": (
        "SETTINGS = {'size': 8, 'batch': 4, 'calibration': 16, 'log_every': 4, 'device': 'cpu', 'network': "
        "{'name': 'tiny', 'nf': 4, 'multipliers': [1], 'blocks': 1}}"
    ),
}


def test_there_are_three_without_outputs():
    assert len(BOOKS) == 3
    for path in BOOKS:
        book = json.loads(path.read_text(encoding="utf-8"))
        code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
        assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
        assert all(len(line) <= 101 for cell in book["cells"] for line in cell["source"])


@pytest.mark.parametrize("path", BOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_ends_with_a_picture(path, tmp_path):
    pytest.importorskip("ipykernel")
    nbformat, client = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.read(path, 4)
    changed = 0
    for cell in book.cells:
        for long, short in SMALL.items():
            cell.source, count = re.subn(
                rf"^{re.escape(long)}", lambda _, short=short: short, cell.source, flags=re.M
            )
            changed += count
    assert changed  # in small
    client.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert "image/png" in shown[-1]["data"]
