"""The command line's entry: collects the verbs, and turns a user's mistake into one line and exit code 2."""

import sys

import typer

from anisodiff import __version__
from anisodiff.cli.compare import compare
from anisodiff.cli.data import app as data_app
from anisodiff.cli.demo import demo
from anisodiff.cli.diagnose import diagnose
from anisodiff.cli.edit import edit
from anisodiff.cli.evaluate import evaluate
from anisodiff.cli.forward import forward
from anisodiff.cli.sample import sample
from anisodiff.cli.sweep import sweep
from anisodiff.cli.train import train
from anisodiff.runtime.errors import in_one_line

app = typer.Typer(
    name="anisodiff",
    help="Anisotropic diffusion, both meanings: Perona-Malik processes as the forward process of a diffusion model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(forward)
app.command()(diagnose)
app.command()(train)
app.command()(sample)
app.command()(edit)
app.command()(evaluate)
app.command()(compare)
app.command()(sweep)
app.command()(demo)
app.add_typer(data_app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"anisodiff {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def run() -> None:
    """Run the command line; errors of the user are one line on standard error and exit code 2."""
    try:
        with in_one_line():
            app()
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        print("anisodiff: not enough memory; make --size, the batch or the number of images smaller", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("anisodiff: stopped", file=sys.stderr)
        sys.exit(130)
