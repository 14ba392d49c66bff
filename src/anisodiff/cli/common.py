"""What several verbs share: options, processes from a name or a file, progress with remaining time."""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from anisodiff import notation
from anisodiff.cli.names import complete_process
from anisodiff.registry import DEFAULT_PROCESS
from anisodiff.runtime.progress import Progress
from anisodiff.runtime.progress import progress as progress_on

if TYPE_CHECKING:
    from anisodiff.generation.priors import NamedPrior
    from anisodiff.generation.reverse import ReverseProcess
    from anisodiff.models.guidance import Guidance
    from anisodiff.processes import Process
    from anisodiff.training.run_folder import RunDescription

console = Console(stderr=True, markup=False, emoji=False)

PROCESS = typer.Option(
    DEFAULT_PROCESS, "--process", "-p", help="Choose the process by its name.", autocompletion=complete_process
)
CONFIG = typer.Option(None, "--config", metavar="FILE|RUN", help="Take the process from a YAML file, or from a run.")
SET = typer.Option([], "--set", help="Override a key, as KEY=VALUE; repeatable.")
SEED = typer.Option(0, "--seed", min=0, help="Set the random seed.")
JSON = typer.Option(False, "--json", help="Print the result as JSON.")
CHECKPOINT = typer.Argument(..., help="Load a run, a checkpoint, cifar10-tiny or hub:OWNER/NAME.")
NFE = typer.Option(50, "--steps", help="Set the NFE of each image; guidance doubles it.")
SAMPLER = typer.Option("auto", "--sampler", help="Choose the sampler; auto: the model's default.")
TRUST = typer.Option(False, "--trust-code", help="Import the network class that the model names.")
CLASS = typer.Option(None, "--class", help="Choose cat; cat,dog; all; data (its class shares); none.")
GUIDANCE = typer.Option(1.0, "--guidance", help="Set the guidance weight; unless 0 or 1, NFE doubles.")
INTERVAL = typer.Option(None, "--guidance-interval", help="Guide only for σ/σ_data from LO to HI: 0.2,5.")
LATENT = typer.Option(None, "--latent", help="Find the model's autoencoder here: FOLDER or OWNER/NAME.")
ANIMATIONS = (".gif", ".png", ".apng")
_FILES = (
    ".zip", ".tar", ".gz", ".tgz", ".npz", ".npy", ".png", ".jpg", ".jpeg", ".webp", ".gif", ".pdf", ".svg",
)  # fmt: skip
MOST = 100_000
"""Candidates of an image."""
DEVICE = typer.Option("auto", "--device", help="Run on auto, cpu, cuda, cuda:N, gpu or mps.")


def output(default: Any, help: str) -> Any:
    """The option that says where the result goes: one option with three spellings."""
    return typer.Option(default, "--out", "--output", "-o", help=help)


def output_folder(default: Any, help: str) -> Any:
    """The same option where the result is a folder."""
    return typer.Option(default, "--out", "--output", "-o", help=help, callback=_no_file)


def _no_file(path: Path | None) -> Path | None:
    """Refuse a new folder with the name of an archive or a picture."""
    if path is not None and path.suffix.lower() in _FILES and not path.exists():
        raise ValueError(f"--out: got {path}, expected a folder, and {path.suffix} is the suffix of a file")
    return path


def settings(items: list[str]) -> dict[str, Any]:
    """The values of ``--set KEY=VALUE``, parsed as YAML; what does not parse stays text."""
    found: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"--set expects KEY=VALUE, got {item!r}")
        found[key.strip()] = notation.setting(value)
    return found


def latent_keys(name: str) -> dict[str, Any]:
    """The key ``latent`` of a config, for an autoencoder that the user names."""
    from anisodiff.latent.autoencoder import describe

    return {"latent": {} if name == "none" else describe(name, online=True).as_keys()}


def run_of(config: Path | None) -> "RunDescription | None":
    """The run in a folder, or of its config.yaml, with the process it was trained with; None for other files."""
    from anisodiff.io.records import read_config
    from anisodiff.training.model import read_trained

    if config is None or not (config.is_dir() or "process" in read_config(config)):
        return None
    return read_trained(config)


def size_of(config: Path | None, size: int | None, default: int, *, of_images: bool = False) -> int:
    """The size that was given, or that of the run whose process is taken, or the usual one.

    Of a run on latents, that of the latents, unless ``of_images``.
    """
    run = run_of(config) if size is None else None
    if run is None or "size" not in run.given:
        return default if size is None else size
    return max(run.config.size if of_images else run.config.state_shape[1:])


