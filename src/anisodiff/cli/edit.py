"""``anisodiff edit``: images from strokes, edited photographs, restored images."""

import json
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from anisodiff.cli import common
from anisodiff.registry import DEFAULT_STRENGTH

if TYPE_CHECKING:
    from anisodiff.editing.editor import Editor
    from anisodiff.editing.painters import Paint
    from anisodiff.editing.sweep import Sweep

SWEPT = 4
"""Pictures, and candidates of each, in a sweep."""


def edit(
    checkpoint: Path = common.CHECKPOINT,
    images: list[Path] = typer.Argument(..., metavar="IMAGE", help="Read images, or folders of images."),
    strokes: int | None = typer.Option(None, "--strokes", min=1, help="Paint each image in this many colors first."),
    paint: str | None = typer.Option(None, "--paint", help="Simplify each image first, e.g. flat(colors=8)."),
    t: str | None = typer.Option(None, "--t", help="Diffuse to this time in (t_min, T]; several: 0.4,0.8."),
    strength: str | None = typer.Option(
        None, "--strength", help=f"Diffuse to this strength in (0, 1); default {DEFAULT_STRENGTH:g}."
    ),
    repeats: int = typer.Option(1, "--repeats", help="Repeat forward and reverse this many times."),
    candidates: int = typer.Option(1, "--candidates", "-n", help="Make this many results per image."),
    mask: Path | None = typer.Option(None, "--mask", help="Edit where this image is white; keep black exactly."),
    restore: bool = typer.Option(False, "--restore", help="Treat the image as the state at --t; only reverse it."),
    classes: str | None = common.CLASS,
    guidance: float = common.GUIDANCE,
    interval: str | None = common.INTERVAL,
    cartoon: bool = typer.Option(False, "--cartoon", help="Treat the image as smoothed already; add texture."),
    steps: int = common.NFE,
    sampler: str = common.SAMPLER,
    seed: int = common.SEED,
    out: Path = common.output_folder(Path("edits"), "Write the results into this folder."),
    figure: Path | None = typer.Option(None, "--figure", help="Draw inputs and results: .png, .pdf or .svg."),
    also: list[Path] = typer.Option([], "--also", help="Add a checkpoint to the figure; repeatable."),
    sweep: Path | None = typer.Option(None, "--sweep", help="Draw results at eight strengths: .png."),
    trust_code: bool = common.TRUST,
    latent: str | None = common.LATENT,
    as_json: bool = common.JSON,
    device: str = common.DEVICE,
) -> None:
    """Turn strokes into images, edit photographs, or restore them.

    Run the same command again to make what is missing.

    Example: anisodiff edit run photo.jpg --strokes 8 --strength 0.7 --candidates 4 --figure edit.png

    Choose a strength by eye: anisodiff edit run painting.png --sweep sweep.png

    Restore: anisodiff edit run noisy.png --restore --t 0.6 --candidates 8

    A model of the process cartoon: anisodiff edit run drawing.png --cartoon --candidates 4
    """
    from anisodiff.editing.editor import open_editor
    from anisodiff.editing.figures import editing_figure
    from anisodiff.editing.inputs import Painter
    from anisodiff.editing.job import EditConfig, write_edits
    from anisodiff.generation import SamplingConfig
    from anisodiff.io.figures import save_figure
    from anisodiff.runtime.devices import pick_device

    asked, guided = _asked(t, strength), common.guidance(guidance, interval)
    sampling = SamplingConfig(steps=steps, sampler=sampler, classes=classes, guidance=guided)
    painter = Painter(paint=_paint(paint, strokes))
    _check(restore, painter.paint is not None, repeats, candidates, asked, sweep)
    if cartoon and (restore or mask is not None or repeats > 1 or sweep is not None):
        raise ValueError("--cartoon starts from the image as it is: drop --restore, --mask, --repeats and --sweep")
    _check_files(out, figure, sweep, also, [*images, *([] if mask is None else [mask])])
    say = partial(typer.echo, err=as_json)
    where, seeds = pick_device(device), tuple(range(seed, seed + candidates))
    editors = [
        open_editor(
            path, images, mask, painter, where, say if path is checkpoint else None, trust_code=trust_code,
            latent=latent if path is checkpoint else None,
        )
        for path in (checkpoint, *also)
    ]  # fmt: skip
    main, swept = editors[0], None
    times = [editor.times(asked) for editor in editors] if asked is not None and not cartoon else []
    if cartoon:
        times = [editor.cartoon_times(asked) for editor in editors]
    if asked is None and not cartoon:
        say(f"strength {DEFAULT_STRENGTH:.2f}: the default")
        times = [editor.times(("strength", (DEFAULT_STRENGTH,))) for editor in editors]
    configs = [
        EditConfig(
            times=each, seeds=seeds, sampling=sampling, repeats=repeats, restore=restore, cartoon=cartoon,
            strokes=painter.description,
        )
        for each in times
    ]  # fmt: skip
    for editor, config in zip(editors, configs):
        say(editor.line(config))
    if main.generator.classes:
        say(common.describe_classes(main.generator.reverse_process(sampling, configs[0].times[0]), classes))
    with common.kept("results", say), common.progress("network evaluations") as tick:
        done = write_edits(main.generator, main.pictures, configs[0], out, mask=main.mask, say=say, progress=tick)
    if sweep is not None:  # after the edits: whatever is wrong has been refused
        with common.progress("sweep, images") as tick:
            swept = main.sweep(seeds[:SWEPT], SWEPT, sampling, repeats=repeats, progress=tick)
        _draw_sweep(main, swept, sweep, steps)
    if figure is not None:
        with common.progress("other checkpoints, images") as tick:
            save_figure(editing_figure(editors, configs, out, tick), figure)
    written = [path for path in (out, figure, sweep) if path is not None]
    if as_json:
        facts = {
            **done.protocol, "path": str(out), "results": main.measured(configs[0], out), "count": done.count,
            "made": done.made, "nfe": done.spent, "seconds": round(done.seconds, 3),
            "notes": main.notes, "sweep": None if swept is None else swept.as_dict(),
            "written": [str(path) for path in written],
        }  # fmt: skip
        typer.echo(json.dumps(facts, indent=2))
        return
    typer.echo(f"{done.made} of {done.count} results made: {done.spent} network evaluations, {done.seconds:.1f} s")
    common.wrote(*written)


