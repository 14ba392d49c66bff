"""Draws the figure of docs/results/README.md from the JSON files beside it.

python docs/results_figures.py [FILE]    (default: docs/results/summary.png)
"""

import json
import sys
from pathlib import Path
from typing import Any

from anisodiff.experiments.plots import tidy
from anisodiff.io.figures import canvas, save_figure

RESULTS = Path(__file__).parent / "results"
BLUE, ORANGE, GREEN, RED, GRAY = "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#777777"


def rows_of(page: str) -> dict[str, list[dict[str, Any]]]:
    """The results of each run of a study, one dict a seed."""
    rows = json.loads((RESULTS / page / "page.json").read_text())["rows"]
    return {row["name"]: row["results"] for row in rows}


def fid(result: dict[str, Any]) -> float:
    """FID at 50 NFE, from the Gaussian prior."""
    values = result["gaussian-50"]["report"]["values"]
    return float(next(value["value"] for value in values if value["name"] == "fid"))


def images_seen(axes: Any) -> None:
    """FID over images seen: the longest runs."""
    runs = rows_of("2026-11-16/long")
    tidy(axes, xlabel="images seen, millions", ylabel="FID, 10,000 samples")
    named = (
        ("ve", "ve", BLUE),
        ("ours", "anisotropic-gentle", ORANGE),
        ("flow", "flow matching, uniform times", GREEN),
    )
    for name, label, color in named:
        points = [(int(run.rsplit("-", 1)[1]) / 1e6, fid(runs[run][0])) for run in runs if run.startswith(name)]
        axes.plot(*zip(*points), "o-", color=color, label=label)


def amount_of_drift(axes: Any) -> None:
    """FID over the strength of the drift, and what else raises it."""
    runs, parts = rows_of("2026-11-16/drift"), rows_of("2026-11-16/parts")
    tidy(axes, xlabel="largest α1", ylabel="FID, 5,000 samples")
    early = {0: "zero", 0.5: "early-0.5", 1: "early-1", 2: "early-2", 4: "early-4", 8: "early-8"}
    late = {2: "late-2", 8: "late-8"}
    for label, names, color in (("falling, λ = 0.05", early, ORANGE), ("rising, λ = 0.05", late, RED)):
        axes.plot(list(names), [fid(runs[name][0]) for name in names.values()], "o-", color=color, label=label)
    axes.plot(1, fid(runs["lambda-infinite"][0]), "s", color=GREEN, label="falling, isotropic")
    axes.plot(1, fid(parts["image-early-1"][0]), "D", color=GRAY, label="falling, image only")
    seeds = [fid(result) for result in runs["ve-colours"]]
    axes.axhspan(min(seeds), max(seeds), color=BLUE, alpha=0.25, lw=0, label="ve, two seeds")
    axes.set_xscale("symlog", linthresh=0.5, base=2)
    axes.set_xticks([0, 0.5, 1, 2, 4, 8], ["0", "0.5", "1", "2", "4", "8"])


def strokes(axes: Any) -> None:
    """SDEdit of painted faces at five strengths."""
    runs = rows_of("2026-11-16/faces")
    tidy(axes, xlabel="RMSE to the painting", ylabel="FID to the photographs")
    named = (
        ("ve", "ve", BLUE),
        ("ours", "anisotropic-gentle", ORANGE),
        ("ours-image", "image only", GRAY),
        ("flow-matching", "flow matching, uniform times", GREEN),
    )
    for name, label, color in named:
        found = [value for key, value in runs[name][0].items() if key.startswith("edit-")]
        found.sort(key=lambda edit: edit["strength"])
        points = [(edit["rmse_painting"], edit["fid"]) for edit in found]
        axes.plot(*zip(*points), "o-", color=color, label=label)


def cartoons(axes: Any) -> None:
    """Perona–Malik cartoons to photographs, 20 NFE: FID against distance to the photograph."""
    tidy(axes, xlabel="LPIPS to the photograph", ylabel="FID to the photographs")

    def points(*files: str, **names: str | None) -> set[tuple[str, float, float]]:
        """Name, LPIPS and FID of the runs by name; without a name, the strength of each edit."""
        rows = [row for file in files for row in json.loads((RESULTS / file).read_text())["rows"]]
        rows = [row for row in rows if row["kind"] == "perona-malik" and row["asked"] == 20]
        known = {run.replace("_", "-"): name for run, name in names.items()}
        named = [(row, known[row["run"]] or row["strength"]) for row in rows if row["run"] in known]
        return {(str(name), row["lpips"], row["fid"]) for row, name in named if name is not None}

    before = ("2026-11-18/structure-texture/results.json", "2026-11-18/structure-texture/noise.json")
    late = "2026-11-19/structure-texture/late.json"
    ends = {"cartoon": "0.03", "cartoon-0.1": "0.1", "cartoon-0.3": "0.3"}
    curves = {
        ("ve, SDEdit, strength", BLUE): points(*before, ve=None),
        ("ve, conditional, strength", GREEN): points(*before, ve_conditional=None),
        ("cartoon, σ where the smoothing ends", ORANGE): points(*before, **ends),
        ("cartoon, σ = 0.1: ∫α1 ∝ t² and t⁴ (run 43)", RED): points(
            late, **{"cartoon-0.1": "t²", "cartoon-late": "t⁴"}
        ),
    }
    for (label, color), found in curves.items():
        names, x, y = zip(*sorted(found))
        axes.plot(x, y, "o-", color=color, label=label)
        for name, *place in zip(names, x, y):
            axes.annotate(name, place, xytext=(5, 3), textcoords="offset points", fontsize=8, color=color)


PANELS = {
    "a   The longest runs, CIFAR-10": images_seen,
    "b   The amount of drift, CIFAR-10": amount_of_drift,
    "c   Strokes to faces, five strengths": strokes,
    "d   Cartoons to faces, 20 NFE": cartoons,
}


def main(path: Path) -> Any:
    """Draw all panels into one file."""
    figure = canvas(11.2, 8.4)
    for axes, (title, draw) in zip(figure.subplots(2, 2).flat, PANELS.items()):
        draw(axes)
        axes.set_title(title, loc="left", fontsize=11)
        axes.legend(frameon=False, fontsize=9)
    figure.tight_layout()
    save_figure(figure, path)
    return figure


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "summary.png")
