"""Loss curves of runs from their log.jsonl: over images seen, and per noise level at the end.

python benchmarks/plot_log.py RUN/log.jsonl [RUN/log.jsonl …] --output loss.png
"""

import argparse
import json
from itertools import pairwise
from pathlib import Path

from anisodiff.io.figures import canvas, save_figure


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, default=Path("loss.png"))
    options = parser.parse_args(arguments)
    figure = canvas(9.0, 3.4)
    over, levels = figure.subplots(1, 2)
    for path in options.logs:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not rows:
            raise SystemExit(f"{path} is empty")
        name = path.parent.name
        over.plot([r["images"] / 1e6 for r in rows], [r["loss"] for r in rows], linewidth=1.4, label=name)
        last = rows[-1]
        edges = last["level_edges"]
        middle = [edges[0] - 0.3, *(0.5 * (a + b) for a, b in pairwise(edges)), edges[-1] + 0.3]
        levels.plot(middle, last["loss_by_level"], "o-", markersize=4, linewidth=1.2, label=name)
    over.set(xlabel="million images seen", ylabel="loss (1: Wiener's predictor)")
    levels.set(xlabel="noise level ln(σ/σ_d)", ylabel="loss at the end")
    for axes in (over, levels):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    save_figure(figure, options.output)


if __name__ == "__main__":
    main()
