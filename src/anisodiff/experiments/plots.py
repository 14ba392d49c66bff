"""Figures of a study: curves with one line per run, and sheets of pictures side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from anisodiff.experiments.edits import SHOWN as EDITED
from anisodiff.experiments.results import Number, Row, over_images
from anisodiff.io.arrays import read_pixels
from anisodiff.io.atomic import replacing
from anisodiff.io.figures import canvas, save_figure
from anisodiff.io.grids import enlarged, tiled

ACROSS, SIDE, CAPTION = 16, 64, 14
BESIDE, GAP = 4, 10
LARGEST_SHOWN = 1 << 27
"""Bytes of a file of results: 32 images of 1024×1024 have 100 million."""
Pixels = NDArray[np.uint8]
Curves = Sequence[tuple[str, Sequence[tuple[float, Number]]]]


def draw_all(rows: Sequence[Row], priors: Sequence[str], out: Path) -> dict[str, str]:
    """Every figure that has results, in results/figures; name → path relative to the page."""
    folder, found = out / "results" / "figures", dict[str, str]()
    drawn = {
        "training": _training(rows), "images": _images(rows, priors), "nfe": _nfe(rows, priors),
        "edits": _edits(rows),
    }  # fmt: skip
    for name, figure in drawn.items():
        if figure is not None:
            save_figure(figure, folder / f"{name}.png")
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


def _lines(axes: Any, curves: Curves) -> bool:
    """A line with error bars for each; whether there is any."""
    drawn = False
    for number, (label, points) in enumerate(curves):
        if points:
            x, y = [p for p, _ in points], [n.mean for _, n in points]
            bars = [n.half_range for _, n in points] if any(n.count > 1 for _, n in points) else None
            axes.errorbar(
                x, y, yerr=bars, marker="o", ms=3.5, lw=1.3, color=f"C{number % 10}", label=label, capsize=2
            )
            drawn = True
    if drawn:
        axes.legend(frameon=False, fontsize=8)
    return drawn


def _panels(panels: Sequence[tuple[dict[str, Any], Curves]]) -> Any:
    """Curves beside each other, each panel with its settings; None where there are no points."""
    figure = canvas(5.2 * max(len(panels), 1), 3.8)
    drawn = False
    for axes, (settings, curves) in zip(np.atleast_1d(figure.subplots(1, len(panels) or 1)), panels):
        drawn = _lines(axes, curves) or drawn
        tidy(axes, ylabel="FID", **settings)
        if settings.get("xscale") == "log":
            ticks = sorted({x for _, points in curves for x, _ in points})
            axes.set_xticks(ticks, [f"{x:g}" for x in ticks], fontsize=8)
            axes.minorticks_off()
    figure.tight_layout()
    return figure if drawn else None


def _curve(row: Row, points: Sequence[tuple[Number | None, Number | None]]) -> tuple[str, list[tuple[float, Number]]]:
    return row.label, [(x.mean, y) for x, y in points if x is not None and y is not None]


def _training(rows: Sequence[Row]) -> Any:
    """FID over seconds, and over images."""
    panels = []
    for key, words in (("seconds", "training time, s"), ("images", "images seen")):
        curves = []
        for row in rows:
            curves.append(_curve(row, [(row.fact(n, key), row.fact(n, "fid")) for n in row.files("track-")]))
        panels.append(({"xlabel": words}, curves))
    return _panels(panels)


def _images(rows: Sequence[Row], priors: Sequence[str]) -> Any:
    """FID over images seen of given checkpoints, a panel a prior."""
    found = {prior: curves for prior in priors if (curves := over_images(rows, prior))}
    return _panels([
        ({"xlabel": "images seen", "title": f"prior {prior}"}, [(run, list(c.items())) for run, c in curves.items()])
        for prior, curves in found.items()
    ])  # fmt: skip


def _nfe(rows: Sequence[Row], priors: Sequence[str]) -> Any:
    """FID over NFE, a panel a prior; only where a run has several."""
    if not any(len({steps for _, steps in row.columns}) > 1 for row in rows):
        return None
    panels = []
    for prior in priors:
        columns = {row.name: [f"{p}-{steps}" for p, steps in row.columns if p == prior] for row in rows}
        curves = [_curve(row, [(row.nfe(n), row.metric(n, "fid")) for n in columns[row.name]]) for row in rows]
        panels.append(({"xscale": "log", "xlabel": "NFE", "title": f"prior {prior}"}, curves))
    return _panels(panels)


def _edits(rows: Sequence[Row]) -> Any:
    """Distance to photographs against distance to the painting, a point a strength."""
    figure = canvas(5.6, 4.0)
    axes, curves, marks = figure.subplots(), [], list[tuple[str, tuple[float, float]]]()
    for row in rows:
        points = [(row.fact(n, "rmse_painting"), row.fact(n, "fid"), n[5:]) for n in row.files("edit-")]
        marks += [(strength, (x.mean, y.mean)) for x, y, strength in points if x is not None and y is not None]
        curves.append((row.label, [(x.mean, y) for x, y, _ in points if x is not None and y is not None]))
    drawn = _lines(axes, curves)
    tidy(axes, xlabel="less faithful →   RMSE to the painting", ylabel="less real →   FID to the photographs")
    figure.tight_layout()
    _mark(axes, marks)
    return figure if drawn else None


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
