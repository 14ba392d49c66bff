"""Figures of edits: several checkpoints side by side, and a sweep over strengths; captions say how they were made."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from anisodiff.editing.editor import Editor
from anisodiff.editing.job import EditConfig, result_path
from anisodiff.editing.results import read_result
from anisodiff.editing.strength import noise_level, strength_of_t
from anisodiff.editing.sweep import Sweep
from anisodiff.io.figures import INK, PALE, canvas, caption
from anisodiff.io.images import to_display
from anisodiff.runtime.progress import Progress, no_progress

SHOWN_CANDIDATES, SHOWN_PICTURES = 4, 8
SIDE, GAP, HEAD, LINE, LETTER = 1.7, 0.08, 0.42, 0.17, 0.056
"""Inches: a panel, between panels, titles above the first row; height of a line and width of a letter below."""


def _show(axes: Any, image: Tensor) -> None:
    axes.imshow(to_display(image)[0], interpolation="nearest" if image.shape[-1] < 100 else "antialiased")
    axes.set_axis_off()


def comparison_figure(rows: Sequence[Sequence[Tensor]], titles: Sequence[str], notes: Sequence[str] = ()) -> Any:
    """Pictures [C, H, W] in rows, one for every input, under column ``titles``; ``notes`` below are wrapped.

    Columns may hold pictures of other sizes: checkpoints of other sizes can be compared.
    """
    if not rows or any(len(row) != len(titles) for row in rows):
        raise ValueError(f"comparison: got rows of {[len(r) for r in rows]} pictures, expected {len(titles)} in each")
    tall = max(row[0].shape[-2] / row[0].shape[-1] for row in rows) * SIDE
    width = len(titles) * (SIDE + GAP) + GAP
    notes = [part for line in notes for part in textwrap.wrap(line, int((width - 2 * GAP) / LETTER))]
    foot = LINE * len(notes) + 2 * GAP
    height = HEAD + len(rows) * (tall + GAP) + foot
    figure = canvas(width, height)
    for r, row in enumerate(rows):
        bottom = height - HEAD - (r + 1) * (tall + GAP) + GAP
        for c, image in enumerate(row):
            box = ((GAP + c * (SIDE + GAP)) / width, bottom / height, SIDE / width, tall / height)
            axes = figure.add_axes(box)
            _show(axes, image)
            if r == 0:
                axes.set_title(titles[c], fontsize=6.5, color=INK, pad=3)
    for number, line in enumerate(notes):
        y = (foot - GAP - (number + 0.5) * LINE) / height
        figure.text(GAP / width, y, line, fontsize=6.5, color=PALE, va="center")
    return figure


def sweep_figure(swept: Sweep, note: str = "") -> Any:
    """A row for every painting: the painting, then its first result at every strength."""
    titles = ["painting"] + [
        f"strength {s:.2f}, RMSE {e:.3f}\nσ/σ_data = {noise_level(s):.2g}, t = {t:.3g}"
        for s, t, e in zip(swept.strengths, swept.times, swept.rmse)
    ]
    rows = [[painting, *swept.results[:, k, 0]] for k, painting in enumerate(swept.paintings)]
    return comparison_figure(rows, titles, [note] if note else [])


def editing_figure(
    editors: Sequence[Editor],
    configs: Sequence[EditConfig],
    out: Path,
    progress: Progress = no_progress,
) -> Any:
    """Input, strokes, and the results of every checkpoint at every time; those of the first as written to ``out``."""
    first, config = editors[0], configs[0]
    rows: list[list[Tensor]] = [[picture.photo] for picture in first.pictures[:SHOWN_PICTURES]]
    titles, notes = ["input"], list[str]()
    if config.strokes is not None:
        titles.append("strokes" if config.strokes.startswith("k-means") else config.strokes.partition("(")[0])
        rows = [[*row, picture.start] for row, picture in zip(rows, first.pictures)]
    total = sum(len(c.times) for c in configs[1:]) * len(rows)
    done = 0
    for number, (editor, plan) in enumerate(zip(editors, configs)):
        same = [e.short for e in editors].count(editor.short) > 1
        name = f"{editor.short} ({number + 1})" if same else editor.short
        seeds = plan.seeds[:SHOWN_CANDIDATES]
        for t in plan.times:
            strength = strength_of_t(editor.generator.model, t)
            place = f"s = {strength:.2f}, σ/σ_data = {noise_level(strength):.2g}, t = {t:.3g}"
            titles += [f"{name}, seed {seed}\n{place}" for seed in seeds]
            for row, picture in zip(rows, editor.pictures):
                if number == 0:
                    row += [read_result(result_path(out, picture.name, t, seed)) for seed in seeds]
                    continue
                starts = picture.start.expand(len(seeds), *picture.start.shape)
                row += list(plan.apply(editor.generator, starts, t, seeds, editor.mask))
                done += 1
                progress(done, total)
        notes.append(f"{name}: {caption(editor.generator.process)}")
    repeats = "" if config.repeats == 1 else f", repeated {config.repeats} times"
    how = "restored" if config.restore else "from a cartoon" if config.cartoon else f"SDEdit{repeats}"
    strokes = "" if config.strokes is None else f", painted by {config.strokes}"
    notes.insert(
        0,
        f"{how}{strokes}; sampler {config.sampling.sampler}, {config.sampling.steps} NFE; s: strength σ/(σ + σ_data)",
    )
    return comparison_figure(rows, titles, notes)
