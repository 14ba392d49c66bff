"""Figures of a study: curves with one line per run, and sheets of pictures side by side."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from anisodiff.experiments.edits import SHOWN as EDITED
from anisodiff.experiments.layout import LARGEST_SHOWN
from anisodiff.experiments.results import Number, Row, over_images
from anisodiff.io.arrays import read_pixels
from anisodiff.io.atomic import replacing
from anisodiff.io.figures import canvas, save_figure
from anisodiff.io.grids import enlarged, tiled

ACROSS, SIDE, CAPTION = 16, 64, 14
BESIDE, GAP = 4, 10
Pixels = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines of points (x, y), drawn in a figure and kept in page.json; ``marks``: words at points of the figure."""

    title: str
    x: str
    y: str = "FID"
    lines: Sequence[tuple[str, Sequence[tuple[float, Number]]]]
    log: bool = False
    marks: Sequence[tuple[str, tuple[float, float]]] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain values: the means of lines with several points."""
        several = [(name, points) for name, points in self.lines if len(points) > 1]
        lines = [{"name": name, "points": [[x, y.mean] for x, y in points]} for name, points in several]
        return {"title": self.title, "x": self.x, "y": self.y, "lines": lines}


def panels_of(rows: Sequence[Row], priors: Sequence[str]) -> dict[str, list[Panel]]:
    """Figure → its panels, as far as there are results."""
    several = any(len({steps for _, steps in row.columns}) > 1 for row in rows)
    found = {
        "nfe": [_nfe(rows, prior) for prior in priors if several],
        "training": [_training(rows, "seconds", "training time, s"), _training(rows, "images", "images seen")],
        "images": [_images(rows, prior) for prior in priors],
        "edits": [_edits(rows)],
    }
    drawn = {name: [one for one in shown if any(points for _, points in one.lines)] for name, shown in found.items()}
    return {name: shown for name, shown in drawn.items() if shown}


def draw_all(
    panels: Mapping[str, Sequence[Panel]], rows: Sequence[Row], priors: Sequence[str], out: Path
) -> dict[str, str]:
    """Every figure that has results, in results/figures; name → path relative to the page."""
    folder, found = out / "results" / "figures", dict[str, str]()
    for name, shown in panels.items():
        save_figure(_draw(shown), folder / f"{name}.png")
        found[name] = f"figures/{name}.png"
    for name, sheet in {"sheets": _sheets(rows, priors), "edit-sheets": _edit_sheets(rows, out)}.items():
        if sheet is not None:
            with replacing(folder / f"{name}.png") as temporary:
                sheet.save(temporary)
            found[name] = f"figures/{name}.png"
    return found


def tidy(axes: Any, **settings: Any) -> None:
    """Set labels, and the common style of all plots."""
    axes.set(**settings)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.2)


def _draw(panels: Sequence[Panel]) -> Any:
    """Panels beside each other, with error bars."""
    figure = canvas(5.2 * len(panels), 3.8)
    figure.subplots(1, len(panels))
    for axes, panel in zip(figure.axes, panels):
        for number, (label, points) in enumerate(panel.lines):
            if points:
                x, y = [p for p, _ in points], [n.mean for _, n in points]
                bars = [n.half_range for _, n in points] if any(n.count > 1 for _, n in points) else None
                style = {"marker": "o", "ms": 3.5, "lw": 1.3, "color": f"C{number % 10}", "capsize": 2}
                axes.errorbar(x, y, yerr=bars, label=label, **style)
        axes.legend(frameon=False, fontsize=8)
        tidy(axes, title=panel.title, xlabel=panel.x, ylabel=panel.y)
        if panel.log:
            axes.set_xscale("log")
            ticks = sorted({x for _, points in panel.lines for x, _ in points})
            axes.set_xticks(ticks, [f"{x:g}" for x in ticks], fontsize=8)
            axes.minorticks_off()
    figure.tight_layout()
    for axes, panel in zip(figure.axes, panels):
        _mark(axes, panel.marks)
    return figure


def _points(pairs: Iterable[tuple[Number | None, Number | None]]) -> list[tuple[float, Number]]:
    return [(x.mean, y) for x, y in pairs if x is not None and y is not None]


def _nfe(rows: Sequence[Row], prior: str) -> Panel:
    lines = []
    for row in rows:
        columns = [f"{prior}-{steps}" for name, steps in row.columns if name == prior]
        lines.append((row.label, _points((row.nfe(n), row.metric(n, "fid")) for n in columns)))
    return Panel(title=f"FID over NFE, prior {prior}", x="NFE", lines=lines, log=True)


def _training(rows: Sequence[Row], key: str, x: str) -> Panel:
    lines = [(r.label, _points((r.fact(n, key), r.fact(n, "fid")) for n in r.files("track-"))) for r in rows]
    return Panel(title=f"FID over {x.removesuffix(', s')}", x=x, lines=lines)


def _images(rows: Sequence[Row], prior: str) -> Panel:
    """Of given checkpoints."""
    lines = [(name, list(points.items())) for name, points in over_images(rows, prior).items()]
    return Panel(title=f"FID over images seen, prior {prior}", x="images seen", lines=lines)


def _edits(rows: Sequence[Row]) -> Panel:
    """Distance to photographs against distance to the painting, a point a strength."""
    lines, marks = [], list[tuple[str, tuple[float, float]]]()
    for row in rows:
        points = [(row.fact(n, "rmse_painting"), row.fact(n, "fid"), n[5:]) for n in row.files("edit-")]
        marks += [(strength, (x.mean, y.mean)) for x, y, strength in points if x is not None and y is not None]
        lines.append((row.label, _points((x, y) for x, y, _ in points)))
    return Panel(
        title="Edits, one point per strength", x="less faithful →   RMSE to the painting",
        y="less real →   FID to the photographs", lines=lines, marks=marks,
    )  # fmt: skip


def _mark(axes: Any, marks: Sequence[tuple[str, tuple[float, float]]]) -> None:
    """Words beside points; of close points with the same words only the first has them."""
    taken = list[tuple[str, NDArray[np.float64]]]()
    for words, point in marks:
        here = axes.transData.transform(point) * 72 / axes.figure.dpi
        if all(words != said or (abs(here - there) > (16, 7)).any() for said, there in taken):
            axes.annotate(words, point, xytext=(4, 3), textcoords="offset points", fontsize=6)
            taken.append((words, here))


def _read(path: Path, key: str = "images") -> list[Pixels]:
    """Pictures [H, W, 3] of a file of results; none where there is none."""
    if not path.is_file():
        return []
    images = read_pixels(path, key, LARGEST_SHOWN)[:ACROSS].transpose(0, 2, 3, 1)
    return [enlarged(np.broadcast_to(image, (*image.shape[:2], 3)), SIDE) for image in images]


def _stacked(strips: Sequence[tuple[str, list[Pixels]]], across: int) -> Image.Image | None:
    """Rows of pictures, each under its caption."""
    shown = [(words, tiled(pictures[:across], across)) for words, pictures in strips if pictures]
    if not shown:
        return None
    width = max(strip.shape[1] for _, strip in shown)
    sheet = Image.new("RGB", (width, sum(strip.shape[0] + CAPTION for _, strip in shown)), "white")
    draw, top = ImageDraw.Draw(sheet), 0
    for words, strip in shown:
        draw.text((2, top + 1), words, fill="black")
        sheet.paste(Image.fromarray(strip), (0, top + CAPTION))
        top += strip.shape[0] + CAPTION
    return sheet


def _sheets(rows: Sequence[Row], priors: Sequence[str]) -> Image.Image | None:
    strips = []
    for prior in priors:
        for row in rows:
            if column := row.main(prior):
                path = row.places[0].results / f"{column}.npz"
                strips.append((f"{row.label}, {column.replace('-', ', ')} NFE".strip(), _read(path)))
    return _stacked([(_ascii(words), pictures) for words, pictures in strips], ACROSS)


def _edit_sheets(rows: Sequence[Row], out: Path) -> Image.Image | None:
    known = out / "results" / "edit.npz"
    if not known.is_file():
        return None
    given = [(name, _read(known, name)) for name in ("photos", "paintings")]
    blocks = list[Image.Image]()
    for row in rows:
        folder = row.places[0].results
        strips = [(_ascii(f"{row.label}, strength {n[5:]}"), _read(folder / f"{n}.npz")) for n in row.files("edit-")]
        if any(pictures for _, pictures in strips) and (block := _stacked([*given, *strips], EDITED)) is not None:
            blocks.append(block)
    return _beside(blocks)


def _beside(blocks: Sequence[Image.Image]) -> Image.Image | None:
    """Sheets next to each other, a few in a row."""
    if not blocks:
        return None
    wide, high = (max(block.size[k] for block in blocks) for k in (0, 1))
    across = min(BESIDE, len(blocks))
    whole = Image.new("RGB", (across * (wide + GAP) - GAP, -(-len(blocks) // across) * (high + GAP) - GAP), "white")
    for number, block in enumerate(blocks):
        whole.paste(block, (number % across * (wide + GAP), number // across * (high + GAP)))
    return whole


def _ascii(words: str) -> str:
    """All that the small font has."""
    return words.encode("ascii", "replace").decode()
