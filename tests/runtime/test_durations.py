"""Durations as text: what was asked for reads back, a guess is short."""

import pytest

from anisodiff.runtime.durations import about, parse_span, span


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ("7", "7 s"),
        ("59.5s", "59.5 s"),
        ("60s", "1 min"),
        ("95s", "95 s"),
        ("119.9s", "119.9 s"),
        ("2min", "2 min"),
        ("1000s", "16.67 min"),
        ("60min", "1 h"),
        ("1.5h", "90 min"),
        ("119.5 min", "119.5 min"),
        ("2h", "2 h"),
        ("100h", "100 h"),
    ],
)
def test_a_budget_is_written_as_studies_keep_it(asked, written):
    """These words stand in the files of studies: were they written otherwise, a study would not go on."""
    assert span(parse_span(asked, "x")) == written
    assert parse_span(written, "x") == pytest.approx(parse_span(asked, "x"), rel=5e-4)


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.0, "0 s"),
        (0.0213, "0.021 s"),
        (3.04, "3 s"),
        (9.96, "10 s"),
        (58.4, "58 s"),
        (114.3, "114 s"),
        (130.0, "2.2 min"),
        (3599.0, "60 min"),
        (8000.0, "2.2 h"),
        (44280.0, "12 h"),
        (100_000.0, "28 h"),
        (277_344.0, "3.2 days"),
        (1e7, "116 days"),
    ],
)
def test_a_guess_is_two_digits_or_whole_units(seconds, written):
    assert about(seconds) == written
