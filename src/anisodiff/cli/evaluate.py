"""``anisodiff evaluate``: how far are samples from a reference? Every number with its protocol."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import typer
from PIL.Image import Image

from anisodiff.cli import common
from anisodiff.cli.feature_network import INPUTS, pick_network
from anisodiff.cli.measured import from_checkpoint, from_disk
from anisodiff.io.atomic import replacing
from anisodiff.io.figures import FIGURES, save_figure
from anisodiff.metrics import (
    METRICS,
    ImageSet,
    Report,
    Settings,
    Workers,
    comparison_table,
    current_workers,
    fid_figure,
    find_sources,
    open_reference,
)
from anisodiff.metrics import evaluate as measure
from anisodiff.metrics.workers import ALONE
from anisodiff.runtime.devices import pick_device
from anisodiff.runtime.progress import stages

T = TypeVar("T")


def _in_turn(workers: Workers, work: Callable[[], T]) -> T:
    """The first process before the others: what it fetches and caches they only read."""
    if workers.rank:
        workers.gather(None)
    result = work()
    if not workers.rank:
        workers.gather(None)
    return result


def _metrics(text: str | None) -> tuple[str, ...] | None:
    """The metrics named, each of them known: before any network is read."""
    if text is None:
        return None
    named = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if wrong := [name for name in named if name not in METRICS]:
        raise ValueError(f"no metric {wrong[0]}; choose from {', '.join(METRICS)}")
    return named


def _read_report(path: Path) -> Report:
    try:
        return Report.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror or error})") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def evaluate(
    samples: Path | None = typer.Argument(None, help="A folder, zip or npz of images."),
    reference: str | None = typer.Option(
        None, "--reference", "-r", metavar="NAME/SPLIT|PATH", help="What to compare with: cifar10/train, …; a "
        "prepared dataset, folder, zip, npz; or statistics from the cache."),
    data: Path | None = typer.Option(None, "--data", help="Where a reference given by name lies; it is remembered."),
    heldout: str | None = typer.Option(
        None, "--heldout", metavar="NAME/SPLIT|PATH", help="Images never trained on: are samples closer to the "
        "reference than to these?"),
    metrics: str | None = typer.Option(
        None, "--metrics", help=f"Some of {', '.join(METRICS)}, with commas between. Default: all that apply."),
    network: str = typer.Option(
        "inception", "--network", help="inception, dinov2, a .pt (TorchScript) or .onnx file, or MODULE:FUNCTION."),
    weights: Path | None = typer.Option(
        None, "--inception", "--weights", help="Inception's weights; else cache, download, package index."),
    given: str | None = typer.Option(
        None, "--input", help=f"What a network from a file is given: {', '.join(INPUTS)}."),
    tf32: bool = typer.Option(False, "--tf32", help="Twice as fast on CUDA; FID moves by about 1e-4."),
    start: Path | None = typer.Option(
        None, "--from", metavar="CHECKPOINT", help="Make the samples now, with this model."),
    n: int | None = typer.Option(
        None, "--n", "--count", min=2, help="The first so many samples; with --from how many to make (50000)."),
    steps: int = typer.Option(50, "--steps", min=1, help="With --from: evaluations of the network a sample."),
    sampler: str = typer.Option("auto", "--sampler", help="With --from: how to go back."),
    prior: str = typer.Option("gaussian", "--prior", help="With --from: where to start."),
    images: Path | None = typer.Option(None, "--images", help="With --from: what priors but gaussian start from."),
    seed: int = typer.Option(0, "--seed", min=0, help="With --from: the first seed."),
    batch: int = typer.Option(256, "--batch", min=1, help="Images at a time."),
    json_file: Path | None = typer.Option(
        None, "--json", metavar="FILE|-", help="The report as JSON; - prints it in place of the table."),
    plot: Path | None = typer.Option(
        None, "--plot", help="FID against the number of samples: .png, .pdf or .svg."),
    sheet: Path | None = typer.Option(
        None, "--sheet", help="Samples beside their nearest reference images: .png."),
    others: list[Path] = typer.Option(
        [], "--compare", metavar="JSON", help="An earlier report to put beside; may be repeated."),
    force: bool = typer.Option(False, "--force", help="Compare reports of different protocols all the same."),
    device: str = common.DEVICE,
) -> None:  # fmt: skip
    """Measure samples against a reference: FID, KID, precision and recall, spectra, edges, memorization.

    Example: anisodiff evaluate samples.zip --reference cifar10/train --data cifar-10-python.tar.gz --json report.json

    Straight from a model: anisodiff evaluate --from run --n 50000 --reference cifar10/train

    Two results side by side: anisodiff evaluate --compare a.json --compare b.json

    On several GPUs: torchrun --nproc-per-node 8 -m anisodiff evaluate --from run --count 50000 -r cifar10/train
    """
    wanted, earlier = _metrics(metrics), [_read_report(path) for path in others]
    if plot is not None and plot.suffix.lower() not in FIGURES:
        raise ValueError(f"--plot must end in .png, .pdf or .svg, got {plot}")
    if plot is not None and wanted is not None and "fid" not in wanted:
        raise ValueError("--plot draws FID against the number of samples: add fid to --metrics")
    if sheet is not None and sheet.suffix.lower() != ".png":
        raise ValueError(f"--sheet must end in .png, got {sheet}")
    if samples is None and start is None and reference is None and len(earlier) > 1:
        typer.echo(comparison_table(earlier, [str(path) for path in others], force=force))
        return
    if (samples is None) == (start is None):
        raise ValueError("say what to measure: SAMPLES (a folder, zip or npz), or --from CHECKPOINT, one of the two")
    if reference is None:
        raise ValueError("say what to compare with: --reference NAME/SPLIT or PATH, such as cifar10/train")
    if start is None and images is not None:
        raise ValueError("--images belongs to --from: it is what a prior starts from")

    where, workers = pick_device(device), ALONE
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from anisodiff.runtime.distributed import Distributed

        where = Distributed(where).device
        workers = current_workers()
    leads = not workers.rank

    def say(line: str) -> None:
        if leads:
            common.console.print(line, highlight=False, markup=False, soft_wrap=True)

    settings = Settings(batch_size=batch)
    if start is not None:
        made = from_checkpoint(start, n or 50_000, seed, steps, sampler, prior, images, where, workers, say)
    else:
        assert samples is not None
        made = from_disk(samples, say)
    chosen = _in_turn(
        workers,
        lambda: pick_network(network, weights=weights, given=given, device=where, tf32=tf32, say=say, size=made.size),
    )
    found: list[Image] = []
    with stages(common.console, shown=leads) as tell:

        def opened(text: str, at: Path | None) -> Any:
            return _in_turn(
                workers,
                lambda: open_reference(
                    text, size=made.size, network=chosen, settings=settings, data=at, say=say,
                    progress=lambda done, total: tell(f"preparing {text}", done, total),
                ),
            )  # fmt: skip

        against = opened(reference, data)
        together = heldout is not None and heldout.split("/")[0] == reference.split("/")[0]  # parts of one set
        apart = None if heldout is None else opened(heldout, data if together else None)
        generation = made.origin.generation
        if isinstance(against.content, ImageSet) and (wanted is None or "memorization" in wanted):
            count = made.origin.count if start is not None else made.images.count
            known = find_sources(made.origin, count, against.content, against.path, say=say)
            generation = replace(generation, sources=known)
        report = measure(
            made.images,
            against.content,
            network=chosen,
            split=against.split,
            heldout=None if apart is None else apart.content,
            generation=generation,
            settings=settings,
            metrics=wanted,
            limit=n if start is None else None,
            reference_name=against.name,
            heldout_name=None if apart is None else apart.name,
            sheet=None if sheet is None else found.append,
            progress=tell,
            say=say,
            workers=workers,
        )
    if leads:
        _deliver(report, found, json_file, plot, sheet)
        if earlier:
            names = [report.protocol.samples, *map(str, others)]
            alone = str(json_file) == "-"  # what is printed there must stay JSON
            typer.echo(comparison_table([report, *earlier], names, force=force), err=alone)


def _deliver(
    report: Report, found: list[Image], json_file: Path | None, plot: Path | None, sheet: Path | None
) -> None:
    """Print, and write what was asked for: numbers first, so that a bad path for a picture loses none."""
    alone = str(json_file) == "-"
    typer.echo(report.to_json() if alone else report.table())
    written = []
    if json_file is not None and not alone:
        with replacing(json_file) as temporary:
            temporary.write_text(report.to_json() + "\n", encoding="utf-8")
        written.append(json_file)
    if sheet is not None and found:
        with replacing(sheet) as temporary:
            found[0].save(temporary, format="PNG")
        written.append(sheet)
    if plot is not None:
        save_figure(fid_figure(report), plot)
        written.append(plot)
    if not alone:
        for path in written:
            common.wrote(path)
