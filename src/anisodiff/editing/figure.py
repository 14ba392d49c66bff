"""Pictures of edits: a comparison of methods, and a sweep over strengths. Every figure says how it was made."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from anisodiff.editing.sweep import Sweep
from anisodiff.io.figures import INK, PALE, canvas
from anisodiff.io.images import to_display

SIDE, GAP, HEAD, LINE = 1.7, 0.08, 0.42, 0.17
"""Inches: a panel, between panels, titles above the first row, a line of the caption."""


def _show(axes: Any, image: Tensor) -> None:
    axes.imshow(to_display(image)[0], interpolation="nearest" if image.shape[-1] < 100 else "antialiased")
    axes.set_axis_off()


def comparison_figure(rows: Sequence[Sequence[Tensor]], titles: Sequence[str], caption: Sequence[str] = ()) -> Any:
    """Pictures [C, H, W] in rows, one for every input, under column ``titles``; lines of ``caption`` below.

    Columns may hold pictures of other sizes: checkpoints of other sizes can be compared.
    """
    if not rows or any(len(row) != len(titles) for row in rows):
        raise ValueError(f"comparison: got rows of {[len(r) for r in rows]} pictures, expected {len(titles)} in each")
    tall = max(row[0].shape[-2] / row[0].shape[-1] for row in rows) * SIDE
    width = len(titles) * (SIDE + GAP) + GAP
    foot = LINE * len(caption) + 2 * GAP
    height = HEAD + len(rows) * (tall + GAP) + foot
    figure = canvas(width, height)
    for r, row in enumerate(rows):
        bottom = height - HEAD - (r + 1) * (tall + GAP) + GAP
        for c, image in enumerate(row):
            box = ((GAP + c * (SIDE + GAP)) / width, bottom / height, SIDE / width, tall / height)
            axes = figure.add_axes(box)
            _show(axes, image)
            if r == 0:
                axes.set_title(titles[c], fontsize=8, color=INK, pad=3)
    for number, line in enumerate(caption):
        y = (foot - GAP - (number + 0.5) * LINE) / height
        figure.text(GAP / width, y, line, fontsize=6.5, color=PALE, va="center")
    return figure


def sweep_figure(found: Sweep, caption: str = "") -> Any:
    """Faithfulness and realism against strength, one against the other, and a result for every strength."""
    count, picked = len(found.strengths), found.elbow
    figure = canvas(11.0, 6.2)
    grid = figure.add_gridspec(2, 1, height_ratios=[2.6, 1], left=0.07, right=0.94, top=0.93, bottom=0.08, hspace=0.3)
    upper = grid[0].subgridspec(1, 2, wspace=0.42)
    over, plane = figure.add_subplot(upper[0]), figure.add_subplot(upper[1])
    strengths, rmse = (0.0, *found.strengths), (0.0, *found.rmse)
    realism = (found.painting, *found.realism)
    over.plot(strengths, rmse, "o-", color="#1f5fa8", markersize=4)
    over.set_xlabel("strength s  (0: the painting as given)")
    over.set_ylabel("RMSE to the painting", color="#1f5fa8")
    other = over.twinx()
    other.plot(strengths, realism, "s--", color="#b5542a", markersize=4)
    other.set_ylabel(found.label, color="#b5542a", fontsize=8)
    over.axvline(found.strengths[picked], color=INK, linewidth=1, linestyle=":")
    over.set_title(f"elbow at s = {found.strengths[picked]:.2f}, t = {found.times[picked]:.3g}", fontsize=10)
    plane.plot(rmse, realism, "-", color=PALE, linewidth=1)
    plane.plot(rmse, realism, "o", color=INK, markersize=4)
    for s, x, y in zip(strengths, rmse, realism):
        plane.annotate(f"{s:.2f}", (x, y), textcoords="offset points", xytext=(5, 4), fontsize=7, color=PALE)
    plane.plot(
        [found.rmse[picked]], [found.realism[picked]], "o", markersize=13, markerfacecolor="none", color="#b5542a"
    )
    plane.set_xlabel("less faithful →   RMSE to the painting")
    plane.set_ylabel("less real →   " + found.label.split(" (")[0])
    plane.set_title("faithful and real: lower left", fontsize=10)
    for axes in (over, plane):
        axes.spines["top"].set_visible(False)
        axes.grid(alpha=0.2)
    lower = grid[1].subgridspec(1, count, wspace=0.08)
    for k in range(count):
        axes = figure.add_subplot(lower[k])
        _show(axes, found.results[k, 0, 0])
        axes.set_title(f"s = {found.strengths[k]:.2f}", fontsize=8, color="#b5542a" if k == picked else INK, pad=3)
    figure.text(0.07, 0.03, caption, fontsize=7, color=PALE, va="center")
    return figure
