"""Figures of forward processes. Every figure's caption carries the parameters it was made with."""

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill, shorten
from typing import Any

import torch
from torch import Tensor

from anisodiff.diagnosis import Diagnosis, snr_threshold
from anisodiff.io.atomic import replacing
from anisodiff.io.grids import enlarged
from anisodiff.io.images import displayed, to_display
from anisodiff.processes import Process
from anisodiff.processes.presets import DESIGN, GALLERY
from anisodiff.registry import process
from anisodiff.runtime.progress import Progress
from anisodiff.schedules import ExponentialToIsotropic, Power

FIGURES = (".png", ".pdf", ".svg")
INK, PALE = "#222222", "#777777"
_CHARACTER, _SMALL = 0.105, 0.062  # inches of a bold letter of 12 points, and of one of 7.5 points, about


def caption(shown: Process) -> str:
    """One line with the coefficients and the discretization of a process, to four digits."""
    identity = shown.identity()
    if "diffusivity" not in identity:  # none of the equation's: its own numbers
        return _rounded("   ".join(f"{key} = {value}" for key, value in identity.items()))
    parts = [f"α1 = {identity['diffusivity']}", f"α2 = {identity['intensity']}"]
    if identity["drift_anisotropy"] != "infinite":
        parts.append(f"λ1 = {identity['drift_anisotropy']}")
    if identity["noise_anisotropy"] != "infinite":
        parts.append(f"λ2 = {identity['noise_anisotropy']}")
    if identity["correlation_length"]:
        parts.append(f"ℓ = {identity['correlation_length']:g}")
    parts.append(f"T = {identity['T']:g}, {identity['stencil']} stencil, {identity['step']}")
    return _rounded("   ".join(parts))


def _rounded(text: str) -> str:
    """``text`` with numbers of three or more decimals to four digits."""
    return re.sub(r"\d+\.\d{3,}(?:e[+-]?\d+)?", lambda number: f"{float(number[0]):.4g}", text)


def canvas(width: float, height: float) -> Any:
    """An empty figure that needs no screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _panel(figure: Any, box: tuple[float, float, float, float], u: Tensor, title: str) -> None:
    axes = figure.add_axes(box)
    picture, contrast = to_display(u)
    axes.imshow(picture, interpolation="nearest" if u.shape[-1] < 100 else "antialiased")
    axes.set_axis_off()
    note = "" if contrast == 1.0 else f"   (contrast ×{contrast:.2g})"
    axes.set_title(title + note, fontsize=9, color=INK, pad=4)


def _panels(
    rows: Sequence[Sequence[tuple[Tensor, str]]], labels: Sequence[str], footnotes: Sequence[str], heading: str
) -> Any:
    """A grid of states with a title each, a label above every row and a caption, wrapped, below it."""
    columns = max(len(row) for row in rows)
    side, gap, head = 2.0, 0.08, 0.45
    band = 0.52 if any(labels) else 0.26
    width = columns * (side + gap) + gap
    below = [fill(note.replace(" = ", "\xa0=\xa0"), int((width - 2 * gap) / _SMALL)) for note in footnotes]
    lines = max(len(note.splitlines()) for note in below)
    row_height = side + band + (0.15 + 0.13 * lines if lines else 0.0)
    height = head + len(rows) * row_height + 0.1
    figure = canvas(width, height)
    heading = shorten(heading, int(width / _CHARACTER), placeholder=" …")
    figure.text(gap / width, 1 - 0.2 / height, heading, fontsize=12, color=INK, va="center", weight="bold")
    for r, row in enumerate(rows):
        top = height - head - r * row_height
        figure.text(gap / width, (top - 0.1) / height, labels[r], fontsize=10, color=INK, va="center")
        for c, (state, title) in enumerate(row):
            left = gap + c * (side + gap)
            box = (left / width, (top - band + 0.02 - side) / height, side / width, side / height)
            _panel(figure, box, state, title)
        figure.text(gap / width, (top - band - side - 0.08) / height, below[r], fontsize=7.5, color=PALE, va="top")
    return figure


def trajectory_figure(shown: Process, name: str, states: Sequence[Tensor], times: Sequence[float]) -> Any:
    """One path of a process: a row of states [C, H, W] at their times."""
    row = [(u, f"t = {t:g}") for u, t in zip(states, times)]
    return _panels([row], [""], [caption(shown)], _rounded(name))


def _generator(seed: int, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def gallery_figure(photo: Tensor, seed: int = 0, progress: Progress | None = None) -> Any:
    """The paper's first figure: five processes at five times, from a photo [C, H, W]."""
    labels = [
        "(1) isotropic noise, no drift",
        "(2) anisotropic noise, no drift",
        "(3) isotropic drift, no noise",
        "(4) anisotropic drift, no noise",
        "(5) anisotropic drift and anisotropic noise",
    ]
    rows, notes = [], []
    for number, name in enumerate(GALLERY):
        shown = process(name, max(photo.shape[-2:]))
        times = [shown.T * k / 4 for k in range(5)]
        states = shown.trajectory(photo[None], times, _generator(seed, photo.device))
        rows.append([(u[0], f"t = {t:g}") for u, t in zip(states, times)])
        notes.append(caption(shown))
        if progress:
            progress(number + 1, len(GALLERY))
    return _panels(rows, labels, notes, "Forward processes: drift and noise, isotropic and anisotropic (constant λ)")


