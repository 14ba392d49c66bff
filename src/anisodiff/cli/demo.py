"""``anisodiff demo``: forward processes, samples and edits from what ships with the package."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from anisodiff.cli import common
from anisodiff.notation import counted
from anisodiff.registry import DEFAULT_PROCESS

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from anisodiff.generation import Generator

MODEL, SAMPLER = "cifar10-tiny", "multistep"
STRENGTH, COLORS = 0.6, 6
PAINTED = (17, 14)
"""Samples that are edited from strokes; with seed 0 a horse in a meadow, and a red and white truck."""


def demo(
    output: Path = common.output_folder(Path("demo"), "Write the pictures into this folder."),
    size: int = typer.Option(128, "--size", min=8, help="Set the side of the photograph in pixels."),
    samples: int = typer.Option(64, "--samples", min=1, help="Generate this many images."),
    steps: int = typer.Option(16, "--steps", min=2, help="Set the NFE (network evaluations) of each image."),
    seed: int = common.SEED,
    device: str = common.DEVICE,
) -> None:
    """Show the forward processes on a shipped photograph; generate and edit images with the shipped model.

    Example: anisodiff demo --output demo
    """
    from anisodiff.io.images import sample_photo
    from anisodiff.runtime.devices import pick_device

    where = pick_device(device)
    photo = sample_photo(size).to(where)
    typer.echo(f"anisodiff demo: a photograph of {size}×{size} pixels, on {where.type}")
    _forward(photo, output, seed)
    _backward(output, samples, steps, seed, where)
    typer.echo(f"Look at {output / 'gallery.png'} first: rows 4 and 5 keep edges that rows 1 and 3 lose.")
    typer.echo(f"Then at {output / 'samples.png'}: images from noise by {MODEL}; and edit.png: images from strokes.")


def _forward(photo: "Tensor", output: Path, seed: int) -> None:
    """Five forward processes side by side, and three animated, the default first."""
    import torch

    from anisodiff.io import figures
    from anisodiff.registry import process

    with common.progress("five processes") as tick:
        figures.save_figure(figures.gallery_figure(photo, seed, tick), output / "gallery.png")
    common.wrote(output / "gallery.png")
    for name in (DEFAULT_PROCESS, "anisotropic", "ve"):
        forward = process(name, max(photo.shape[-2:]))
        times = [forward.T * k / 39 for k in range(40)]
        noise = torch.Generator(photo.device).manual_seed(seed)
        states = [u[0] for u in forward.trajectory(photo[None], times, noise)]
        columns = [0, 8, 16, 24, 32, 39]
        figure = figures.trajectory_figure(
            forward, name, [states[k] for k in columns], [round(times[k], 2) for k in columns]
        )
        figures.save_figure(figure, output / f"{name}.png")
        figures.save_animation(states, output / f"{name}.gif")
        common.wrote(output / f"{name}.png", output / f"{name}.gif")


def _backward(output: Path, samples: int, steps: int, seed: int, device: "torch.device") -> None:
    """Images from noise, two of them with their trajectory; and images from strokes."""
    from anisodiff.editing.figures import comparison_figure
    from anisodiff.generation import SamplingStep, load
    from anisodiff.generation.figures import save_strip
    from anisodiff.io import figures
    from anisodiff.io.grids import save_grid

    generator = load(MODEL, device=device)
    watched: list[tuple[float, Tensor]] = []
    started = time.perf_counter()
    with common.progress(f"{counted(samples, 'image')}, {steps} NFE each") as tick:

        def look(step: SamplingStep) -> None:
            done = step.seeds[0] - seed + len(step.seeds) * step.number / step.of
            tick(int(done), samples)
            if seed in step.seeds:
                watched.append((step.t, step.state[:2].cpu()))

        images = generator.sample(samples, seed=seed, steps=steps, sampler=SAMPLER, callback=look, progress=False)
    typer.echo(
        f"generated {counted(samples, 'image')} with {steps} NFE each in {time.perf_counter() - started:.0f} s"
    )
    save_grid(images, output / "samples.png")
    save_strip([state for _, state in watched], [t for t, _ in watched], output / "generation.png")
    common.wrote(output / "samples.png", output / "generation.png")
    painted = [k for k in PAINTED if k < samples] or [0]
    rows = [_from_strokes(generator, images[k], seed, steps) for k in painted]
    titles = ["generated", f"{COLORS} colors", *(f"seed {k}" for k in range(seed, seed + len(rows[0]) - 2))]
    words = f"{MODEL}: strokes, SDEdit with strength {STRENGTH:g} and {steps} NFE"
    figures.save_figure(comparison_figure(rows, titles, [words]), output / "edit.png")
    common.wrote(output / "edit.png")


def _from_strokes(generator: "Generator", image: "Tensor", seed: int, steps: int) -> "list[Tensor]":
    """An image, its strokes, and four images that the model makes from them."""
    from anisodiff.editing import edit, strokes

    painting = strokes(image, colors=COLORS, seed=seed)
    several = painting[None].expand(4, -1, -1, -1)
    results = edit(generator, several, strength=STRENGTH, seeds=range(seed, seed + 4), steps=steps, sampler=SAMPLER)
    return [image, painting, *results]
