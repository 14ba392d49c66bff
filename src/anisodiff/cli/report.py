"""A report of metrics: on a terminal a table of at most 80 columns, each warning once below it; else Markdown."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from anisodiff.metrics import Report, Value

WIDEST = 100
"""Longer lines are hard to read, however wide the terminal."""
_RAISED = str.maketrans("0123456789,", "⁰¹²³⁴⁵⁶⁷⁸⁹ ")


def _console() -> "Console | None":
    """Standard output, if it is a terminal."""
    if not sys.stdout.isatty():
        return None
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    console.width = min(console.width, WIDEST)
    return console


def _table(head: Sequence[str]) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for number, title in enumerate(head):
        table.add_column(title, overflow="fold", no_wrap=number == 0)
    return table


def draw_report(report: "Report", console: "Console") -> None:
    """Values against the reference and, in a column of its own, the held-out set; notes and protocol below."""
    from rich.table import Table

    from anisodiff.metrics.protocol import HELDOUT, WARNING

    warnings: dict[str, int] = {}
    notes: dict[str, list[str]] = {}  # text → metrics

    def cell(value: "Value | None") -> str:
        if value is None:
            return ""
        parts = value.note.split("; ")
        marks = sorted(warnings.setdefault(p, len(warnings) + 1) for p in parts if p.startswith(WARNING))
        note = "; ".join(p for p in parts if not p.startswith(WARNING))
        if note and not value.name.endswith(HELDOUT):
            notes.setdefault(note, []).append(value.name)
        error = "" if value.error is None else f" ± {value.error:.2g}"
        return f"{value.value:.4g}{error} {','.join(map(str, marks)).translate(_RAISED)}".rstrip()

    found = {value.name: value for value in report.values}
    apart = any(name.endswith(HELDOUT) for name in found)
    table = _table(["metric", "reference", "held-out"] if apart else ["metric", "value"])
    for name, value in found.items():
        if not name.endswith(HELDOUT):
            table.add_row(name, cell(value), *([cell(found.get(f"{name}{HELDOUT}"))] if apart else []))
    console.print(table)
    below = [(str(number).translate(_RAISED), text) for text, number in warnings.items()]
    for rows in (below, [(", ".join(names), note) for note, names in notes.items()]):
        if rows:
            grid = Table.grid(padding=(0, 1))
            grid.add_column(max_width=28)
            for row in rows:
                grid.add_row(*row)
            console.print(grid)
            console.print()
    for phrase in report.phrases():
        console.print(phrase)


def show_report(report: "Report") -> None:
    """Print a report on standard output."""
    if (console := _console()) is None:
        typer.echo(report.table())
    else:
        draw_report(report, console)


def show_comparison(reports: "Sequence[Report]", names: Sequence[str], *, force: bool, err: bool = False) -> None:
    """Print reports side by side, one column each; ``err``: on standard error."""
    from anisodiff.metrics.protocol import compared, comparison_table

    if err or (console := _console()) is None:
        typer.echo(comparison_table(reports, names, force=force), err=err)
        return
    (head, *rows), warnings = compared(reports, names, force=force)
    table = _table(head)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for warning in warnings:
        console.print(warning)
