"""What ``compare`` and ``sweep`` share: options, data, the evaluation, the dry run, and the report at the end."""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from anisodiff.cli import common
from anisodiff.cli.feature_network import Choice, may_ask, network_for
from anisodiff.cli.tables import show_table
from anisodiff.io.atomic import leaving_nothing, without_folders
from anisodiff.notation import counted
from anisodiff.runtime.progress import StageProgress, no_stage_progress, stages

if TYPE_CHECKING:
    import torch

    from anisodiff.data import Dataset, Guess
    from anisodiff.experiments import (
        Deadline,
        Evaluator,
        Forecast,
        Round,
        Run,
        SeededRun,
        Study,
        StudySettings,
        Summary,
    )
    from anisodiff.metrics import FeatureNetwork
    from anisodiff.training import TrainConfig

DATA = typer.Option(None, "--data", help="Train on a prepared dataset, archive, or image folder.")
IMAGES = typer.Option(None, "--images", min=1, help="Train each run on this many images (not --budget).")
STEPS = typer.Option("50", "--steps", help="Set the NFE of a sample; several: 10,20,50,100.")
PRIOR = typer.Option("auto", "--prior", help="Choose the prior; several: gaussian,simulate.")
SEEDS = typer.Option("0", "--seeds", help="Train once with each seed; several give ±: 0,1.")
SET = typer.Option([], "--set", help="Override a key of all runs, as KEY=VALUE; repeatable.")
REFERENCE = typer.Option(None, "--reference", "-r", help="Compare with this set. Default: the training images.")
FOR = typer.Option(None, "--for", help="Stop cleanly after this wall time, such as 9min.")
DRY = typer.Option(False, "--dry-run", help="Print runs, time and cost; write nothing.")
BATCH = typer.Option(None, "--batch", min=1, help="Set the batch size of sampling, in images.")
COMPILE = typer.Option(False, "--compile/--no-compile", help="Compile networks of your own for sampling (CUDA).")

_ASSUMED = 50_000
_PARTIAL = re.compile(r"--(?:for|only|stage)(?P<value>=.*)?")  # they change how much one call does, not the results


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The options that both commands have."""

    data: Path | None
    out: Path
    n: int
    steps: str
    prior: str
    seeds: str
    overrides: list[str]
    reference: str | None
    network: Choice
    span: str | None
    batch: int | None
    compile: bool
    device: str
    measures: bool = True
    """Whether this call needs the feature network."""
    note: str = ""
    """What to say of n; empty where it was given."""

    def settings(self, **more: Any) -> "StudySettings":
        """The settings of the study; ``more``: those of one command alone."""
        from anisodiff.experiments import StudySettings, parse_steps

        seeds = [part.strip() for part in self.seeds.split(",")]
        if not all(part.isdecimal() for part in seeds):
            raise ValueError(f"--seeds: got {self.seeds!r}, expected whole numbers such as 0,1")
        return StudySettings(
            n=self.n, steps=parse_steps(self.steps), priors=tuple(part.strip() for part in self.prior.split(",")),
            seeds=tuple(dict.fromkeys(map(int, seeds))), batch=self.batch, compile=self.compile, **more,
        )  # fmt: skip


def count_of(given: int | None, kind: str, out: Path, device: str, most: int) -> tuple[int, str]:
    """Samples to measure, and a line about a number that is neither given nor that of the study in ``out``."""
    from anisodiff.experiments import read_study
    from anisodiff.metrics.samples import default_count
    from anisodiff.runtime.devices import pick_device

    if given is not None:
        return given, ""
    if (out / "results" / "study.json").is_file():
        return read_study(out, kind)["fixed"]["n"], ""
    where = pick_device(device)
    count = min(most, default_count(where))
    return count, f"{count} samples are the default on this device ({where.type}): change it with --n"


def deadline_of(options: StudyOptions) -> "Deadline":
    """The deadline of ``--for``, from now on."""
    from anisodiff.experiments import Deadline
    from anisodiff.runtime.durations import parse_span

    return Deadline(None if options.span is None else parse_span(options.span, "--for"))


def open_data(
    runs: "Sequence[Run]", overrides: Mapping[str, Any], options: StudyOptions, *, dry: bool = False
) -> "Dataset":
    """A prepared dataset, or images that are prepared in the study's folder first; not in a dry run."""
    from anisodiff.data import Guess, guess, is_dataset, named_source, open_dataset, open_source, prepare
    from anisodiff.experiments import check_out
    from anisodiff.runtime.devices import pick_device
    from anisodiff.training import TrainConfig
    from anisodiff.training.picking import Machine
    from anisodiff.training.recipes import RECIPES, recipe

    check_out(options.out)
    named = [recipe(one.base) for one in runs if one.base in RECIPES]
    left = {key: key not in overrides for key in ("size", "channels")}
    asked = TrainConfig.from_dict({key: overrides[key] for key in left if not left[key]})

    def shape(seen: "Guess | TrainConfig") -> dict[str, Any]:
        return {key: getattr(seen if left[key] else asked, key) for key in left}

    if options.data is None and dry and named:
        common.say(f"no --data: {_ASSUMED:,} images are assumed for the reference")
        return _unprepared(Path(named[0].dataset), _ASSUMED, **shape(named[0]))
    if options.data is None:
        raise ValueError("--data is required: a prepared dataset, an archive, or a folder of images")
    if is_dataset(options.data):
        return open_dataset(options.data)
    if dry and is_dataset(_place(options)):
        return open_dataset(_place(options))
    source = named_source(named[0].dataset, options.data) if named and named[0].dataset else open_source(options.data)
    source.check_outside(options.out)
    largest = Machine.of(pick_device(options.device)).largest_side(len(source))
    seen = named[0] if named else guess(source, largest=largest)
    if dry:
        return _unprepared(options.data, len(source), **shape(seen))
    with common.progress("preparing the images") as tick:
        made = prepare(source, _place(options), **shape(seen), progress=tick)
    picked = f"; picked {seen.words(**left)}" if isinstance(seen, Guess) and any(left.values()) else ""
    common.say(made.message + picked)
    return made.dataset


