"""Result tables on standard output: drawn for the width of a terminal, Markdown elsewhere."""

from collections.abc import Sequence

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

Cells = Sequence[Sequence[str]]


def show_table(table: Cells, narrow: Cells, notes: Sequence[str] = (), console: Console | None = None) -> None:
    """Rows of cells, the head first; a terminal gets ``narrow``. ``**…**`` is bold; each note is a line below."""
    from anisodiff.metrics.protocol import aligned

    screen = console or Console(markup=False, emoji=False)
    if not screen.is_terminal:
        typer.echo("\n".join([aligned(table, widest=60), *([""] if notes else []), *(f"- {line}" for line in notes)]))
        return
    head, *rows = narrow
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for k, name in enumerate(head):
        drawn.add_column(name, justify="left" if _words(rows, k) else "right", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell.strip("*"), style="bold" if cell.startswith("**") else "") for cell in row))
    screen.print(drawn)
    for line in notes:
        screen.print(Text(f"- {line}"))


def _words(rows: Cells, column: int) -> bool:
    """Whether a column holds anything but numbers."""
    return not all(row[column].strip("*")[:1] in "0123456789-–." for row in rows)
