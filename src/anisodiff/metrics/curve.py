"""A plot of FID against the number of samples: d²_N ≈ d²_∞ + c/N, and where it is heading."""

from __future__ import annotations

from typing import Any

import numpy as np

from anisodiff.metrics.protocol import Report

INK, PALE = "#222222", "#777777"


def fid_figure(report: Report) -> Any:
    """The FIDs of growing parts of the samples, the fitted law, and its limit, as a matplotlib figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = {value.name for value in report.values}
    if "fid_infinity" not in names:
        raise ValueError("a plot needs the metric fid with its extrapolation: at least 20 samples, and fid asked for")
    limit, bias = report["fid_infinity"], report["fid_bias"]
    sizes, values = (np.array(column, dtype=float) for column in zip(*report.curve))
    slope = bias.value * report.protocol.samples_count
    error = limit.error or 0.0

    figure = Figure(figsize=(7.0, 4.4), facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    grid = np.geomspace(sizes.min(), sizes.max(), 200)
    axes.plot(grid, limit.value + slope / grid, color=PALE, lw=1.2, label=f"{limit.value:.4g} + {slope:.4g}/N")
    axes.plot(sizes, values, "o", color=INK, ms=4.5, label="FID of N samples")
    axes.axhline(limit.value, color="#b03030", ls="--", lw=1.2, label=f"N → ∞: {limit.value:.4g} ± {error:.2g}")
    axes.axhspan(limit.value - error, limit.value + error, color="#b03030", alpha=0.12, lw=0)
    axes.set_xlabel("number of samples N")
    axes.set_ylabel("FID")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    protocol = report.protocol
    split = f"/{protocol.reference_split}" if protocol.reference_split else ""
    axes.set_title(
        f"{protocol.samples} against {protocol.reference_count} of {protocol.reference}{split}, {protocol.network}",
        fontsize=9,
        color=INK,
    )
    figure.tight_layout()
    return figure
