from __future__ import annotations

from dataclasses import fields, replace

import pytest

from anisodiff.metrics import Generation, Protocol, Report, Value, comparison_table
from anisodiff.metrics.protocol import LABELS, WHICH_SAMPLES, Settings, few_samples_note

PROTOCOL = Protocol(
    samples="run-a",
    samples_fingerprint="a" * 64,
    samples_count=50_000,
    reference="cifar10",
    reference_split="train",
    reference_fingerprint="c" * 64,
    reference_count=50_000,
    size="32×32",
    network="inception-2015-12-05",
    weights="d" * 64,
    resize="tf1_bilinear 299, (x-128)/128",
    precision="float32, TF32 off, weights stored as float32",
    settings="k=5",
    nfe=35,
    prior="gaussian",
    seed=0,
    version="0.1.0",
    heldout_fingerprint="h" * 64,
    bits="at most 2000 images",
)
REPORT = Report(
    protocol=PROTOCOL,
    values=(Value(name="fid", value=2.5, error=0.1, note="n"), Value(name="kid", value=1e-3)),
)


def test_equal_protocols_compare_whatever_the_samples() -> None:
    other = replace(REPORT, protocol=replace(PROTOCOL, samples="run-b", samples_fingerprint="b" * 64, seed=7))
    lines = comparison_table([REPORT, other], ["a", "b"]).splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["|", "fid", "|", "2.5", "|", "2.5", "|"],
        ["|", "kid", "|", "0.001", "|", "0.001", "|"],
    ]


@pytest.mark.parametrize("field", [f.name for f in fields(Protocol) if f.name not in WHICH_SAMPLES | LABELS])
def test_any_other_difference_is_refused_named_and_can_be_forced(field: str) -> None:
    number = isinstance(getattr(PROTOCOL, field), int)
    changed = replace(PROTOCOL, **{field: 7 if number else "k=7" if field == "settings" else "other"})
    other = replace(REPORT, protocol=changed)
    with pytest.raises(ValueError, match=f"different protocols .{field}: .* ≠ .*; add --force"):
        comparison_table([REPORT, other], ["a", "b"])
    assert f"a against b: {field}: " in comparison_table([REPORT, other], ["a", "b"], force=True)


def test_what_a_reference_is_called_matters_only_if_its_pixels_differ() -> None:
    named = replace(PROTOCOL, reference="my-folder", reference_split="")
    assert PROTOCOL.differences(named) == ()
    assert comparison_table([REPORT, replace(REPORT, protocol=named)], ["a", "b"])
    other = replace(named, reference_fingerprint="e" * 64)
    found = [d.split(":")[0] for d in PROTOCOL.differences(other)]
    assert found == ["reference", "reference_split", "reference_fingerprint"]
    assert PROTOCOL.differences(other)[2] == f"reference_fingerprint: {'c' * 12} ≠ {'e' * 12}"
    assert PROTOCOL.differences(replace(PROTOCOL, prior=None)) == ("prior: gaussian ≠ unknown",)


def test_a_forced_comparison_says_what_it_passes_over() -> None:
    other = replace(REPORT, protocol=replace(PROTOCOL, nfe=70), values=REPORT.values[:1])
    with pytest.raises(ValueError, match="nfe: 35 ≠ 70"):
        comparison_table([REPORT, other], ["a", "b"])
    lines = comparison_table([REPORT, other], ["a", "b"], force=True).splitlines()
    assert lines[0].split("|")[1:4] == [" metric ", " a     ", " b   "]
    assert lines[2].split() == ["|", "fid", "|", "2.5", "|", "2.5", "|"]
    assert lines[3].split() == ["|", "kid", "|", "0.001", "|", "|"]
    assert lines[4] == "warning: protocols differ, a against b: nfe: 35 ≠ 70"
    assert "warning" not in comparison_table([REPORT, REPORT], ["a", "a"])


def test_json_round_trip_and_damage() -> None:
    assert Report.from_json(REPORT.to_json()) == REPORT
    for text in ("{", "[]", "{}", REPORT.to_json().replace('"prior"', '"priors"')):
        with pytest.raises(ValueError, match="not a report of this version"):
            Report.from_json(text)


def test_table_and_line_carry_everything() -> None:
    table = REPORT.table()
    assert table.splitlines()[:3] == [
        "| metric | value | error | note |",
        "|--------|-------|-------|------|",
        "| fid    | 2.5   | ± 0.1 | n    |",
    ]
    for part in ("50000 samples of run-a", "cifar10/train", "inception-2015-12-05 (dddddddd)", "tf1_bilinear 299"):
        assert part in table
    for part in ("NFE 35", "prior gaussian", "seed 0", "anisodiff 0.1.0", "TF32 off"):
        assert part in table
    unknown = replace(PROTOCOL, nfe=None, prior=None, seed=None).line()
    assert "NFE unknown, prior unknown, seed unknown" in unknown


def test_a_report_is_shown_as_its_table() -> None:
    assert str(REPORT) == repr(REPORT) == REPORT.table()


def test_the_protocol_has_the_settings_of_the_metrics_that_were_measured() -> None:
    settings = Settings(seed=3)
    assert settings.describe(["spectrum", "edges", "class-fid"]) == ""
    assert settings.describe(["edges", "kid"]) == "KID blocks of 1000, seed 3"
    assert settings.describe(["prdc", "fid"]) == "k=5, PRDC on at most 10000, 10 FID blocks, seed 3"
    every = ("prdc", "kid", "fid", "is", "sliced", "memorization")
    assert settings.describe(every) == settings.describe()
    assert all(part in settings.describe() for name in every for part in settings.describe([name]).split(", "))


def test_settings_are_compared_where_both_reports_have_them() -> None:
    whole, kid, other = (
        replace(PROTOCOL, settings=settings.describe(metrics))
        for settings, metrics in ((Settings(), None), (Settings(), ["kid"]), (Settings(kid_block=50), ["kid", "fid"]))
    )
    assert whole.differences(kid) == kid.differences(whole) == ()
    assert whole.differences(replace(whole, settings="")) == ()
    (line,) = kid.differences(other)
    assert line == "settings: KID blocks of 1000, seed 0 ≠ KID blocks of 50, seed 0"


def test_small_things() -> None:
    assert REPORT["kid"].value == 1e-3
    with pytest.raises(KeyError, match="no is in this report; it has fid, kid"):
        REPORT["is"]
    assert few_samples_note(9_999, 10_000).startswith("warning: 9999 < 10,000 samples: noisy")
    assert few_samples_note(10_000, 10_000) == ""
    both = "warning: 9 < 10,000 samples and 8 < 10,000 reference images: noisy and, except KID, biased"
    assert few_samples_note(9, 8) == both
    with pytest.raises(ValueError, match="nfe: got 0, expected a whole number, 1 or more"):
        Generation(nfe=0)