def _place(options: StudyOptions) -> Path:
    """Where images are prepared."""
    return options.out / "work" / "data"


def _unprepared(path: Path, count: int, *, channels: int, size: tuple[int, int]) -> "Dataset":
    """Images of which number and size are known, without their pixels."""
    import numpy as np

    from anisodiff.data import Dataset

    images = np.broadcast_to(np.uint8(0), (count, channels, *size))
    return Dataset(path=path, images=images, labels=None, fingerprint="", meta={"source": str(path), "skipped": []})


@dataclass(frozen=True, kw_only=True)
class OpenStudy:
    """A study that is ready to run, its runs with their seeds, and the configs of the runs."""

    study: "Study"
    entries: "list[SeededRun]"
    configs: "list[TrainConfig | None]"


@contextmanager
def opened(
    kind: str, runs: "Sequence[Run]", settings: "StudySettings", options: StudyOptions, *, own: bool = False,
    fixed: Mapping[str, Any] | None = None, points: Mapping[str, Any] | None = None, dry: bool = False,
) -> Iterator[OpenStudy]:  # fmt: skip
    """Check everything that can be checked before work, then start or continue the study in ``options.out``.

    ``fixed``: more settings that may not change; ``points``: the values of a run of a sweep, by its name; ``dry``:
    write nothing.
    """
    from anisodiff import experiments
    from anisodiff.io.checkpoint import find
    from anisodiff.io.hub import is_hub
    from anisodiff.networks.own import trust
    from anisodiff.runtime.devices import pick_device
    from anisodiff.training.picking import Machine

    needed = options.network.missing() if options.measures else ""
    if needed and not (dry or may_ask() or (options.out / "results").exists()):
        raise ValueError(needed)  # before any image is prepared
    with leaving_nothing(options.out, "study.json"):
        deadline, overrides = deadline_of(options), common.settings(options.overrides)
        if isinstance(overrides.get("latent"), str):
            overrides |= common.latent_keys(overrides["latent"])
        for typed in (overrides, *(one.changes for one in runs)):
            trust(typed)
        if options.network.trust_code:
            for one in runs:
                for path in filter(None, (one.base if one.checkpoint else None, one.start)):
                    if is_hub(path) or Path(path).is_dir():
                        trust(find(path).meta["config"])
        dataset = open_data(runs, overrides, options, dry=dry)
        configs = experiments.configs(
            runs, dataset, overrides, Machine.of(pick_device(options.device)), own=own, images=settings.budget.images
        )
        experiments.check_runs(runs, configs, dataset)
        entries = experiments.seed_runs(runs, configs, settings, options.out)
        described = experiments.describe_runs(entries)
        for entry in entries:
            if points is not None:
                described[entry.place.name]["point"] = points[entry.run.name]
        known = {
            **settings.fixed(), "data": dataset.fingerprint[:16] or None,
            "compared_by": experiments.compared_by(options.network.name), **(fixed or {}),
        }  # fmt: skip

        def hold(more: Mapping[str, Any]) -> None:
            experiments.open_study(options.out, kind, {**known, **more}, described, command=command(), dry=dry)

        hold({})
        study = _study(options, settings, dataset, deadline, no_stage_progress, hold)
        if options.measures and not dry and experiments.missing(study, entries):
            options = replace(options, network=options.network.with_consent())
        if needed and dry and experiments.missing(study, entries):
            common.say(f"to measure: {needed}")
        if options.note and not dry:
            common.say(options.note)
        with stages(common.console) as progress:
            study = _study(options, settings, dataset, deadline, progress, hold)
            yield OpenStudy(study=study, entries=entries, configs=configs)


