"""``anisodiff evaluate``: the distance of samples from a reference, every number with its protocol."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from anisodiff.cli import common, feature_network
from anisodiff.io.atomic import replacing
from anisodiff.runtime.progress import stages

if TYPE_CHECKING:
    from PIL.Image import Image

    from anisodiff.metrics import Context, Reference, Report

METRICS = ("fid", "kid", "is", "prdc", "sliced", "spectrum", "edges", "memorization")
T = TypeVar("T")


def evaluate(
    samples: Path | None = typer.Argument(None, help="Measure this folder, zip or npz of images."),
    reference: str | None = typer.Option(
        None, "--reference", "-r", metavar="NAME/SPLIT|PATH", help="Compare with a named set, images or statistics."),
    data: Path | None = typer.Option(None, "--data", help="Find a named reference here; it is cached."),
    heldout: str | None = typer.Option(
        None, "--heldout", metavar="NAME/SPLIT|PATH", help="Look for memorization with images not trained on."),
    metrics: str | None = typer.Option(
        None, "--metrics", help="Choose metrics, separated by commas. Default: all."),
    network: str = feature_network.NETWORK,
    weights: Path | None = feature_network.WEIGHTS,
    given: str | None = feature_network.INPUT,
    tf32: bool = feature_network.TF32,
    start: Path | None = typer.Option(
        None, "--from", metavar="CHECKPOINT", help="Generate the samples now, with this model."),
    n: int | None = typer.Option(
        None, "--n", "--count", min=2, help="Measure the first N samples; with --from: 50000."),
    steps: int = typer.Option(50, "--steps", min=1, help="With --from: set the NFE of each sample."),
    sampler: str = typer.Option("auto", "--sampler", help="With --from: choose the sampler."),
    prior: str = typer.Option("gaussian", "--prior", help="With --from: choose the prior."),
    images: Path | None = typer.Option(None, "--images", help="With --from: images of a simulated prior."),
    seed: int = typer.Option(0, "--seed", min=0, help="With --from: set the first seed."),
    batch: int = typer.Option(256, "--batch", min=1, help="Set the batch size, in images."),
    json_file: Path | None = typer.Option(
        None, "--json", metavar="FILE|-", help="Write the report as JSON; -: print it instead."),
    sheet: Path | None = typer.Option(
        None, "--sheet", help="Draw samples beside their nearest neighbors (.png)."),
    others: list[Path] = typer.Option(
        [], "--compare", metavar="JSON", help="Compare with an earlier report; repeatable."),
    force: bool = typer.Option(False, "--force", help="Compare reports of different protocols."),
    device: str = common.DEVICE,
) -> None:  # fmt: skip
    """Measure samples against a reference, and print a table of metrics with their protocol.

    Metrics: fid, kid, is (Inception score), prdc (precision, recall, density, coverage), sliced (Wasserstein),
    spectrum, edges, memorization (with --heldout or --sheet).

    Example: anisodiff evaluate samples.zip --reference cifar10/train --data cifar-10-python.tar.gz --json report.json

    Straight from a model: anisodiff evaluate --from run --n 50000 --reference cifar10/train

    Two results side by side: anisodiff evaluate --compare a.json --compare b.json

    On several GPUs: torchrun --nproc-per-node 8 -m anisodiff evaluate --from run --count 50000 -r cifar10/train
    """
    from dataclasses import replace

    from anisodiff.metrics import Context, ImageSet, Settings, comparison_table, open_reference
    from anisodiff.metrics import evaluate as measure
    from anisodiff.metrics.samples import find_sources, generate_samples, read_samples
    from anisodiff.runtime.devices import pick_device
    from anisodiff.runtime.distributed import Distributed

    wanted, earlier = _metrics(metrics), [_read_report(path) for path in others]
    if sheet is not None and sheet.suffix.lower() != ".png":
        raise ValueError(f"--sheet must end in .png, got {sheet}")
    if samples is None and start is None and reference is None and len(earlier) > 1:
        typer.echo(comparison_table(earlier, [str(path) for path in others], force=force))
        return
    if (samples is None) == (start is None):
        raise ValueError("expected SAMPLES (a folder, zip or npz) or --from CHECKPOINT: give one of the two")
    if reference is None:
        raise ValueError("expected --reference NAME/SPLIT or PATH, such as cifar10/train")
    if start is None and images is not None:
        raise ValueError("--images belongs to --from: it is what a prior starts from")

    distributed = Distributed(pick_device(device))
    where, pictures = distributed.device, list["Image"]()

    def say(line: str) -> None:
        if distributed.leads:
            common.console.print(line, highlight=False, markup=False, soft_wrap=True)

    with stages(common.console, shown=distributed.leads) as tell:
        context = Context(
            say=say, progress=tell, distributed=distributed, sheet=None if sheet is None else pictures.append
        )
        if start is not None:
            from anisodiff.generation import load

            model = load(start, device=where, images=images, say=say)
            made = generate_samples(
                model, start.resolve().name, n or 50_000, seed=seed, steps=steps, sampler=sampler, prior=prior,
                context=context,
            )  # fmt: skip
        else:
            assert samples is not None
            made = read_samples(samples, say)
        settings = Settings(batch_size=batch, limit=n if start is None else None)
        chosen = _in_turn(
            context,
            lambda: feature_network.pick_network(
                network, weights=weights, given=given, device=where, tf32=tf32, say=say, size=made.size
            ),
        )

        def opened(text: str, at: Path | None) -> "Reference":
            return _in_turn(
                context,
                lambda: open_reference(
                    text, size=made.size, network=chosen, settings=settings, data=at, context=context
                ),
            )

        against = opened(reference, data)
        together = heldout is not None and heldout.split("/")[0] == reference.split("/")[0]  # parts of one set
        apart = None if heldout is None else opened(heldout, data if together else None)
        generation = made.origin.generation
        if isinstance(against.content, ImageSet) and (wanted is None or "memorization" in wanted):
            assert against.path is not None
            count = made.origin.count if start is not None else made.images.count
            known = find_sources(made.origin, count, against.content, against.path, say=say)
            generation = replace(generation, sources=known)
        report = measure(
            made.images, against, network=chosen, heldout=apart, metrics=wanted, generation=generation,
            settings=settings, context=context,
        )  # fmt: skip
    if distributed.leads:
        _deliver(report, pictures, json_file, sheet)
        if earlier:
            names = [report.protocol.samples, *map(str, others)]
            alone = str(json_file) == "-"  # what is printed there must stay JSON
            typer.echo(comparison_table([report, *earlier], names, force=force), err=alone)


def _in_turn(context: "Context", work: Callable[[], T]) -> T:
    """The first process before the others: what it downloads and caches they only read."""
    if context.rank:
        context.gather(None)
    result = work()
    if not context.rank:
        context.gather(None)
    return result


def _metrics(text: str | None) -> tuple[str, ...] | None:
    """The metrics named, checked before any network is read."""
    if text is None:
        return None
    named = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if wrong := [name for name in named if name not in METRICS]:
        raise ValueError(f"no metric {wrong[0]}; choose from {', '.join(METRICS)}")
    return named


def _read_report(path: Path) -> "Report":
    from anisodiff.metrics import Report

    try:
        return Report.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror or error})") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _deliver(report: "Report", pictures: "list[Image]", json_file: Path | None, sheet: Path | None) -> None:
    """Print and write the results: numbers first, so that a bad path for a picture loses none."""
    alone = str(json_file) == "-"
    typer.echo(report.to_json() if alone else report.table())
    written = []
    if json_file is not None and not alone:
        with replacing(json_file) as temporary:
            temporary.write_text(report.to_json() + "\n", encoding="utf-8")
        written.append(json_file)
    if sheet is not None and pictures:
        with replacing(sheet) as temporary:
            pictures[0].save(temporary, format="PNG")
        written.append(sheet)
    if not alone:
        for path in written:
            common.wrote(path)
