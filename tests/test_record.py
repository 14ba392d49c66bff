"""The record of what the package computes (tests/support/record.py), within what another processor may round.

`python -m tests.support.record check` compares bits, on the machine that wrote the record. With other kernels (oneDNN
off) all bits differ: losses by 2e-7 in ten steps and 6e-5 in fifty, relative; means and standard deviations of images
by 2e-6. The tolerances are hundreds of times that.
"""

import json
import math

import pytest

from tests.support import record

KNOWN = json.loads(record.RECORD.read_text(encoding="utf-8"))
STEPS = 10
FULL = ("heat", "heat-dissipation")
"""With all their steps and samplers; of the others the first steps, of two slow ones nothing."""
FIRST = sorted(record.METHODS.keys() - {*FULL, "windows", "paper"})


def test_every_method_and_sampler_is_recorded():
    assert KNOWN["losses"].keys() == record.METHODS.keys()
    assert all(len(losses) == record.STEPS for losses in KNOWN["losses"].values())
    assert list(KNOWN["samples"]) == [f"{name} {text}" for name in record.METHODS for text in record.SAMPLERS[name]]
    assert KNOWN["evaluate"]
    assert KNOWN["compare"]


@pytest.mark.parametrize("name", FIRST)
def test_first_losses(name, tmp_path):
    assert record.losses(tmp_path, name, STEPS) == pytest.approx(KNOWN["losses"][name][:STEPS], rel=2e-4)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A record of `FULL`, written here."""
    path = tmp_path_factory.mktemp("record") / "record.json"
    assert record.main("write", *FULL, record=path) == 0
    return path


def test_losses_and_samples(written):
    """Between the samples of one sampler, means and standard deviations have a spread of 0.01 to 0.02."""
    found, known = json.loads(written.read_text()), record.part_of(KNOWN, FULL)
    assert {part: list(found[part]) for part in known} == {part: list(known[part]) for part in known}
    for name, losses in found["losses"].items():
        assert losses[:STEPS] == pytest.approx(known["losses"][name][:STEPS], rel=2e-4)
        assert losses == pytest.approx(known["losses"][name], rel=2e-2)
    for name, images in found["samples"].items():
        for number in ("mean", "std"):
            assert images[number] == pytest.approx(known["samples"][name][number], abs=2e-3), name


def test_tables(tmp_path):
    """With other kernels these numbers move by 1e-4."""
    losses = record.losses(tmp_path, "ve")
    assert losses == pytest.approx(KNOWN["losses"]["ve"], rel=2e-2)
    for name, numbers in record.tables(tmp_path).items():
        assert numbers == pytest.approx(KNOWN[name], rel=2e-2, abs=1e-6), name


def test_check_compares_bits(written, capsys):
    """One loss is off by its last bit; the samples are made anew and equal."""
    changed = json.loads(written.read_text())
    losses = changed["losses"]["heat-dissipation"]
    losses[7] = math.nextafter(losses[7], math.inf)
    other = written.with_name("changed.json")
    other.write_text(json.dumps(changed))
    assert record.main("check", "heat-dissipation", record=other) == 1
    assert capsys.readouterr().out.endswith("differs: losses: heat-dissipation\n1 equal, 1 different\n")
