"""``anisodiff evaluate``: the distance of samples from a reference, every number with its protocol."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from anisodiff.cli import common, feature_network
from anisodiff.cli.tables import show_comparison, show_report
from anisodiff.io.atomic import replacing
from anisodiff.runtime.progress import stages

if TYPE_CHECKING:
    from PIL.Image import Image

    from anisodiff.io.images import Fit
    from anisodiff.metrics import Context, FeatureNetwork, Reference, Report, Settings

BITS = {"cuda": 2000, "cpu": 100}
"""Images whose bits are measured by kind of device, unless --n is given; of another kind as on a CPU."""
BATCHES = {"cuda": (256, 256), "cpu": (64, 8)}
"""Images measured and generated at a time, unless --batch is given: few on a CPU, so that progress is seen soon."""
OF_MODELS = ("steps", "sampler", "prior", "classes", "guidance", "interval", "images", "seed", "latent")
"""Parameters that say how a model generates."""
T = TypeVar("T")


def evaluate(
    command_line: typer.Context,
    samples: Path | None = typer.Argument(
        None, metavar="MODEL|IMAGES", help="Measure a run or model, or a folder, zip, npz or npy."),
    reference: str | None = typer.Option(
        None, "--reference", "-r", metavar="NAME/SPLIT|PATH", help="Compare with a named set, images or statistics."),
    data: Path | None = typer.Option(None, "--data", help="Find a named reference here; it is cached."),
    heldout: str | None = typer.Option(
        None, "--heldout", metavar="NAME/SPLIT|PATH", help="Also compare with these held-out images."),
    metrics: str | None = typer.Option(
        None, "--metrics", help="Choose metrics, separated by commas. Default: all."),
    network: str = feature_network.NETWORK,
    weights: Path | None = feature_network.WEIGHTS,
    given: str | None = feature_network.INPUT,
    tf32: bool = feature_network.TF32,
    download: bool = feature_network.DOWNLOAD,
    trust_code: bool = feature_network.TRUST,
    latent: str | None = common.LATENT,
    n: int | None = typer.Option(
        None, "--n", "--count", min=2, help="Measure N samples. Of a model: 10000 on CUDA, else 256."),
    steps: int = typer.Option(50, "--steps", min=1, help="For a model: set the NFE of each sample."),
    sampler: str = typer.Option("auto", "--sampler", help="For a model: choose the sampler."),
    prior: str = typer.Option("auto", "--prior", help="For a model: choose the prior."),
    classes: str | None = common.CLASS,
    guidance: float = common.GUIDANCE,
    interval: str | None = common.INTERVAL,
    images: Path | None = typer.Option(
        None, "--images", metavar="PATH", help="For a model: images that a prior starts from."),
    seed: int = typer.Option(0, "--seed", min=0, help="For a model: set the first seed."),
    batch: int | None = typer.Option(None, "--batch", min=1, help="Set the batch size, in images."),
    json_file: Path | None = typer.Option(
        None, "--json", metavar="FILE|-", help="Write the report as JSON; -: print it instead."),
    sheet: Path | None = typer.Option(
        None, "--sheet", help="Draw samples beside their nearest neighbors (.png)."),
    others: list[Path] = typer.Option(
        [], "--compare", metavar="JSON", help="Compare with an earlier report; repeatable."),
    force: bool = typer.Option(False, "--force", help="Compare reports of different evaluation settings."),
    device: str = common.DEVICE,
) -> None:  # fmt: skip
    """Measure a model or images against a reference, and print a table of metrics, with the settings that fix them.

    A run is measured against the images it was trained on and, where it has them, the held-out images.

    Metrics: fid, kid, is (Inception score), prdc (precision, recall, density, coverage), sliced (Wasserstein),
    spectrum, edges, memorization (with held-out images or --sheet). sliced, spectrum and edges need no network:
    --network none takes these. bits (per dimension, of a model; only where named) needs no samples either.
    class-fid (only where named) is the FID of each class, where samples and reference have classes.

    Example: anisodiff evaluate run

    Images: anisodiff evaluate samples.zip --reference cifar10/train --data cifar-10-python.tar.gz --json report.json

    Two results side by side: anisodiff evaluate --compare a.json --compare b.json

    On several GPUs: torchrun --nproc-per-node 8 -m anisodiff evaluate run --count 50000
    """
    from anisodiff.io.archives import existing
    from anisodiff.metrics import Context, Settings
    from anisodiff.metrics import evaluate as measure
    from anisodiff.metrics.bits import with_bits
    from anisodiff.metrics.evaluation import uses_features
    from anisodiff.metrics.references import check_reference, own_fit
    from anisodiff.metrics.samples import is_model, read_samples
    from anisodiff.runtime.devices import pick_device
    from anisodiff.runtime.distributed import Distributed

    wanted, earlier = _metrics(metrics), [read_report(path) for path in others]
    if sheet is not None and sheet.suffix.lower() != ".png":
        raise ValueError(f"--sheet must end in .png, got {sheet}")
    for path in filter(None, (json_file, sheet)):
        if path.is_dir():
            raise ValueError(f"cannot write {path}: it is a folder; give a file name")
        if not (place := next(folder for folder in path.absolute().parents if folder.exists())).is_dir():
            raise ValueError(f"cannot write {path}: {place} is not a folder")
    if samples is None and reference is None and len(earlier) > 1:
        show_comparison(earlier, [str(path) for path in others], force=force)
        return
    if samples is None:
        raise ValueError("expected a run or model, or a folder, zip, npz or npy of images, to measure")
    model = is_model(samples)
    guided = common.guidance(guidance, interval)
    if not model:
        existing(samples, "a run or model, or a folder, .zip, .npz or .npy of images")
        if wrong := common.options_given(command_line, OF_MODELS):
            raise ValueError(f"{wrong[0]} belongs to a model, and {samples} holds images; leave it out")
    if not model and reference is None:
        raise ValueError(f"{samples} is no run or model: say what to compare it with, --reference NAME/SPLIT or PATH")
    choice = feature_network.Choice(
        name=network, weights=weights, given=given, tf32=tf32, download=download, trust_code=trust_code
    )
    sets = _sets(samples, reference, heldout, data)
    for item in sets:
        check_reference(item.text, item.data)

    likelihood = wanted is not None and "bits" in wanted
    if likelihood and not model:
        raise ValueError(f"bits does not apply: it is the likelihood of a model, and {samples} is none")
    if likelihood and prior not in ("auto", "gaussian"):
        raise ValueError(f"bits does not apply: --prior {prior} has no density; leave --prior out")
    if likelihood and sheet is not None and "memorization" not in (wanted or ()):
        raise ValueError("a sheet belongs to the metric memorization; name it too")
    wanted = wanted if wanted is None else tuple(m for m in wanted if m != "bits")

    distributed = Distributed(pick_device(device))
    where, pictures = distributed.device, list["Image"]()
    measured, generated = BATCHES.get(where.type, BATCHES["cpu"])
    say: Callable[[str], None] = common.say if distributed.leads else lambda _: None
    if distributed.leads and uses_features(wanted):
        choice = choice.with_consent()
    with stages(common.console, shown=distributed.leads) as progress:
        context = Context(
            say=say, progress=progress, distributed=distributed, sheet=None if sheet is None else pictures.append
        )

        def of_samples() -> "Report":
            if model:
                from anisodiff.generation import SamplingConfig, load
                from anisodiff.metrics.samples import default_count, generate_samples

                count = n or default_count(where)
                config = SamplingConfig(
                    steps=steps, sampler=sampler, prior=prior, classes=classes, guidance=guided,
                    batch=batch or generated,
                )  # fmt: skip
                generator = load(samples, device=where, images=images, trust_code=trust_code, latent=latent, say=say)
                common.check_prior_images(generator.named_prior(prior), images)
                if n is None:
                    say(f"{count} samples are the default on this device ({where.type}): change it with --n")
                made = generate_samples(
                    generator, samples.resolve().name, count, seed=seed, config=config, context=context
                )
            else:
                made = read_samples(samples, say)
            settings = Settings(batch_size=batch or measured, limit=None if model else n)
            chosen = _in_turn(
                context,
                lambda: feature_network.network_for(wanted, choice, device=where, say=say, size=made.size),
            )
            fit = own_fit(samples, made.size, made.origin.channels)
            against, *held = (_opened(item, fit, chosen, settings, context) for item in sets)
            return measure(
                made, against, network=chosen, heldout=next(iter(held), None), metrics=wanted, settings=settings,
                context=context,
            )  # fmt: skip

        def of_model() -> "Report":
            from anisodiff.generation import load
            from anisodiff.metrics import BitsSettings, bits_per_dimension, no_network

            count = n or BITS.get(where.type, BITS["cpu"])
            if n is None:
                say(f"bits of {count} images are the default on this device ({where.type}): change it with --n")
            generator = load(
                samples, device=where, images=images, precision="fp32", trust_code=trust_code, latent=latent, say=say
            )
            fit = own_fit(samples, generator.size, generator.channels)
            against, *held = (_opened(item, fit, no_network(where), Settings(), context) for item in sets)
            settings = BitsSettings(images=count, seed=seed, batch_size=batch or generated)
            return bits_per_dimension(
                generator, against, heldout=next(iter(held), None), name=samples.resolve().name,
                settings=settings, context=context,
            )  # fmt: skip

        reports = [of_samples()] if wanted is None or wanted else []
        reports += [of_model()] if likelihood else []
        report = reports[0] if len(reports) == 1 else with_bits(*reports)
    if distributed.leads:
        _deliver(report, pictures, json_file, sheet)
        if earlier:
            names = [report.protocol.samples, *map(str, others)]
            only_json = str(json_file) == "-"  # what is printed there must stay JSON
            show_comparison([report, *earlier], names, force=force, err=only_json)


@dataclass(frozen=True)
class Compared:
    """A set to compare with: its path or name, the path of a named one, and what to call it."""

    text: str
    data: Path | None = None
    name: str | None = None


def _sets(samples: Path, reference: str | None, heldout: str | None, data: Path | None) -> list[Compared]:
    """The reference and, if there is one, the held-out set; those of the run where no reference was given."""
    from anisodiff.metrics.references import own_images

    if reference is not None:
        together = heldout is not None and heldout.split("/")[0] == reference.split("/")[0]  # parts of one set
        return [Compared(reference, data)] + ([Compared(heldout, data if together else None)] if heldout else [])
    if data is not None:
        raise ValueError("--data is the path of a named reference: give it with --reference, such as cifar10/train")
    own = [Compared(str(p), name=f"{p.parent.name}/{p.name}") for p in own_images(samples) if p is not None]
    return own if heldout is None else [own[0], Compared(heldout)]


def _opened(
    item: Compared, fit: "Fit", network: "FeatureNetwork", settings: "Settings", context: "Context"
) -> "Reference":
    from dataclasses import replace

    from anisodiff.metrics import open_reference

    opener = partial(open_reference, item.text, fit=fit, network=network, data=item.data)
    found = _in_turn(context, partial(opener, settings=settings, context=context))
    return found if item.name is None else replace(found, name=item.name)


def _in_turn(context: "Context", work: Callable[[], T]) -> T:
    """The first process before the others: what it downloads and caches they only read; if it fails, they stop."""
    if context.distributed is None:
        return work()
    first = list[T]()
    context.distributed.agree(lambda: first.append(work()))
    return first[0] if first else work()


def _metrics(text: str | None) -> tuple[str, ...] | None:
    """The metrics named, checked before any network is read."""
    from anisodiff.metrics.evaluation import check_metrics

    return None if text is None else check_metrics(text)


def read_report(path: Path) -> "Report":
    """The report in a file of ``--json``."""
    from anisodiff.io.archives import read_regular
    from anisodiff.metrics import Report

    try:
        return Report.from_json(read_regular(path).decode("utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path} ({error.strerror or error})") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _deliver(report: "Report", pictures: "list[Image]", json_file: Path | None, sheet: Path | None) -> None:
    """Print and write the results: numbers first, so that a bad path for a picture loses none."""
    only_json = str(json_file) == "-"
    if only_json:
        typer.echo(report.to_json())
    else:
        show_report(report)
    written = []
    if json_file is not None and not only_json:
        with replacing(json_file) as temporary:
            temporary.write_text(report.to_json() + "\n", encoding="utf-8")
        written.append(json_file)
    if sheet is not None and pictures:
        with replacing(sheet) as temporary:
            pictures[0].save(temporary, format="PNG")
        written.append(sheet)
    if not only_json:
        for path in written:
            common.wrote(path)
