"""Records: what is written reads back, what is malformed is one line, and what differs is said by name."""

import json

import pytest

import anisodiff
from anisodiff.io.records import RecordKind, differences, merged, read_json, write_json
from anisodiff.io.schema import anything, fields, table, text

KIND = RecordKind("anisodiff tests", 2, shape=fields(seeds=text, table=table(anything)))
VALUES = {"seeds": "0-3", "table": {"a": 1}, "size": (8, 8), "nested": {"x": 1, "y": None}}


def test_what_is_written_reads_back(tmp_path):
    record = KIND.new(VALUES)
    assert record["size"] == [8, 8]  # in the form in which it is read
    assert (record["format"], record["version"], record["anisodiff"]) == (
        "anisodiff tests", 2, anisodiff.__version__,
    )  # fmt: skip
    assert KIND.read(tmp_path / "deep" / "record.json") is None
    write_json(tmp_path / "deep" / "record.json", record)
    assert KIND.read(tmp_path / "deep" / "record.json") == record
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["record.json"]


def changed(**values) -> str:
    record = {**KIND.new(VALUES), **values}
    return json.dumps({key: value for key, value in record.items() if value != "gone"})


MALFORMED = [
    ("", "no valid JSON"),
    ('{"format":', "no valid JSON"),
    ("\udcff", "no valid JSON"),
    ("[" * 100_000, "no valid JSON"),
    ("[1, 2]", "expected keys and values, got list"),
    ("null", "expected keys and values, got NoneType"),
    ("{}", "is no record of tests: expected the format 'anisodiff tests'"),
    (changed(format="anisodiff edits"), "is no record of tests"),
    (changed(version=1), "has tests version 1, expected 2"),
    (changed(version="gone"), "has tests version None, expected 2"),
    (changed(seeds="gone"), "is damaged: seeds: got nothing, expected a value"),
    (changed(seeds=[0, 3]), "is damaged: seeds: got list, expected text"),
    (changed(table=None), "is damaged: table: got None, expected keys and values"),
]


@pytest.mark.parametrize(("text", "says"), MALFORMED, ids=range(len(MALFORMED)))
def test_anything_malformed_is_one_line_with_its_path(tmp_path, text, says):
    path = tmp_path / "record.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"record\.json") as caught:
        KIND.read(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_in_place_of_a_file_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*: Is a directory"):
        read_json(tmp_path)
    with pytest.raises(ValueError, match="it is a folder; give a file name"):
        write_json(tmp_path, {})


def test_differences_are_said_by_name():
    old = {"steps": 50, "sampler": "ode", "device": "cpu", "process": {"T": 2.0, "noise": {"a": 1}}}
    assert differences(old, old) == []
    assert differences(old, {**old, "steps": 25}) == ["steps was 50, now 25"]
    assert differences(old, {**old, "sampler": "heun", "steps": 25}) == [
        "steps was 50, now 25", "sampler was 'ode', now 'heun'",
    ]  # fmt: skip
    inner = {**old, "process": {"T": 2.0, "noise": {"a": 2}}}
    assert differences(old, inner) == ["process.noise.a was 1, now 2"]
    assert differences(old, inner, may_change=("process.noise",)) == []
    assert differences(old, inner, may_change=("process.noise.a",)) == []
    assert differences(old, inner, may_change=("noise", "a")) == ["process.noise.a was 1, now 2"]
    assert differences(old, {**old, "device": "cuda"}, may_change=("device",)) == []
    assert differences(old, {**old, "process": None}) == ["process was {'T': 2.0, 'noise': {'a': 1}}, now None"]


def test_a_key_of_one_record_alone_differs_unless_it_is_none():
    assert differences({}, {"mask": "x"}) == ["mask was None, now 'x'"]
    assert differences({"mask": "x"}, {}) == ["mask was 'x', now None"]
    assert differences({}, {"mask": None}) == []
    assert differences({"a": 1}, {"a": True, "b": 0}) == ["b was None, now 0"]


def test_long_values_are_cut():
    (line,) = differences({"code": "0" * 640}, {"code": "1" * 640})
    assert line.startswith("code was '000")
    assert line.endswith("111…")
    assert len(line) < 450
    one, other = (f"exponential(corrector=0, grid=level, rho=1, order={n}, wiener=0)" for n in (1, 2))
    assert differences({"sampler": one}, {"sampler": other}) == [f"sampler was {one!r}, now {other!r}"]


def test_hashes_are_shortened():
    assert differences({"checkpoint": "ab" * 32}, {"checkpoint": "cd" * 32}) == [
        "checkpoint was abababab…, now cdcdcdcd…"
    ]


def test_tables_grow_and_keep_their_entries():
    old, new = {"steps": 5, "pictures": {"a": 1, "b": 2}}, {"steps": 5, "pictures": {"b": 2, "c": 3}}
    assert differences(old, new) == ["pictures.a was 1, now None", "pictures.c was None, now 3"]
    assert differences(old, new, may_grow=("pictures",)) == []
    assert merged(old, new, ("pictures",)) == {"steps": 5, "pictures": {"a": 1, "b": 2, "c": 3}}
    assert merged(None, new, ("pictures",)) == new
    new["pictures"]["b"] = 4
    assert differences(old, new, may_grow=("pictures",)) == ["pictures.b was 2, now 4"]


def test_a_folder_is_new_empty_or_has_the_record(tmp_path):
    KIND.check_folder(tmp_path / "new", "record.json")
    KIND.check_folder(tmp_path, "record.json")
    (tmp_path / ".lock").touch()
    KIND.check_folder(tmp_path, "record.json")
    (tmp_path / "letter.txt").touch()
    with pytest.raises(ValueError, match=r"holds files that are not tests \(record.json is missing\)"):
        KIND.check_folder(tmp_path, "record.json")
    (tmp_path / "record.json").touch()
    KIND.check_folder(tmp_path, "record.json")
    with pytest.raises(ValueError, match=r"letter.txt is a file: choose another --out"):
        KIND.check_folder(tmp_path / "letter.txt", "record.json")