def _asked(t: str | None, strength: str | None) -> tuple[str, tuple[float, ...]] | None:
    """``t`` or ``strength``, and its values."""
    if t is not None and strength is not None:
        raise ValueError("--t and --strength exclude one another; give one of them")
    for name, text in (("t", t), ("strength", strength)):
        if text is None:
            continue
        numbers = tuple(dict.fromkeys(common.numbers(f"--{name}", text, "a number, or several like 0.4,0.8")))
        if not all(map(math.isfinite, numbers)):
            raise ValueError(f"--{name} expects finite numbers, got {text!r}")
        return name, numbers
    return None


def _paint(text: str | None, strokes: int | None) -> "Paint | None":
    """How the images are painted; --strokes N is short for --paint "strokes(colors=N)"."""
    from anisodiff.editing.painters import Strokes, read_paint

    if text is not None and strokes is not None:
        raise ValueError('--paint excludes --strokes: write --paint "strokes(colors=8, …)"')
    if strokes is not None:
        return Strokes(colors=strokes)
    return None if text is None else read_paint(text, "--paint")


def _check(
    restore: bool, painted: bool, repeats: int, candidates: int, asked: Any, sweep: Path | None,
) -> None:  # fmt: skip
    """Checks that need no file."""
    common.check_candidates(candidates)
    if repeats < 1:
        raise ValueError(f"--repeats: got {repeats}, expected 1 or more")
    if restore and (painted or repeats > 1 or sweep is not None):
        raise ValueError("--restore starts from the image itself: drop --strokes, --paint, --repeats and --sweep")
    if restore and asked is None:
        raise ValueError("--restore needs --t or --strength: the time at which the image is a state")


def _check_files(
    out: Path, figure: Path | None, sweep: Path | None, also: Sequence[Path], inputs: Sequence[Path]
) -> None:
    """Checks of names; no figure overwrites an input, or lies where the next call would read it as one."""
    from anisodiff.editing.job import check_out
    from anisodiff.io.figures import FIGURES

    check_out(out)
    if also and figure is None:
        raise ValueError("--also adds checkpoints to the figure: give --figure FILE.png, too")
    places = {path.resolve() for path in inputs}
    for name, path in (("--figure", figure), ("--sweep", sweep)):
        common.check_suffix(name, path, *FIGURES)
        if path is not None and path.resolve() in places:
            raise ValueError(f"{name} {path} is one of the pictures given, and would overwrite it: give another name")
        if path is not None and path.resolve().parent in places:
            raise ValueError(f"{name} {path} would lie among the pictures and be read as one: write it elsewhere")
    common.check_distinct(out=out, figure=figure, sweep=sweep)


def _draw_sweep(editor: "Editor", swept: "Sweep", path: Path, steps: int) -> None:
    """The figure, and its values beside it as JSON."""
    from anisodiff.editing.figures import sweep_figure
    from anisodiff.io.figures import save_figure
    from anisodiff.io.records import write_json

    count, each = swept.results.shape[1:3]
    note = f"{editor.label}, {steps} NFE; RMSE over {count} paintings × {each} seeds"
    save_figure(sweep_figure(swept, note), path)
    write_json(path.with_name(f"{path.name}.json"), swept.as_dict())