def design_figure(photo: Tensor, seed: int = 0, progress: Progress | None = None) -> Any:
    """The paper's design figure: what α1, α2, λ1 and λ2 do, three values each, at T = 8."""
    labels = ["(1) diffusivity α1   (α2 = 0)", "(2) intensity α2   (α1 = 0)"]
    labels += ["(3) drift anisotropy λ1   (α1 = 0.5 → 1000, α2 = 0)", "(4) noise anisotropy λ2   (α1 = 0, α2 = 1)"]
    titles = [["α1 = 0", "α1 = 1", "α1 = 0.5 → 1000"], ["α2 = 0.01", "α2 = 0.1", "α2 = 1"]]
    titles += [["λ1 = ∞", "λ1 = 0.01", "λ1 = 0.001"], ["λ2 = ∞", "λ2 = 0.01", "λ2 = 0.001"]]
    rows: list[list[tuple[Tensor, str]]] = [[], [], [], []]
    taken: list[str] = []
    for number, name in enumerate(DESIGN):
        shown = process(name, max(photo.shape[-2:]))
        u = shown.simulate(photo[None], shown.T, _generator(seed, photo.device))
        rows[number // 3].append((u[0], titles[number // 3][number % 3]))
        taken.append(str(shown.identity()["step"]))
        if progress:
            progress(number + 1, len(DESIGN))
    steps = [
        f"flux stencil; {', '.join(dict.fromkeys(used))}" for used in (taken[k : k + 3] for k in range(0, 12, 3))
    ]
    return _panels(rows, labels, steps, "State at T = 8")


def transitions_figure() -> Any:
    """The paper's plot of the transitions: (a) exponential to isotropy, (b) powers of several orders."""
    T = 2.0
    t = torch.linspace(0, T, 400, dtype=torch.float64)
    figure = canvas(9.0, 3.4)
    left, right = figure.subplots(1, 2)
    for k in (0.5, 2.0, 5.0, 10.0):
        lam = ExponentialToIsotropic(0.025, k).value(t[:-1], T)
        left.plot(t[:-1] / T, lam, label=f"k = {k:g}", linewidth=1.8)
    left.set(yscale="log", ylim=(0.02, 30), xlabel="t / T", ylabel="λ(t)")
    left.set_title("(a)  λmin (e^{kT} − 1)/(e^{k(T−t)} − 1),  λmin = 0.025", fontsize=10)
    for r in (0.25, 0.5, 1.0, 2.0, 4.0):
        right.plot(t / T, Power(0.0, 1.0, r).value(t, T), label=f"r = {r:g}", linewidth=1.8)
    right.set(xlabel="t / T", ylabel="α(t)")
    right.set_title("(b)  αmin + (αmax − αmin)(t/T)^r,  αmin = 0, αmax = 1", fontsize=10)
    for axes in (left, right):
        axes.legend(frameon=False, fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.2)
    figure.tight_layout()
    return figure


def save_figure(figure: Any, path: str | Path) -> None:
    """Write a figure as PNG, PDF or SVG, by its suffix."""
    if Path(path).suffix.lower() not in FIGURES:
        raise ValueError(f"figures are written as .png, .pdf or .svg, got {path}")
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=160)


def save_animation(states: Sequence[Tensor], path: str | Path) -> None:
    """Write states [C, H, W] as an animation that runs forward, holds, and runs back; GIF or APNG by its suffix."""
    from PIL import Image

    suffix = Path(path).suffix.lower()
    if suffix not in (".gif", ".png", ".apng"):
        raise ValueError(f"animations are written as .gif or .png (APNG), got {path}")
    frames = [Image.fromarray(enlarged(displayed(u)[0], 256)) for u in states]
    cycle = [frames[0]] * 8 + frames + [frames[-1]] * 8 + frames[::-1]
    duration = 8000 // len(cycle)  # ms
    with replacing(path) as temporary:
        kind = "GIF" if suffix == ".gif" else "PNG"
        cycle[0].save(temporary, format=kind, save_all=True, append_images=cycle[1:], duration=duration, loop=0)


def diagnosis_figure(result: Diagnosis, title: str) -> Any:
    """Signal-to-noise ratio by frequency band, with the rate at which sources are identified."""
    figure = canvas(7.0, 3.6)
    axes = figure.subplots()
    shown = [min(max(v, 1e-6), 1e6) for v in result.snr]
    threshold = snr_threshold(result.images)
    axes.bar(range(len(shown)), shown, color=["#c44e52" if v > threshold else "#4c72b0" for v in shown])
    label = f"{threshold:.2g}: above it U_T depends on U_0"
    axes.axhline(threshold, color=INK, linewidth=0.8, linestyle="--", label=label)
    axes.legend(frameon=False, fontsize=8)
    axes.set(yscale="log", ylim=(1e-6, max(10.0, 2 * max(shown))), xlabel="frequency band (0 = the mean)")
    axes.set_ylabel("signal-to-noise ratio at T")
    rate = f"source identified {100 * result.found_again:.1f}% (chance {100 * result.found_by_chance:.1f}%)"
    words = {True: "U_T independent of U_0", False: "U_T depends on U_0", None: "too few images to decide"}
    axes.set_title(fill(f"{_rounded(title)}: {words[result.forgets]}; {rate}", 80), fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure
