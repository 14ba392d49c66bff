"""``anisodiff diagnose``: measure whether a process forgets its start."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from anisodiff.cli import common

if TYPE_CHECKING:
    from torch import Tensor

    from anisodiff.forgetting import Forgetting


def _table(title: str, result: "Forgetting") -> Table:
    rows = {
        "images": f"{result.images} at {result.size[0]}x{result.size[1]}",
        "signal-to-noise at T, mean to finest": "  ".join(f"{v:.2g}" for v in result.snr),
        "correlation with the source": f"{result.correlation:.3f}",
        "source found again, best linear detector": f"{100 * result.found_again:.1f} %",
        "source found again, nearest in pixels": f"{100 * result.found_by_pixels:.1f} %",
        "source found by chance": f"{100 * result.found_by_chance:.1f} %",
        "pixels of U_T given U_0 not Gaussian at 1 %": f"{100 * result.non_gaussian_pixels:.1f} %",
        "excess kurtosis of the pixels, mean": f"{result.excess_kurtosis:.3f}",
        "systematic drift of the channel means":
            f"{result.mean_drift:.4f} ({result.mean_drift_sigma:.1f} standard errors)",
        "noise of the channel means": f"{result.mean_noise:.4f}",
    }  # fmt: skip
    table = Table(title=title, title_justify="left", show_header=False)
    for row in rows.items():
        table.add_row(*row)
    return table


def _images(folder: Path, size: int, most: int) -> "Tensor":
    """Images of a folder at size², or of a dataset prepared at that size."""
    from anisodiff.data import is_dataset, open_dataset, open_source, read_images
    from anisodiff.io.images import to_unit

    if not is_dataset(folder):
        found = read_images(open_source(folder), size=(size, size), channels=3, most=most)
        if len(found) < 2:
            raise ValueError(f"{folder} holds 1 readable image; at least 2 are needed")
        return to_unit(found)
    prepared = open_dataset(folder)
    if prepared.size != (size, size):
        height, width = prepared.size
        remedy = f"set --size {height}" if height == width else "give the pictures themselves"
        raise ValueError(f"{folder} was prepared as {height}x{width}, got --size {size}; {remedy}")
    return prepared.first(most)


def _states(images: "Tensor", name: str) -> "Tensor":
    """The images as states in the latent space of an autoencoder, scaled by their own mean and deviation."""
    from anisodiff.data.latents import LatentScale
    from anisodiff.latent.autoencoder import open_autoencoder

    z, _ = open_autoencoder(name, images.device, online=True).encode(images)
    mean, std = (values.tolist() for values in (z.mean((0, 2, 3)), z.std((0, 2, 3))))
    return LatentScale(tuple(mean), tuple(std)).to_states(z)


def diagnose(
    folder: Path = typer.Argument(..., help="Read a folder or zip of images, or a prepared dataset."),
    process: str = common.PROCESS,
    config: Path = common.CONFIG,
    overrides: list[str] = common.SET,
    size: int = typer.Option(32, "--size", min=3, help="Crop and resize to SIZE x SIZE pixels."),
    latent: str | None = typer.Option(None, "--latent", help="Diagnose in latent space: FOLDER or OWNER/NAME."),
    most: int = typer.Option(500, "--images", min=2, help="Use at most this many images."),
    output: Path = common.output(None, "Write a plot: .png, .pdf or .svg."),
    as_json: bool = common.JSON,
    seed: int = common.SEED,
    device: str = common.DEVICE,
) -> None:
    """Measure what the terminal state of a process still tells of its source, and what to change.

    Example: anisodiff diagnose photos/ --process anisotropic --size 32

    In latent space: anisodiff diagnose photos/ --size 256 --latent stabilityai/sd-vae-ft-mse
    """
    from anisodiff.forgetting import forgetting
    from anisodiff.io.figures import FIGURES, caption, forgetting_figure, save_figure
    from anisodiff.runtime.devices import pick_device

    common.check_suffix("--output", output, *FIGURES)
    where = pick_device(device)
    images = _images(folder, size, most).to(where)
    if latent is not None:
        images = _states(images, latent)
    title, shown = common.pick_process(process, config, overrides, max(images.shape[-2:]))
    with common.progress("simulating") as tick:
        result = forgetting(shown, images, seed=seed, progress=tick)
    if as_json:
        numbers = {**result.as_dict(), "process": shown.identity(), "seed": seed}
        numbers["snr"] = [v if math.isfinite(v) else None for v in result.snr]
        typer.echo(json.dumps(numbers, indent=2))
    else:
        Console(markup=False, emoji=False).print(_table(title, result))
        typer.echo(caption(shown))
        typer.echo(f"Verdict: {result.verdict}.")
        for line in result.advice:
            typer.echo(f"  - {line}")
        if result.images < 200:
            typer.echo(f"  (only {result.images} images: rates and bands are rough; a few hundred are better)")
    if output:
        save_figure(forgetting_figure(result, title), output)
        if not as_json:
            common.wrote(output)
