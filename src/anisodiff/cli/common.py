"""What several verbs share: options, devices, processes from a name or a file, progress with remaining time."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import typer
from rich.console import Console

from anisodiff import notation
from anisodiff.processes import Process
from anisodiff.processes.config import check_keys, read_file
from anisodiff.processes.presets import OVERRIDES, TRAINED, build
from anisodiff.runtime.progress import Progress
from anisodiff.runtime.progress import progress as progress_on

console = Console(stderr=True)

PROCESS = typer.Option("anisotropic", "--process", "-p", help=f"A preset: {', '.join(TRAINED)}, gallery-…, design-…")
CONFIG = typer.Option(
    None, "--config", help="A YAML file with keys of a process; it may name a preset to start from."
)
SET = typer.Option([], "--set", help="KEY=VALUE, over preset and file, e.g. --set 'diffusivity=geometric(0.5, 8)'.")
SEED = typer.Option(0, "--seed", min=0, help="The same seed gives the same picture.")
DEVICE = typer.Option("auto", "--device", help="auto, cpu or cuda.")


def settings(items: list[str]) -> dict[str, Any]:
    """The values of ``--set KEY=VALUE``, read as YAML; what is no YAML stays text."""
    found: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"--set expects KEY=VALUE, got {item!r}")
        found[key.strip()] = notation.setting(value)
    return found


def pick_process(name: str, config: Path | None, overrides: list[str], size: int) -> tuple[str, Process]:
    """A preset, changed by the keys of a file, changed by ``--set``; and a name for the title."""
    keys: dict[str, Any] = {}
    if config is not None:
        keys = check_keys(read_file(config), ("preset", *OVERRIDES), f"config {config}")
        if "preset" in keys:
            base = str(keys.pop("preset"))
            if name not in (base, "anisotropic"):
                raise ValueError(f"--process {name} and preset {base!r} in {config} contradict each other; give one")
            name = base
    keys |= settings(overrides)
    title = name if not keys else f"{name} with {', '.join(f'{k} = {v}' for k, v in keys.items())}"
    return title, build(name, size, keys, "--set")


@contextlib.contextmanager
def progress(what: str) -> Iterator[Progress]:
    """Progress with remaining time on standard error."""
    with progress_on(console, what) as tick:
        yield tick


def wrote(path: Path) -> None:
    """Say where a result went."""
    typer.echo(f"wrote {path}")


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """A warning is one line on standard error, without the place in our code that it comes from."""

    def show(
        message: Warning | str, category: type[Warning], filename: str, lineno: int,
        file: TextIO | None = None, line: str | None = None,
    ) -> None:  # fmt: skip
        typer.echo(f"anisodiff: warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
