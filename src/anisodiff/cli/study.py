"""What ``compare`` and ``sweep`` share: options, data, the measure, and saying how it ended."""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from anisodiff.cli import common
from anisodiff.cli.feature_network import INPUTS, pick_network
from anisodiff.io.atomic import without_folders
from anisodiff.runtime.devices import pick_device
from anisodiff.runtime.progress import StageProgress

if TYPE_CHECKING:  # imported when it runs: --help stays quick
    from anisodiff.data import Dataset
    from anisodiff.experiments import Contender, Deadline, Study, Terms, Yardstick

DATA = typer.Option(None, "--data", help="A prepared dataset, an archive, a folder or zip of images.")
IMAGES = typer.Option(None, "--images", min=1, help="In place of --budget: images that each may see.")
N = typer.Option(10_000, "--n", "--count", help="Samples that are measured.")
STEPS = typer.Option("50", "--steps", help="Evaluations of the network for each; several for a curve: 10,20,50,100.")
PRIOR = typer.Option("gaussian", "--prior", help="Where sampling starts; several: gaussian,simulate.")
SEEDS = typer.Option("0", "--seeds", help="Of training: 0,1 runs everything twice and gives the range.")
SET = typer.Option([], "--set", help="KEY=VALUE for all, e.g. --set network.name=tiny --set batch=512.")
REFERENCE = typer.Option(None, "--reference", "-r", help="What to compare with; default: the training images.")
NETWORK = typer.Option("inception", "--network", help="inception, dinov2, a .pt or .onnx file, or MODULE:FUNCTION.")
WEIGHTS = typer.Option(None, "--inception", "--weights", help="Inception's weights; else cache, download, index.")
INPUT = typer.Option(None, "--input", help=f"What a network from a file is given: {', '.join(INPUTS)}.")
TF32 = typer.Option(False, "--tf32", help="Features twice as fast on CUDA; FID moves by about 1e-4.")
FOR = typer.Option(None, "--for", help="Stop cleanly when this wall time is up, e.g. 9min; the same command goes on.")
BATCH = typer.Option(None, "--batch", min=1, help="Samples at a time; changes no sample.")
COMPILE = typer.Option(False, "--compile/--no-compile", help="Compile the network for sampling, too (CUDA).")
JSON = typer.Option(False, "--json", help="Print the outcome as JSON.")


_PIECE = re.compile(r"--(?:for|only|stage)(?P<value>=.*)?")  # how much one call does, and nothing of what comes out


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options that both verbs have, as they were given."""

    data: Path | None
    out: Path
    overrides: list[str]
    reference: str | None
    network: str
    weights: Path | None
    given: str | None
    tf32: bool
    span: str | None
    device: str
    as_json: bool


def say(line: str) -> None:
    """Lines on the way go to standard error: results go to standard output."""
    common.console.print(line, highlight=False, markup=False, soft_wrap=True)


def whole_numbers(text: str, what: str) -> tuple[int, ...]:
    """``0,1``."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ValueError(f"{what}: got {text!r}, expected whole numbers such as 0,1")
    return tuple(dict.fromkeys(map(int, parts)))


def deadline_of(asked: Asked) -> "Deadline":
    """From now on."""
    from anisodiff.experiments import Deadline, parse_span

    return Deadline(None if asked.span is None else parse_span(asked.span, "--for"))


def open_data(contenders: "Sequence[Contender]", asked: Asked) -> "Dataset":
    """A prepared dataset, or images that are prepared below the study first."""
    from anisodiff.data import is_dataset, named_source, open_dataset, open_source, prepare
    from anisodiff.experiments import check_out
    from anisodiff.training.recipes import RECIPES, recipe

    check_out(asked.out)
    if asked.data is None:
        raise ValueError("say what to train on: --data PATH, a prepared dataset, an archive, or a folder of images")
    if is_dataset(asked.data):
        return open_dataset(asked.data)
    if not asked.data.exists():
        raise ValueError(f"--data: {asked.data} does not exist")
    named = [recipe(one.base) for one in contenders if one.base in RECIPES]
    source = named_source(named[0].dataset, asked.data) if named and named[0].dataset else open_source(asked.data)
    shape: dict[str, Any] = {"size": named[0].size, "channels": named[0].channels} if named else {}
    with common.progress("preparing the images") as tick:
        made = prepare(source, asked.out / "work" / "data", **shape, progress=tick)
    say(made.message)
    return made.dataset


def study_of(
    asked: Asked,
    terms: "Terms",
    dataset: "Dataset",
    deadline: "Deadline",
    tell: StageProgress,
    note: Callable[[Any], Any],
) -> "Study":
    """The runner; ``note`` gets the identity of the measure when it is first used, and may refuse it."""
    from anisodiff.experiments import Study, Yardstick
    from anisodiff.metrics import Settings, open_reference

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("a study runs in one process: start it without torchrun")
    where = pick_device(asked.device)

    @lru_cache(maxsize=1)
    def yardstick() -> "Yardstick":
        network = pick_network(
            asked.network, weights=asked.weights, given=asked.given, device=where, tf32=asked.tf32, say=say
        )
        settings = Settings()
        text = asked.reference or str(dataset.path)
        found = open_reference(text, size=dataset.size, network=network, settings=settings, say=say)
        measure = Yardstick(network, found, settings=settings, say=say, tell=tell)
        note(measure.identity)
        return measure

    return Study(
        terms=terms, dataset=dataset, device=where, yardstick=yardstick, deadline=deadline, say=say, tell=tell,
        pinned=tuple(common.settings(asked.overrides)),
    )  # fmt: skip


def command() -> str:
    """The command line as it will be published: paths cut to their last part, the whole study in one call."""
    words, kept = iter(sys.argv[1:]), ["anisodiff"]
    for word in words:
        if (found := _PIECE.fullmatch(word)) is None:
            kept.append(word)
        elif found["value"] is None:
            next(words, None)
    return without_folders(shlex.join(kept))


def tell_end(written: Path | None, missing: Sequence[str], as_json: bool) -> None:
    """How it ended."""
    if as_json:
        facts = {"finished": not missing, "missing": list(missing), "page": None if written is None else str(written)}
        typer.echo(json.dumps(facts, indent=2))
        return
    if written is not None:
        common.wrote(written)
    if missing:
        few = ", ".join(missing[:4]) + (", …" if len(missing) > 4 else "")
        typer.echo(f"not finished: {len(missing)} results are missing ({few}); the same command again goes on")