def pick_process(name: str, config: Path | None, overrides: list[str], size: int) -> "tuple[str, Process]":
    """A preset, changed by the keys of a file or of a run, changed by ``--set``; and a name for the title."""
    from anisodiff.io.records import read_config
    from anisodiff.processes.config import check_keys
    from anisodiff.registry import build_process, process_keys

    keys: dict[str, Any] = {}
    if config is not None:
        run = run_of(config)
        keys = dict(run.config.process) if run is not None else read_config(config)
        keys = check_keys(keys, ("preset", *process_keys()), f"config {config}")
        if "preset" in keys:
            base = str(keys.pop("preset"))
            if name not in (base, DEFAULT_PROCESS):
                raise ValueError(f"--process {name} and preset {base!r} in {config} contradict each other; give one")
            name = base
    keys |= settings(overrides)
    values = (f"{k} = {v:.4g}" if isinstance(v, float) else f"{k} = {v}" for k, v in keys.items())
    title = name if not keys else f"{name} with {', '.join(values)}"
    return title, build_process(name, size, keys, "--set")


def guidance(weight: float, interval: str | None) -> "Guidance":
    """The values of ``--guidance`` and ``--guidance-interval LO,HI``."""
    from anisodiff.models.guidance import Guidance

    if interval is None:
        return Guidance(weight=weight)
    low, high = numbers("--guidance-interval", interval, "two numbers like 0.2,5", count=2)
    return Guidance(weight=weight, interval=(low, high))


def numbers(option: str, text: str, expected: str, count: int | None = None) -> list[float]:
    """Numbers between commas, ``count`` of them if given."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or count not in (None, len(found)):
        raise ValueError(f"{option}: got {text!r}, expected {expected}")
    return found


def check_candidates(candidates: int) -> None:
    """The range of --candidates."""
    if not 1 <= candidates <= MOST:
        raise ValueError(f"--candidates: got {candidates}, expected 1 to {MOST:,} for every image")


def check_prior_images(prior: "NamedPrior", images: Path | None) -> None:
    """Refuse --images where the prior starts from none."""
    if images is not None and prior.pool is None:
        raise ValueError(
            f"prior {prior.name!r} is in the checkpoint and needs no images: drop --images, "
            "or choose --prior simulate, conditional or heldout"
        )


def describe_classes(reverse: "ReverseProcess", given: str | None) -> str:
    """One line: the classes of the samples, and their guidance."""
    unasked = "; choose with --class" if given is None else ""
    if reverse.classes is None:
        return "unconditional: no class was given; choose one with --class" if given is None else "unconditional"
    return f"classes: {reverse.classes}, {reverse.guidance}{unasked}"


def say(line: str) -> None:
    """Print a line on standard error."""
    console.print(line, highlight=False, soft_wrap=True)


def progress(what: str) -> AbstractContextManager[Progress]:
    """Progress with remaining time on standard error."""
    return progress_on(console, what)


@contextmanager
def kept(what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Work that continues where it was stopped, and says so."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"stopped: finished {what} are kept; the same command makes the rest")
        raise typer.Exit(130) from None


def wrote(*paths: Path) -> None:
    """Print the paths of results."""
    for path in paths:
        typer.echo(f"wrote {path}")


def options_given(command_line: typer.Context, names: Collection[str]) -> list[str]:
    """The options of the parameters ``names`` that were given, also with their default values."""
    options = {str(parameter.name): parameter.opts[0] for parameter in command_line.command.params}
    sources = {name: command_line.get_parameter_source(name) for name in names}
    return [options[name] for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def check_suffix(option: str, path: Path | None, *suffixes: str) -> None:
    """The file of an option, where it is given, must end in one of some suffixes."""
    if path is not None and path.suffix.lower() not in suffixes:
        raise ValueError(f"{option} must end in {notation.alternatives(suffixes)}, got {path}")


def check_distinct(**paths: Path | None) -> None:
    """No two of the options may name one file."""
    given = [path.resolve() for path in paths.values() if path is not None]
    if len(set(given)) < len(given):
        *first, last = (f"--{name}" for name in paths)
        raise ValueError(f"{', '.join(first)} and {last}: two of them are the same file; give other names")
