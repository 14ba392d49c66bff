"""``anisodiff diagnose``: terminal signal-to-noise ratio, prior mismatch and stiffness of a process."""

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

    from anisodiff.diagnosis import Diagnosis


def _ratio(snr: float) -> str:
    """A ratio of powers, and the same in dB."""
    return f"{snr:.2g} ({10 * math.log10(snr):.0f} dB)" if 0 < snr < math.inf else f"{snr:.2g}"


def _bits(value: float, result: "Diagnosis") -> str:
    bits = f"{value:.3g} bits per image"
    return bits if result.information_found else f"{bits}, not distinguishable from 0"


def _table(title: str, result: "Diagnosis", explicit: bool) -> Table:
    chance = f"(chance {100 * result.found_by_chance:.1f}%)"
    rows = {
        "images": f"{result.images} at {result.size[0]}×{result.size[1]}",
        "SNR at T, all modes": _ratio(result.terminal_snr),
        "SNR at T per band, mean color to finest": "  ".join(f"{v:.2g}" for v in result.snr),
        "mutual information of U_0 and U_T, at most": _bits(result.information, result),
        "KL from p_T to a noise-only Gaussian prior": _bits(result.prior_mismatch, result),
        "correlation of U_0 and U_T": f"{result.correlation:.3f}",
        "source identified, linear detector": f"{100 * result.found_again:.1f}% {chance}",
        "source identified, nearest in pixels": f"{100 * result.found_by_pixels:.1f}% {chance}",
        "pixels of U_T given U_0 not Gaussian at 1%": f"{100 * result.non_gaussian_pixels:.1f}% (Gaussian: 1.5%)",
        "excess kurtosis of a pixel, mean": f"{result.excess_kurtosis:.3f}",
        "systematic change of the channel means":
            f"{result.mean_drift:.4f} ({_significance(result.mean_drift_sigma)})",
        "standard deviation of the channel means": f"{result.mean_noise:.4f}",
    }  # fmt: skip
    if result.stiffness is not None:
        stable = "below 2" if explicit else "for any value"
        rows["stiffness of a time step, 8 ∫α1"] = f"{result.stiffness:.2g}, stable {stable}"
    table = Table(title=title, title_justify="left", show_header=False)
    for row in rows.items():
        table.add_row(*row)
    return table


def _significance(z: float) -> str:
    return f"{'' if z > 3 else 'not '}significant, z = {z:.1f}"


def _images(folder: Path, size: int, most: int) -> "Tensor":
    """At most ``most`` images of a folder, cropped and resized, or of a dataset prepared at this size."""
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
        raise ValueError(f"{folder} was prepared as {height}×{width}, got --size {size}; {remedy}")
    return prepared.first(most)


def _states(images: "Tensor", name: str) -> "Tensor":
    """The images in latent space, standardized per channel."""
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
    size: int | None = typer.Option(
        None, "--size", min=3, help="Crop and resize to N×N pixels; default: the run's, or 32."
    ),
    latent: str | None = typer.Option(None, "--latent", help="Diagnose in latent space: FOLDER or OWNER/NAME."),
    most: int = typer.Option(500, "--images", min=2, help="Use at most this many images."),
    output: Path = common.output(None, "Write a plot: .png, .pdf or .svg."),
    as_json: bool = common.JSON,
    seed: int = common.SEED,
    device: str = common.DEVICE,
) -> None:
    """Measure how much of an image the terminal state of a process retains, and say what to change.

    Example: anisodiff diagnose photos/ --process anisotropic --size 32

    In latent space: anisodiff diagnose photos/ --size 256 --latent stabilityai/sd-vae-ft-mse
    """
    from anisodiff.diagnosis import diagnose as measure
    from anisodiff.io.figures import FIGURES, caption, diagnosis_figure, save_figure
    from anisodiff.runtime.devices import pick_device

    common.check_suffix("--output", output, *FIGURES)
    where = pick_device(device)
    images = _images(folder, common.size_of(config, size, 32, of_images=latent is not None), most).to(where)
    if latent is not None:
        images = _states(images, latent)
    title, shown = common.pick_process(process, config, overrides, max(images.shape[-2:]))
    with common.progress("simulating") as tick:
        result = measure(shown, images, seed=seed, progress=tick)
    if as_json:
        typer.echo(json.dumps({**result.as_dict(), "process": shown.identity(), "seed": seed}, indent=2))
    else:
        Console(markup=False, emoji=False).print(_table(title, result, getattr(shown, "taming", None) is not None))
        typer.echo(caption(shown))
        typer.echo(f"Result: {result.verdict}.")
        for line in result.advice:
            typer.echo(f"  - {line}")
        if result.images < 200:
            typer.echo(f"  (only {result.images} images: large errors; use a few hundred)")
    if output:
        save_figure(diagnosis_figure(result, title), output)
        if not as_json:
            common.wrote(output)
