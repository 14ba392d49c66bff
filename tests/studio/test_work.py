"""Generating, strokes and edits through the server: reproducible, cancelled in every phase, refused in one line."""

import base64
import io
import json
import threading
import time

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

import anisodiff
from anisodiff.editing import edit, noised, strength_range
from anisodiff.generation import SamplingStep
from anisodiff.studio.generate import expectation
from anisodiff.studio.pictures import LARGEST_FILE, Pictures, png
from tests.studio.conftest import CLIENT

GREEN = png(np.full((64, 64, 3), (60, 125, 44), np.uint8))


@pytest.fixture(scope="module")
def model():
    return anisodiff.load("cifar10-tiny", device="cpu")


def pixels(address: str) -> np.ndarray:
    with Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))) as image:
        return np.array(image)


def as_bytes(image: torch.Tensor) -> np.ndarray:
    return (image.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()


def png_of(width: int, height: int, **keys) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(buffer, "PNG", **keys)
    return buffer.getvalue()


def test_images_are_those_of_their_seeds_and_their_way_is_shown(studio, model):
    body = {"model": "cifar10-tiny", "seed": 7, "n": 2, "steps": 6}
    events = studio.events("/api/generate", body)
    made = {e["seed"]: pixels(e["image"]) for e in events if e["kind"] == "image"}
    expected = model.sample(2, seed=7, steps=6, progress=False)
    for seed, image in zip((7, 8), expected):
        assert np.abs(made[seed].astype(int) - as_bytes(image)).max() <= 1
    (protocol,) = (e for e in events if e["kind"] == "protocol")
    assert protocol["command"] == "anisodiff sample cifar10-tiny --seeds 7-8 --steps 6 --out samples.png"
    assert torch.equal(eval(protocol["python"], {"anisodiff": anisodiff}), expected)
    step = next(e for e in events if e["kind"] == "step")
    assert pixels(step["states"]).shape == pixels(step["expected"]).shape == (32, 64, 3)


def test_the_expected_image_is_that_of_the_model(model):
    seen: list[SamplingStep] = []
    images = model.sample(1, seed=0, steps=6, progress=False, callback=seen.append)
    last = seen[-2]  # the sampler ends with E[x0 | state]
    found = expectation(model, last, model.reverse_process(steps=6)).clamp(0, 1)
    assert torch.allclose(found, images.as_subclass(torch.Tensor), atol=1e-4)


def test_an_edit_is_that_of_the_package_and_starts_from_what_was_shown(studio, model):
    painting = torch.full((3, 32, 32), 0.0) + torch.tensor([60, 125, 44])[:, None, None] / 255
    events = studio.events(
        "/api/edit", {"model": "cifar10-tiny", "painting": GREEN, "strength": 0.5, "n": 2, "steps": 6, "seed": 3}
    )
    made = [pixels(e["image"]) for e in events if e["kind"] == "image"]
    several = painting.expand(2, 3, 32, 32)
    for got, image in zip(made, edit(model, several, seeds=[3, 4], strength=0.5, steps=6)):
        assert np.abs(got.astype(int) - as_bytes(image)).max() <= 1
    begun: list[SamplingStep] = []
    edit(model, several, seeds=[3, 4], strength=0.5, steps=6, callback=begun.append)
    assert torch.allclose(begun[0].state, noised(model, several, seeds=[3, 4], strength=0.5), atol=1e-6)
    (shown,) = (
        e
        for e in studio.events("/api/noised", {"model": "cifar10-tiny", "painting": GREEN, "strength": 0.5})
        if e["kind"] == "noised"
    )
    assert shown["level"] == pytest.approx(1.0)


def test_outside_a_mask_the_painting_stays(studio):
    mask = np.zeros((64, 64, 4), np.uint8)
    mask[:32] = 255
    body = {"model": "cifar10-tiny", "painting": GREEN, "mask": png(mask), "strength": 0.6, "n": 1, "steps": 5}
    *_, last = (e for e in studio.events("/api/edit", body) if e["kind"] == "image")
    got = pixels(last["image"])
    assert (got[16:] == (60, 125, 44)).all()
    assert not (got[:16] == (60, 125, 44)).all()


def test_strokes_by_kmeans_and_by_a_cartoon(studio):
    painted = {}
    for way in ("kmeans", "cartoon", "photo"):
        body = {"model": "cifar10-tiny", "picture": "photograph", "way": way, "colors": 5, "edge": 0.02, "amount": 20}
        painted[way] = pixels(studio.events("/api/strokes", body)[-2]["image"])
    assert len(np.unique(painted["kmeans"].reshape(-1, 3), axis=0)) == 5
    rough = [np.abs(np.diff(p.astype(float), axis=0)).mean() for p in (painted["cartoon"], painted["photo"])]
    assert rough[0] < 0.8 * rough[1]
    assert np.abs(painted["cartoon"].mean() - painted["photo"].mean()) < 1  # smoothing keeps the mean


def test_facts_of_a_model(studio, model):
    facts = studio.get("/api/model", name="cifar10-tiny").json()
    assert facts["size"] == [32, 32]
    assert facts["strengths"] == pytest.approx(list(strength_range(model)))
    assert {"auto", "exponential", "ode"} <= set(facts["samplers"])
    assert facts["classes"] == []
    assert facts["priors"] == ["auto", "gaussian"]  # it has no images to start from
    for name in ("../x", "/etc", "", "cifar10-tin"):
        answer = studio.get("/api/model", name=name)
        assert answer.status_code == 400
        assert "no model" in answer.json()["message"]


def bomb() -> bytes:
    """A PNG whose header says 30,000 × 30,000 pixels."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"this is text", "not an image"), (b"", "not an image"), (bomb(), "megapixels"),
        (png_of(1, 1), "expected 3×3"),
        (png_of(40, 40)[:80], "cannot be used"), (b"<svg onload=alert(1)>", "not an image"),
        (b"x" * (LARGEST_FILE + 1), "at most 16 MB"),
        (png_of(7000, 6000), "expected 3×3 to 40,000,000"),
    ],
    ids=["text", "empty", "bomb", "dot", "cut", "svg", "bytes", "pixels"],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_one_line(studio, data, says):
    answer = studio.post("/api/pictures", data=data)
    assert answer.status_code == 400
    assert says in answer.json()["message"]
    assert "\n" not in answer.json()["message"]


def test_a_picture_is_sent_once_and_known_by_its_code(studio):
    sent = studio.post("/api/pictures", data=png_of(50, 30)).json()
    assert sent["words"] == "30×50 pixels, its center square is used"
    assert (
        studio.events("/api/design", {"a": {"preset": "ve"}, "picture": sent["picture"], "size": 32})[-1]["kind"]
        == "done"
    )
    store = Pictures()
    code, _ = store.add(png_of(50, 30))
    assert (store.get(code, (8, 8)) == torch.tensor([1.0, 0, 0])[:, None, None]).all()


@pytest.mark.parametrize(
    ("path", "change", "says"),
    [
        ("generate", {"sampler": "nosuch"}, "unknown sampler"), ("generate", {"prior": "simulate"}, ""),
        ("generate", {"model": "x"}, "no model"), ("generate", {"classes": "cat"}, "has learned no classes"),
        ("edit", {"guidance": 2}, "this model has no classes"),
        ("edit", {"strength": 0.9999}, "strength"), ("edit", {"painting": "data:text/html,x"}, "expected a PNG"),
        ("edit", {"painting": "data:image/png;base64,!!"}, "damaged"),
        ("edit", {"painting": "data:image/png;base64,AAAA"}, "not an image"),
        ("edit", {"mask": "x"}, "expected a PNG"),
    ],
)  # fmt: skip
def test_a_mistake_is_an_event_and_the_server_goes_on(studio, path, change, says):
    base = {"model": "cifar10-tiny", "n": 1, "steps": 3}
    if path == "edit":
        base |= {"painting": GREEN, "strength": 0.5}
    last = studio.events(f"/api/{path}", base | change)[-1]
    assert last["kind"] == "error"
    assert says in last["message"]


@pytest.mark.parametrize(
    "change",
    [
        {"n": 17},
        {"n": 0},
        {"steps": 0},
        {"steps": 10**6},
        {"seed": 2**40},
        {"model": "x" * 300},
        {"path": "/etc"},
        {"guidance": -1},
    ],
)
def test_numbers_out_of_bounds_are_refused(studio, change):
    assert studio.post("/api/generate", {"model": "cifar10-tiny", **change}).status_code == 422


LONG = {"model": "cifar10-tiny", "n": 16, "steps": 200}


@pytest.mark.parametrize("phase", ["queued", "began", "protocol", "step"])
def test_a_request_that_is_closed_in_any_phase_frees_its_work(studio, phase):
    """What waits behind it is served at once: sixteen images with 200 NFE each would take minutes."""
    stop = threading.Event()

    def occupy():
        with httpx.stream(
            "POST", studio.address + "/api/generate", json=LONG, headers={"X-Client": "occupant-1"}
        ) as answer:
            for line in answer.iter_lines():
                if stop.is_set() or json.loads(line)["kind"] == "step":
                    return

    if phase == "queued":  # something must run for it to wait
        thread = threading.Thread(target=occupy)
        thread.start()
        time.sleep(0.2)
    with httpx.stream("POST", studio.address + "/api/generate", json=LONG, headers=CLIENT, timeout=60) as answer:
        for line in answer.iter_lines():
            if json.loads(line)["kind"] == phase:
                break
    stop.set()
    begin = time.monotonic()
    quick = studio.events("/api/generate", {"model": "cifar10-tiny", "n": 1, "steps": 2}, **{"X-Client": "another-1"})
    assert quick[-1]["kind"] == "done"
    assert time.monotonic() - begin < 30
    if phase == "queued":
        thread.join(30)


def test_a_page_that_asks_for_too_much_is_told_so(studio):
    """Four requests are open at most; the fifth is refused, and none of them is left behind."""
    with httpx.Client(headers={"X-Client": "greedy-client"}, timeout=60) as client:
        open_ = []
        try:
            for _ in range(6):
                request = client.build_request("POST", studio.address + "/api/generate", json=LONG)
                open_.append(client.send(request, stream=True))
            codes = [answer.status_code for answer in open_]
            assert codes[0] == 200
            assert codes[-1] == 503
            assert "requests open already" in open_[-1].read().decode()
        finally:
            for answer in open_:
                answer.close()
    assert studio.events("/api/generate", {"model": "cifar10-tiny", "n": 1, "steps": 2})[-1]["kind"] == "done"
