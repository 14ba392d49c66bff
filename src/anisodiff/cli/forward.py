"""``anisodiff forward``: draw the trajectory of a forward process."""

from pathlib import Path

import typer

from anisodiff.cli import common


def _times(text: str | None, T: float) -> list[float]:
    if text is None:
        return [T * k / 5 for k in range(6)]
    times = common.numbers("--times", text, "numbers like 0,0.5,1")
    if any(not 0 <= t <= T for t in times):
        raise ValueError(f"--times must lie in [0, T] = [0, {T:g}], got {text}")
    if times != sorted(times):
        common.say("--times: sorted, from 0 to T")
    return sorted(times)


def forward(
    command_line: typer.Context,
    photo: Path = typer.Argument(None, help="Read an image; default: the shipped photograph."),
    process: str = common.PROCESS,
    config: Path = common.CONFIG,
    overrides: list[str] = common.SET,
    size: int | None = typer.Option(
        None,
        "--size",
        min=3,
        max=2048,
        help="Crop and resize to N×N pixels; default: the run's, or 128.",
    ),
    times: str = typer.Option(None, "--times", help="Show these times in [0, T], e.g. 0,0.5,1; default six."),
    output: Path = common.output(Path("forward.png"), "Write the figure: .png, .pdf or .svg."),
    animation: Path = typer.Option(None, "--animation", help="Write an animation: .gif, or .png for APNG."),
    frames: int = typer.Option(40, "--frames", min=2, max=1000, help="Set the number of frames of the animation."),
    states: Path = typer.Option(None, "--states", help="Write `times` and `states` into an .npz."),
    gallery: bool = typer.Option(False, "--gallery", help="Draw the paper's first figure instead."),
    design: bool = typer.Option(False, "--design", help="Draw the paper's design figure instead."),
    transitions: bool = typer.Option(False, "--transitions", help="Draw the paper's plot of transitions instead."),
    seed: int = common.SEED,
    device: str = common.DEVICE,
) -> None:
    """Run a forward process on a photograph and draw its trajectory.

    Example: anisodiff forward photo.jpg --process anisotropic --size 128 --animation photo.gif
    """
    import numpy as np
    import torch

    from anisodiff.io import figures
    from anisodiff.io.atomic import replacing
    from anisodiff.io.images import load_photo, sample_photo
    from anisodiff.runtime.devices import pick_device

    if sum([gallery, design, transitions]) > 1:
        raise ValueError("--gallery, --design and --transitions exclude one another; give one")
    common.check_suffix("--output", output, *figures.FIGURES)
    common.check_suffix("--animation", animation, *common.ANIMATIONS)
    common.check_suffix("--states", states, ".npz")
    common.check_distinct(output=output, animation=animation, states=states)
    of_one = ("process", "config", "overrides", "times", "animation", "states")
    if (gallery or design or transitions) and (wrong := common.options_given(command_line, of_one)):
        raise ValueError(f"{wrong[0]} goes with one process, not with the paper's figures; leave one of the two out")
    where = pick_device(device)
    if transitions:
        figures.save_figure(figures.transitions_figure(), output)
        common.wrote(output)
        return
    size = common.size_of(config, size, 128)
    picture = (load_photo(photo, size) if photo else sample_photo(size)).to(where)
    if gallery or design:
        draw = figures.gallery_figure if gallery else figures.design_figure
        with common.progress("simulating") as tick:
            figures.save_figure(draw(picture, seed, tick), output)
        common.wrote(output)
        return
    title, shown = common.pick_process(process, config, overrides, size)
    looked_at = _times(times, shown.T)
    every = sorted({*looked_at, *(np.linspace(0, shown.T, frames).tolist() if animation else [])})
    path = shown.trajectory(picture[None], every, torch.Generator(where).manual_seed(seed))
    chosen = [path[every.index(t)][0].cpu() for t in looked_at]
    if not all(bool(torch.isfinite(u).all()) for u in chosen):
        raise ValueError("the states are not finite: these coefficients are too extreme for this step")
    figures.save_figure(figures.trajectory_figure(shown, title, chosen, looked_at), output)
    common.wrote(output)
    if animation:
        figures.save_animation([u[0] for u in path], animation)
        common.wrote(animation)
    if states:
        with replacing(states) as temporary:
            np.savez(temporary, times=np.array(looked_at), states=torch.stack(chosen).numpy())
        common.wrote(states)
