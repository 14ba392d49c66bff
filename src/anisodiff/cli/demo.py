"""``anisodiff demo``: the main job on what ships with the package."""

from pathlib import Path

import torch
import typer

from anisodiff.cli import common
from anisodiff.diagnostics import figures
from anisodiff.photos import sample_photo
from anisodiff.processes import process


def demo(
    output: Path = typer.Option(Path("demo"), "--output", "-o", help="Folder for the pictures."),
    size: int = typer.Option(128, "--size", min=8, help="Side of the photograph in pixels."),
    seed: int = common.SEED,
    device: str = common.DEVICE,
) -> None:
    """Show the forward processes on a photograph that comes along: what destroys it, and how.

    Example: anisodiff demo --output demo
    """
    where = common.pick_device(device)
    photo = sample_photo(size).to(where)
    typer.echo(f"anisodiff demo: a photograph of {size}x{size} pixels, on {where.type}")
    with common.progress("five processes") as tick:
        figures.save_figure(figures.gallery_figure(photo, seed, tick), output / "gallery.png")
    common.wrote(output / "gallery.png")
    for name in ("anisotropic", "ve"):
        shown = process(name, size)
        times = [shown.T * k / 39 for k in range(40)]
        states = [u[0] for u in shown.trajectory(photo[None], times, torch.Generator(where).manual_seed(seed))]
        chosen = [0, 8, 16, 24, 32, 39]
        figure = figures.trajectory_figure(
            shown, name, [states[k] for k in chosen], [round(times[k], 2) for k in chosen]
        )
        figures.save_figure(figure, output / f"{name}.png")
        figures.save_animation(states, output / f"{name}.gif")
        common.wrote(output / f"{name}.png")
        common.wrote(output / f"{name}.gif")
    typer.echo(f"Look at {output / 'gallery.png'} first: rows 4 and 5 keep edges that rows 1 and 3 lose.")
