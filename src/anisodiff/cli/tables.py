"""Tables and reports on standard output: drawn for the width of a terminal, Markdown elsewhere."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from anisodiff.metrics import Report, Value

Cells = Sequence[Sequence[str]]
WIDEST = 100
"""Columns of a report, however wide the terminal: longer lines are hard to read."""


def _screen(*, err: bool = False) -> Console:
    return Console(stderr=err, highlight=False, markup=False, emoji=False)


def _draw(screen: Console, cells: Cells) -> None:
    """A table, the first row its head; columns of numbers are right-aligned, ``**…**`` is bold."""
    head, *rows = cells
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column, name in enumerate(head):
        numeric = all(row[column].strip("*")[:1] in "0123456789-–." for row in rows)
        table.add_column(name, justify="right" if numeric and column else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell.strip("*"), style="bold" if cell.startswith("**") else "") for cell in row))
    screen.print(table)


def show_table(
    table: Cells, narrow: Cells, notes: Sequence[str] = (), console: Console | None = None, *, err: bool = False
) -> None:
    """Rows of cells, the head first, and a line for each note; a terminal gets ``narrow``. ``err``: not on stdout."""
    from anisodiff.metrics.protocol import aligned

    screen, lines = console or _screen(err=err), [f"- {note}" for note in notes]
    if not screen.is_terminal:
        typer.echo("\n".join([aligned(table, widest=60), *([""] if notes else []), *lines]), err=err)
        return
    _draw(screen, narrow)
    for line in lines:
        screen.print(Text(line))


def draw_report(report: "Report", console: Console) -> None:
    """Values against the reference and, in a column of its own, the held-out set; notes and protocol below."""
    from anisodiff.metrics.protocol import HELDOUT

    values, warnings = {value.name: value for value in report.values}, report.warnings()
    remarks: dict[str, list[str]] = {}  # note → metrics

    def cell(value: "Value | None") -> str:
        if value is None:
            return ""
        error = "" if value.error is None else f" ± {value.error:.2g}"
        return " ".join([f"{value.value:.4g}{error}", *(warnings[text] for text in value.notes(warnings=True))])

    heldout = any(name.endswith(HELDOUT) for name in values)
    rows = [["metric", "reference", "held-out"] if heldout else ["metric", "value"]]
    for name, value in values.items():
        if not name.endswith(HELDOUT):
            rows.append([name, cell(value), *([cell(values.get(f"{name}{HELDOUT}"))] if heldout else [])])
            if note := "; ".join(value.notes(warnings=False)):
                remarks.setdefault(note, []).append(name)
    _draw(console, rows)
    console.print()
    marked = [(mark, text) for text, mark in warnings.items()]
    for below in (marked, [(", ".join(names), note) for note, names in remarks.items()]):
        if below:
            grid = Table.grid(padding=(0, 1))
            grid.add_column(max_width=28)
            for row in below:
                grid.add_row(*row)
            console.print(grid)
            console.print()
    for phrase in report.protocol.phrases():
        console.print(phrase)


def show_report(report: "Report") -> None:
    """Print a report on standard output."""
    screen = _screen()
    if not screen.is_terminal:
        typer.echo(report.table())
        return
    screen.width = min(screen.width, WIDEST)
    draw_report(report, screen)


def show_comparison(reports: "Sequence[Report]", names: Sequence[str], *, force: bool, err: bool = False) -> None:
    """Print reports side by side, one column each; ``err``: on standard error."""
    from anisodiff.metrics.protocol import compared

    rows, warnings = compared(reports, names, force=force)
    show_table(rows, rows, warnings, err=err)
