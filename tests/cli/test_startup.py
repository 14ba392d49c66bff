"""What answers at once: the version, help, typos and completion load no torch."""

import ast
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import anisodiff
from anisodiff.cli import names
from anisodiff.cli.main import VERBS
from anisodiff.data import NAMED
from anisodiff.registry import ELSEWHERE
from anisodiff.training.config import FIELDS
from anisodiff.training.recipes import RECIPES

HEAVY = ("torch", "numpy", "PIL", "matplotlib", "scipy")
PROGRAM = f"""
import sys
sys.argv[0] = "anisodiff"
from anisodiff.cli.main import run
try:
    run()
finally:
    print("loaded:", *(name for name in {HEAVY} if name in sys.modules))
"""


def answer(*words: str, **environment: str) -> subprocess.CompletedProcess:
    """Run the command in a new interpreter, which prints at the end which heavy packages it has loaded."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def test_the_package_loads_nothing_heavy_and_shows_the_public_names_alone():
    code = f"import sys, anisodiff; dir(anisodiff); print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
    assert dir(anisodiff) == sorted(anisodiff.__all__)
    assert {"load", "train", "edit", "evaluate", "process", "__version__"} < set(dir(anisodiff))
    for name in dir(anisodiff):
        assert getattr(anisodiff, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'tain'"):
        anisodiff.tain  # noqa: B018


def test_type_checkers_see_every_public_name_where_it_is_defined():
    tree = ast.parse(Path(anisodiff.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {(alias.asname, line.module) for line in block.body for alias in line.names}
    assert seen == {
        (name, f"anisodiff.{module}") for name, module in {**anisodiff._PUBLIC, **anisodiff._EXTRA}.items()
    }


def test_importing_the_package_leaves_the_environment_alone():
    code = "import os; before = dict(os.environ); import anisodiff; print(before == dict(os.environ))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"


ALL = f"""
import sys
from anisodiff.cli.main import run
for words in {[["--version"], ["--help"], *([verb, "--help"] for verb in VERBS)]}:
    sys.argv = ["anisodiff", *words]
    try:
        run()
    except SystemExit as stop:
        print("ended:", *words, stop.code, *(name for name in {HEAVY} if name in sys.modules))
"""


def test_version_and_help_load_nothing_heavy():
    """One after the other in one interpreter: the first that loads something is named, with all that follow."""
    done = subprocess.run([sys.executable, "-c", ALL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    words = ["--version", "--help", *(f"{verb} --help" for verb in VERBS)]
    told = re.split(r"^ended: (.*)\n", done.stdout, flags=re.MULTILINE)
    assert told[1::2] == [f"{each} 0" for each in words]
    assert all("anisodiff" in text for text in told[:-1:2])


@pytest.mark.parametrize("words", [(), ("data",)])
def test_without_a_command_the_help_is_printed_as_it_is(words):
    done = answer(*words)
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert lines[0].startswith("Usage: anisodiff")
    assert "Commands:" in lines


def test_a_typo_is_one_line_with_the_nearest_verb_and_loads_nothing_heavy():
    done = answer("trian")
    assert done.returncode == 2
    assert done.stderr == "anisodiff: unknown command 'trian'; did you mean 'train'?\n"
    assert done.stdout == "loaded:\n"
    assert "valid: demo, forward, diagnose" in answer("qqq").stderr


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("anisodiff tr", ["train"]),
        ("anisodiff data pre", ["prepare"]),
        ("anisodiff train cifar10-anisotropic-", [n for n in RECIPES if n.startswith("cifar10-anisotropic-")]),
        ("anisodiff forward --process h", ["heat", "heat-paper", "heat-dissipation"]),
        ("anisodiff data prepare im", ["imagenet"]),
        ("anisodiff trian x", []),
    ],
)
def test_the_shell_completes_verbs_recipes_and_processes(line, expected):
    last = str(len(line.split()) - 1)
    done = answer(_ANISODIFF_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=last)
    *found, loaded = done.stdout.split("\n")[:-1]
    assert sorted(filter(None, found)) == sorted(expected)
    assert loaded == "loaded:"


def test_names_that_are_listed_and_completed_are_all_there_are():
    assert set(names.RECIPES) == set(RECIPES)
    assert set(names.DATASETS) == set(NAMED)
    assert {key.partition(".")[0] for key in ELSEWHERE.values()} <= set(FIELDS)


def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise():
    """Set before torch is loaded, which reads it once."""
    program = PROGRAM + "    import os; print(os.environ['OMP_WAIT_POLICY'])"
    for given, expected in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        clean = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
        words = [sys.executable, "-c", program, "--version"]
        done = subprocess.run(words, capture_output=True, text=True, check=True, env=clean | given)
        assert done.stdout.splitlines()[-1] == expected


def test_help_answers_quickly():
    """0.2 s on an idle machine. CPU time, the best of three: other processes must not matter."""

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert answer("train", "--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.7
