"""The entry of the command line: one table of verbs. A verb's module is imported when the verb runs."""

import difflib
import importlib
import io
import itertools
import os
import re
import sys
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from anisodiff.cli.names import LIST_OF_PROCESSES, LIST_OF_RECIPES, VALUE_OF
from anisodiff.notation import nearest
from anisodiff.registry import ELSEWHERE
from anisodiff.runtime.errors import in_one_line
from anisodiff.version import __version__

_NO_NUMBER = re.compile(r"Input should be (?P<what>[^,]*)|'(?P<given>[^']*)' is not a valid (?P<kind>int|float)")
_OUT_OF_RANGE = re.compile(
    r"(?P<given>\S+) is not in the range (?:(?P<low>[^<>]+)<=)?x(?:>=(?P<least>[^<>]+))?(?:<=.*)?\."
)
_EXTRA = re.compile(r"unexpected extra argument\S* \((?P<given>.*)\)")
UsageError: Any = typer.BadParameter.__base__  # of the click that typer uses, its own or the installed one


class Verb(NamedTuple):
    """Where a verb is defined (``module:function`` in this package), its line in the help, and the help's end."""

    target: str
    help: str
    epilog: str | None = None


VERBS = {
    "demo": Verb("demo:demo", "Run the forward processes and the shipped model once."),
    "forward": Verb("forward:forward", "Draw the trajectory of a forward process.", LIST_OF_PROCESSES),
    "diagnose": Verb("diagnose:diagnose", "Measure how much of an image U_T retains.", LIST_OF_PROCESSES),
    "data": Verb("data:app", "Prepare images for training."),
    "autoencoder": Verb("autoencoder:app", "Train an autoencoder for --latent, or measure one."),
    "train": Verb("train:train", "Train a model, or resume its training.", LIST_OF_RECIPES),
    "sample": Verb("sample:sample", "Generate images with a trained model."),
    "edit": Verb("edit:edit", "Edit, restore, or paint images from strokes."),
    "solve": Verb("solve:solve", "Inpaint, enlarge, deblur, or colorize images."),
    "evaluate": Verb("evaluate:evaluate", "Compute FID and other metrics of samples."),
    "share": Verb("share:share", "Write a model with its card, or push it to the Hub."),
    "studio": Verb("studio:studio", "Open the local web page: design, generate, paint, watch."),
    "compare": Verb("compare:compare", "Train and compare several methods on one page.", LIST_OF_RECIPES),
    "sweep": Verb("sweep:sweep", "Train one method with many values of its settings.", LIST_OF_RECIPES),
}


