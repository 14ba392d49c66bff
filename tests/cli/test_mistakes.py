"""Mistakes that the parser of the command line meets, and what a newcomer reads at 80 columns."""

import numpy as np
import pytest

from anisodiff.cli.main import VERBS
from anisodiff.data import prepare
from tests.training.conftest import pixels


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("forward", "--size", "0"), "'--size': got '0', expected a number greater than or equal to 3"),
        (("forward", "--size", "many"), "'--size': got 'many', expected a whole number"),
        (("sample", "run", "--guidance", "high"), "'--guidance': got 'high', expected a number"),
        (("forward", "--seed", "-1"), "'--seed'"),
        (("forward", "--size"), "--size"),
        (("sample",), "Missing argument 'CHECKPOINT'"),
        (("sample", "--hlep"), "--help"),
        (("demo", "more"), "unexpected argument 'more'; see anisodiff demo --help"),
        (("data", "qqq"), "No such command 'qqq'"),
        (("diagnose", "photos", "--json", "folder"), "unexpected argument 'folder'"),
        (("--qqq",), "unknown option '--qqq'; see anisodiff --help"),
        (("train", "--batchsize", "4"), "unknown option '--batchsize'; did you mean '--set batch=…'?"),
        (("train", "--learning-rate=1"), "did you mean '--set lr=…'?"),
        (("compare", "--lr", "1"), "did you mean '--set lr=…'?"),
        (("train", "--epochs", "1"), "did you mean '--images'?"),
        (("autoencoder", "train", "--beta", "1"), "did you mean '--set beta=…'?"),
        (("autoencoder", "train", "--learning-rate", "1"), "did you mean '--set lr=…'?"),
        (("autoencoder", "train", "--resolution", "8"), "did you mean '--size'?"),
        (("autoencoder", "train", "--flip", "no"), "see anisodiff autoencoder train --help"),
        (("train", "--data", "photos", "-o", "run.zip"), "--out: got run.zip, expected a folder"),
        (("data", "prepare", "photos", "--output", "p.PNG"), "--out: got p.PNG, expected a folder"),
        (("sample", "--batch-size", "4"), "did you mean '--batch'?"),
        (("data", "prepare", "--sise", "4"), "did you mean '--size'?"),
        (("forward", "--qqq"), "see anisodiff forward --help"),
        (("demo", "-o", "--steps", "4"), "-o needs a value, but the next word is the option --steps"),
        (("data", "prepare", "photos", "--output", "--size", "8"), "--output needs a value, but the next word is"),
        (
            ("evaluate", "samples", "-r", "samples", "--network", "none"),
            "cannot read samples (No such file or directory)",
        ),
        (("demo", "-o", "-h"), "-o needs a value, but the next word is the option -h"),
        (("sample", "run", "--n", "-o", "out"), "--n needs a value, but the next word is the option -o"),
    ],
)
def test_what_cannot_be_parsed_is_one_line(refused, words, line):
    assert refused(*words, says=line) == ""


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("train", "ve", "--data", "data", "--set", "qqq=1"), "'anisodiff train --dry-run' prints all keys"),
        (("train", "ve", "--data", "data", "--set", "process.qqq=1"), "diffusivity, "),
        (("train", "ve", "--data", "data", "--set", "warmup=1"), "did you mean 'warm_up'?"),
        (("train", "ve", "--data", "data", "--set", "alpha1=1"), "did you mean 'process.diffusivity'?"),
        (("train", "ve", "--data", "data", "--set", "process.λ2=1"), "did you mean 'noise_anisotropy'?"),
        (("train", "ve", "--data", "data", "--set", "network=smal"), "unknown 'smal'; did you mean 'small'?"),
        (("train", "ve", "--data", "data", "--set", "network=qqq"), ", or MODULE:CLASS of your own"),
        (("train", "ve", "--data", "data", "--images", "1e5"), "'--images': got '1e5', expected a whole number"),
        (("forward", "--set", "α1=3"), "unknown key 'α1'; did you mean 'diffusivity'?"),
        (("forward", "--set", "qqq=3"), "condition, sigma_min, sigma_max, smoothing, sigma_end"),
        (("train", "qqq"), "valid: cifar10"),
        (("compare", "qqq"), "valid: cifar10"),
        (("forward", "--process", "qqq"), "ve, cartoon, heat, "),
    ],
)
def test_an_unknown_word_gets_a_hint_in_200_characters(command, words, hint):

    np.save("raw.npy", pixels())
    prepare("raw.npy", "data", size=16, channels=1)
    code, _, err = command(*words)
    assert code == 2
    last = err.splitlines()[-1]
    assert hint in last
    assert len(last) <= 200


def test_a_group_alone_shows_its_help(command):
    for words in ((), ("data",)):
        code, out, err = command(*words)
        assert code == 2
        assert "Usage:" in out + err
        assert "Commands:" in out + err


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_80_columns_without_cut_words(command, monkeypatch, verb):
    """Descriptions have room beside the options: no more than two lines for most of them."""
    monkeypatch.setenv("COLUMNS", "80")
    words = ("data", "prepare") if verb == "data" else (verb,)
    code, out, _ = command(*words, "--help")
    lines = out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    assert "…-" not in out
    options = [line for line in lines if line.startswith("  -")]
    assert len(lines) < 3 * len(options) + 30
