"""Runs, pages and results: what is listed, what grows, what a request cannot reach; a training from start to end."""

import json
import time

import httpx
import numpy as np
import pytest

import anisodiff
from anisodiff.studio.pages import blocks_of, curves_of
from tests.studio.conftest import CLIENT, SMALL, page
from tests.studio.test_work import GREEN, as_bytes, pixels


def wait(until, words=lambda: "", seconds=120):
    begin = time.monotonic()
    while not until():
        assert time.monotonic() - begin < seconds, words()
        time.sleep(0.1)


def listed(studio, name):
    return next((one for one in studio.get("/api/runs").json()["runs"] if one["name"] == name), None)


def test_a_page_becomes_blocks(tmp_path):
    path = page(tmp_path)
    kinds = [block["kind"] for block in blocks_of(path)]
    assert kinds == ["heading", "paragraph", "table", "figure", "code", "list"]
    found = {block["kind"]: block for block in blocks_of(path)}
    assert found["table"] == {"kind": "table", "head": ["run", "FID"], "rows": [["ve", "20.5"], ["heat", "31"]]}
    assert found["list"]["items"] == ["a note of two lines"]
    assert found["paragraph"]["text"] == "Two runs, <b>not bold</b>, **bold**."
    (curve,) = curves_of(path)
    assert curve["lines"][0] == {"name": "ve", "points": [[10, 41.0], [50, 20.5]]}


def test_numbers_of_another_shape_give_no_curves(tmp_path):
    path = page(tmp_path)
    for text in ("{}", '{"curves": 1}', '{"curves": [{"title": 1}]}'):
        path.with_suffix(".json").write_text(text)
        assert curves_of(path) == []


def test_results_and_studies_are_served_and_nothing_else(studio):
    assert [p["page"] for p in studio.get("/api/results").json()["pages"]] == ["README.md", "a/page.md"]
    assert studio.get("/api/runs").json()["studies"] == ["study/page.md"]
    shown = studio.get("/api/page", where="runs", page="study/page.md").json()
    assert shown["curves"][0]["title"] == "FID over NFE, prior gaussian"
    figure = studio.get("/api/page/figure", where="runs", page="study/page.md", source="figures/sheets.png")
    assert figure.headers["content-type"] == "image/png"
    for place in ("../secret.txt", "secret.txt", "/etc/passwd", "", "a/../README.md"):
        assert studio.get("/api/page", where="results", page=place).status_code == 400
        assert studio.get("/api/page/figure", where="runs", page="study/page.md", source=place).status_code == 400


def test_a_figure_that_a_page_names_outside_of_the_folder_is_refused(studio):
    path = studio.runs / "study" / "results" / "page.md"
    held = path.read_text()
    (studio.runs.parent / "outside.png").write_bytes(b"\x89PNG")
    try:
        path.write_text(held + "\n![x](../../../outside.png)\n")
        answer = studio.get("/api/page/figure", where="runs", page="study/page.md", source="../../../outside.png")
        assert answer.status_code == 400
    finally:
        path.write_text(held)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"name": "../x"}, "letters, digits"), ({"name": ""}, "letters, digits"), ({"data": "/etc"}, "no images"),
        ({"data": "../"}, "no images"),
        ({"process": "x"}, "unknown process"), ({"name": "photos"}, "exists already"),
        *(({"keys": {key: "evil:Net"}}, "expected cifar10, ") for key in ("network", "network.name")),
        ({"keys": {"network": "{name: evil:Net}"}}, "expected cifar10, "),
        *(({"keys": {key: "x"}}, "unknown setting") for key in (
            "network=evil:Net", "network.name=evil:Net", " network", "latent", "latent.autoencoder", "dataset")),
    ],
)  # fmt: skip
def test_a_training_is_started_in_the_folder_alone(studio, change, says):
    body = {"name": "new", "data": "photos", "process": "ve", **change}
    answer = studio.post("/api/run/start", body)
    assert answer.status_code == 400, body
    assert says in answer.json()["message"]
    for what in ("stop", "resume"):
        assert studio.post(f"/api/run/{what}", {"name": "../photos"}).status_code == 400
    assert studio.get("/api/run/sample", name="photos", file="000.png").status_code == 400


def test_a_training_starts_grows_stops_resumes_and_can_be_sampled(studio):
    keys = {**SMALL, "classes": "auto"}
    body = {"name": "first", "data": "kinds", "process": "heat", "keys": keys, "images": 10**9}
    assert studio.post("/api/run/start", body).status_code == 200
    again = studio.post("/api/run/start", {**body, "name": "second"})
    assert "one training at a time" in again.json()["message"]
    wait(lambda: (listed(studio, "first") or {}).get("checkpoint"), lambda: studio.get("/api/runs").text)
    assert listed(studio, "first")["state"] == "training"
    seen = []
    with httpx.stream(
        "GET", studio.address + "/api/run", params={"name": "first"}, headers=CLIENT, timeout=60
    ) as answer:
        for line in answer.iter_lines():
            seen.append(json.loads(line))
            if len(seen) == 2:
                break
    assert seen[1]["images"] > seen[0]["images"]  # it grows while it is watched
    assert len(seen[1]["log"][-1]["loss_by_level"]) == len(seen[1]["log"][-1]["level_edges"]) + 1
    assert studio.post("/api/run/stop", {"name": "first"}).status_code == 200
    wait(lambda: listed(studio, "first")["state"] == "stopped")
    before = listed(studio, "first")["step"]
    facts = studio.get("/api/model", name="first").json()
    assert facts["classes"] == ["dawn", "noon"]
    assert facts["priors"] == ["auto", "gaussian", "simulate", "conditional"]
    asked = {"model": "first", "n": 2, "steps": 3, "classes": "all", "guidance": 1.5, "prior": "simulate"}
    events = studio.events("/api/generate", asked)
    made = [e for e in events if e["kind"] == "image"]
    assert [e["name"] for e in made] == ["dawn", "noon"]
    (protocol,) = (e for e in events if e["kind"] == "protocol")
    assert "--class all --guidance 1.5" in protocol["command"]
    for event, image in zip(made, eval(protocol["python"], {"anisodiff": anisodiff}), strict=True):
        assert np.abs(pixels(event["image"]).astype(int) - as_bytes(image)).max() <= 1
    strength = sum(facts["strengths"]) / 2
    painted = {"model": "first", "painting": GREEN, "strength": strength, "n": 1, "steps": 3, "classes": "noon"}
    events = studio.events("/api/edit", painted)
    assert [e["name"] for e in events if e["kind"] == "image"] == ["noon"]
    assert studio.post("/api/run/resume", {"name": "first"}).status_code == 200
    wait(lambda: (listed(studio, "first")["step"] or 0) > before)
    studio.post("/api/run/stop", {"name": "first"})
    wait(lambda: listed(studio, "first")["state"] == "stopped")
    assert studio.get("/api/run/sample", name="first", file="../config.yaml").status_code == 400


def test_a_training_that_cannot_start_says_why(studio):
    body = {"name": "wrong", "data": "photos", "process": "heat", "keys": {"batch": "many"}}
    assert studio.post("/api/run/start", body).status_code == 200

    def mine():
        return next(one for one in studio.get("/api/runs").json()["starting"] if one["name"] == "wrong")

    wait(lambda: mine()["state"] == "failed")
    assert "batch" in mine()["lines"][-1]