def load(name: str) -> Any:
    """Import a verb's module and build its command."""
    verb = VERBS[name]
    module, _, attribute = verb.target.partition(":")
    found = getattr(importlib.import_module(f"anisodiff.cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name, epilog=verb.epilog)(found)
        found = app
    command = typer.main.get_command(found)
    command.name = name
    for one in (command, *getattr(command, "commands", {}).values()):
        _name_values(one)
    return command


def _name_values(command: Any) -> None:
    """Let the help say what a value is: typer shows the type in Python, and a required argument in braces."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: ""
            parameter.metavar = parameter.metavar or parameter.name.upper()
            word = parameter.metavar + "..." * (parameter.nargs != 1)
            usage = [word if parameter.required else f"[{word}]"]
            parameter.get_usage_pieces = lambda ctx, usage=usage: usage
        elif parameter.metavar is None:
            word = next(option for option in parameter.opts if option.startswith("--"))
            parameter.metavar = VALUE_OF.get(word, word[2:].upper())


def _check_values(command: Any, words: list[str]) -> None:
    """Refuse an option whose value is the next option: click would make a folder of the name ``--steps``."""
    commands = getattr(command, "commands", {})
    if words and words[0] in commands:
        command, words = commands[words[0]], words[1:]
    own = [one for one in command.params if one.param_type_name == "option"]
    options = {word: not one.is_flag for one in own for word in one.opts}
    for option, value in itertools.pairwise(words):
        if option == "--":
            break
        if options.get(option) and ((value.startswith("--") and len(value) > 2) or value in (*options, "-h")):
            raise ValueError(f"{option} needs a value, but the next word is the option {value}")


class Verbs(TyperGroup):
    """The group of all verbs: its help needs their lines alone."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, verb in VERBS.items():
            self.add_command(TyperCommand(name, help=verb.help))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an interrupt that it has not answered itself is named."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # typer would end in silence
            print("anisodiff: stopped", file=sys.stderr)
            raise typer.Exit(130) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that runs, and its arguments."""
        name = args[0]
        if name in VERBS:
            command = load(name)
            if not ctx.resilient_parsing:  # shell completion
                _check_values(command, args[1:])
            return name, command, args[1:]
        if ctx.resilient_parsing:  # shell completion
            return None, None, args[1:]
        raise ValueError(f"unknown command {name!r}; {nearest(name, VERBS)}")


app = typer.Typer(
    name="anisodiff",
    help="Diffusion models whose forward process is Perona-Malik anisotropic diffusion plus noise.",
    cls=Verbs,
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"anisodiff {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def _unknown_option(error: Any) -> str:
    """The line for an option that does not exist: the nearest one, or the key of --set; empty for other errors."""
    given, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if type(error).__name__ != "NoSuchOption" or given is None or context is None:
        return ""
    options = [word for option in context.command.params for word in option.opts if word.startswith("--")]
    known = {_letters(word): word for word in ("--help", *options)}
    settings = _settings(context.command_path.partition(" ")[2])
    known = {_letters(word): known.get(key, f"--set {key}=…") for word, key in settings.items()} | known
    close = difflib.get_close_matches(_letters(given), known, n=1)
    remedy = f"did you mean {known[close[0]]!r}?" if close else f"see {context.command_path} --help"
    return f"unknown option {given!r}; {remedy}"


def _settings(command: str) -> dict[str, str]:
    """The keys of the command's --set, by all their names."""
    if command not in ("train", "compare", "sweep", "autoencoder train"):
        return {}
    from anisodiff.training.autoencoder import AutoencoderConfig
    from anisodiff.training.config import FIELDS

    keys = FIELDS if command != "autoencoder train" else (*AutoencoderConfig.__dataclass_fields__, "size")
    others = {word: key for word, key in ELSEWHERE.items() if key.partition(".")[0] in keys}
    return {key: key for key in keys} | others


def _reworded(error: Any) -> str:
    """The line for any other error; pydantic or click found it."""
    text = str(error.format_message())
    if extra := _EXTRA.search(text):
        return f"unexpected argument {extra['given']!r}; see {error.ctx.command_path} --help"
    if found := _OUT_OF_RANGE.search(text):  # of click, which typer used before pydantic
        low, high = found["low"] or found["least"], text.rpartition("x<=")[2].rstrip(".")
        small = low is not None and float(found["given"]) < float(low)
        expected = f"a number {'greater' if small else 'less'} than or equal to {low if small else high}"
        return f"{text[: found.start()]}got {found['given']!r}, expected {expected}"
    if (found := _NO_NUMBER.search(text)) is None:
        return text
    given = found["given"] or error.__cause__.errors()[0]["input"]
    what = found["what"] or {"int": "a valid integer", "float": "a valid number"}[found["kind"]]
    expected = {"a valid integer": "a whole number", "a valid number": "a number"}.get(what, f"a number {what}")
    return f"{text[: found.start()]}got {given!r}, expected {expected}"


def _letters(word: str) -> str:
    return word.replace("-", "").replace("_", "").lower()


def run() -> None:
    """Run the command line; errors of the user are one line on standard error and exit code 2."""
    # Threads of a convolution should sleep while they wait for each other. OpenMP lets them spin by default: a step
    # takes thirty times as long as soon as another process keeps a core busy. Read once, when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):  # a terminal without σ, a path that is no UTF-8: shown as \\u03c3
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with in_one_line():
            sys.exit(app(prog_name="anisodiff", standalone_mode=False))
    except UsageError as error:  # an option that does not exist, a value out of its range
        text = _unknown_option(error) or _reworded(error)
        if type(error).__name__ == "NoArgsIsHelpError":  # the message is the help
            print(text, file=sys.stderr)
        elif text:
            print(f"anisodiff: {' '.join(text.split())}", file=sys.stderr)
        sys.exit(2)
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        print("anisodiff: not enough memory; make --size, the batch or the number of images smaller", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("anisodiff: stopped", file=sys.stderr)
        sys.exit(130)
