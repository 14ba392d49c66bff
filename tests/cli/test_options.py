"""Every option of every verb: its help, and how the place of the result is spelled."""

import re

import pytest

from anisodiff.cli.main import VERBS, app, load

PLACES = {"--out", "--output", "-o"}


def commands(name: str) -> list:
    """The command of a verb, or those of its group."""
    found = load(name)
    return [*getattr(found, "commands", {}).values()] or [found]


@pytest.mark.parametrize("name", VERBS)
def test_every_option_has_a_short_help_and_so_has_the_verb(name):
    assert len(VERBS[name].help) <= 60
    assert VERBS[name].help.endswith(".")
    for command in commands(name):
        assert command.help
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}: no help"
            assert len(parameter.help) <= 60, f"{name} {parameter.name}: {len(parameter.help)} characters"
            assert parameter.help[0].isupper() or parameter.help.startswith("auto: "), parameter.help
            assert parameter.help.endswith("."), parameter.help


@pytest.mark.parametrize("name", VERBS)
def test_the_place_of_the_result_is_one_option_with_three_spellings(name):
    for command in commands(name):
        for parameter in command.params:
            assert not PLACES & set(parameter.opts) or set(parameter.opts) >= PLACES, (name, parameter.opts)


def test_the_verbs_that_write_one_result_say_where():
    for name in set(VERBS) - {"evaluate", "studio"}:  # several results, each with its own option; and none
        for command in commands(name):
            assert any(set(parameter.opts) >= PLACES for parameter in command.params), name


def test_the_entry_has_every_verb_once():
    assert [command.name for command in map(load, VERBS)] == list(VERBS)
    assert app.info.help


def test_help_of_every_verb_has_an_example(command):
    for verb in VERBS:
        for one in commands(verb):
            words = (verb,) if one.name == verb else (verb, one.name)
            code, out, _ = command(*words, "--help")
            assert code == 0
            assert f"anisodiff {' '.join(words)}" in out
            assert not re.search(r"<[a-zA-Z]", out), out  # a type of Python
            assert "Example" in out
            assert out == command(*words, "-h")[1]
            usage = out.partition("\n\n")[0]
            assert not re.search(r"[{}…]|\[\[", usage), usage  # of typer