def _study(
    options: StudyOptions, settings: "StudySettings", dataset: "Dataset", deadline: "Deadline",
    progress: StageProgress, note: Callable[[Mapping[str, Any]], None],
) -> "Study":  # fmt: skip
    """The study; ``note`` gets the identity of the evaluation when it is first used, and may refuse it."""
    from anisodiff.experiments import Evaluator, Study
    from anisodiff.metrics import Context, open_reference
    from anisodiff.metrics.references import fit_like
    from anisodiff.runtime.devices import pick_device

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("a study runs in one process: start it without torchrun")
    where = pick_device(options.device)

    @lru_cache(maxsize=1)
    def evaluator() -> "Evaluator":
        network = network_for(("fid",), options.network, device=where, say=common.say)
        text, context = options.reference or str(dataset.path), Context(say=common.say, progress=progress)
        found = open_reference(
            text, fit=fit_like(dataset.meta, dataset.size, dataset.channels), network=network, context=context
        )
        made = Evaluator(network=network, reference=found, context=context)
        note(made.identity)
        return made

    return Study(
        settings=settings, dataset=dataset, device=where, evaluator=evaluator, deadline=deadline, say=common.say,
        progress=progress, pinned=tuple(common.settings(options.overrides)),
    )  # fmt: skip


def command() -> str:
    """The command line as it will be published: paths cut to their last part, the whole study in one call."""
    words, kept = iter(sys.argv[1:]), ["anisodiff"]
    for word in words:
        if (found := _PARTIAL.fullmatch(word)) is None:
            kept.append(word)
        elif found["value"] is None:
            next(words, None)
    return without_folders(shlex.join(kept))


def forecast_of(held: OpenStudy, rounds: "Sequence[Round]", options: StudyOptions) -> "Forecast":
    """What the rounds would cost on this device; a few steps are timed."""
    from anisodiff import experiments

    study = held.study
    study.progress("timing a few steps", 0, None)
    measuring = experiments.time_metrics(study.device, _timed_network(options, study.device), study.dataset.size)
    speeds = experiments.Speeds(study.device)
    return experiments.forecast(study, rounds, speeds, measuring, _reference_size(held, options))


def print_forecast(found: "Forecast", options: StudyOptions, as_json: bool) -> None:
    """Print what would be run, with time and cost."""
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
        return
    show_table(found.table(), found.table(narrow=True))
    for line in (*found.summary(), *filter(None, [options.note])):
        typer.echo(line)


def _timed_network(options: StudyOptions, device: "torch.device") -> "FeatureNetwork | str":
    """One from a file or function; only the name of one that would be searched for or downloaded."""
    for name in ("inception", "dinov2"):
        if name in options.network.name:
            return name
    return network_for(("fid",), options.network, device=device, say=lambda _: None)


def _reference_size(held: OpenStudy, options: StudyOptions) -> int:
    """Images of the reference; 0 where its statistics are stored, or for a named set."""
    from anisodiff.metrics.cache import is_statistics
    from anisodiff.metrics.images import image_set
    from anisodiff.metrics.references import check_reference

    if options.reference is None:
        return len(held.study.dataset)
    if check_reference(options.reference, None) or is_statistics(Path(options.reference)):
        return 0
    return image_set(options.reference).count or 0


def print_result(written: "Summary | None", missing: Sequence[str], as_json: bool) -> None:
    """Print the result: the table, the path of the page, and what is missing."""
    if as_json:
        page = None if written is None else str(written.path)
        typer.echo(json.dumps({"finished": not missing, "missing": list(missing), "page": page}, indent=2))
        return
    if written is not None:
        show_table(written.table, written.narrow, written.notes)
        common.wrote(written.path)
    if missing:
        few = ", ".join(missing[:4]) + (", …" if len(missing) > 4 else "")
        typer.echo(
            f"not finished: {counted(len(missing), 'missing result')} ({few}); run the same command again to continue"
        )
