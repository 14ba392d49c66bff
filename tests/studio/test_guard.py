"""Who is let in: hosts, origins, tokens, sizes; and what every answer says of itself."""

import json
import logging
import re
import socket
import time
from pathlib import Path

import httpx
import pytest

from anisodiff.studio import app as studio_app
from anisodiff.studio.app import StudioConfig
from anisodiff.studio.guard import LARGEST_BODY, Access
from anisodiff.studio.server import access_to, address_of, listen
from tests.studio.conftest import CLIENT, running

STATIC = Path(studio_app.__file__).parent / "static"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.7", "", "[::1", "localhost.evil",
        "evil@localhost", "localhost:80@evil.example", "127.0.0.1/x", "localhost:x", "127.1", "0x7f000001",
    ],
)  # fmt: skip
def test_a_name_that_was_pointed_here_is_refused(studio, host):
    answer = httpx.get(studio.address + "/api/about", headers={"Host": host})
    assert answer.status_code in (400, 403)
    assert "process" not in answer.text


def raw(studio, *lines: str, reads: bool = True) -> bytes:
    """The status of an answer to lines as they are."""
    host, _, port = studio.address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as wire:
        wire.sendall("\r\n".join((*lines, "", "")).encode())
        return wire.recv(4096).split()[1] if reads else b""


@pytest.mark.parametrize(
    "twice",
    [
        ("Host: localhost", "Host: evil.example"), ("Host: evil.example", "Host: localhost"),
        ("Host: localhost", "Origin: http://evil.example", "Origin: http://localhost"),
        ("Host: localhost", "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: none"),
    ],
)  # fmt: skip
def test_a_header_that_is_judged_comes_once(studio, twice):
    assert raw(studio, "GET /api/about HTTP/1.1", *twice, "Connection: close") in (b"400", b"403")


def test_an_upload_that_is_cut_off_leaves_no_trace_in_the_log(studio):
    told: list[logging.LogRecord] = []
    ear = logging.Handler()
    ear.emit = told.append
    logging.getLogger("uvicorn.error").addHandler(ear)
    head = ("POST /api/pictures HTTP/1.1", "Host: localhost", "X-Client: 12345678", "Content-Length: 1000")
    raw(studio, *head, reads=False)
    assert studio.get("/api/about").status_code == 200
    time.sleep(0.5)
    logging.getLogger("uvicorn.error").removeHandler(ear)
    assert [one.getMessage() for one in told] == []


def test_who_asks_before_the_server_is_ready_waits():
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname(), timeout=5):
        pass


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "https://localhost"}, {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"},
    ],
)  # fmt: skip
def test_requests_of_other_pages_are_refused(studio, headers):
    for method, path in (("GET", "/api/runs"), ("POST", "/api/run/start"), ("OPTIONS", "/api/run/start")):
        answer = httpx.request(method, studio.address + path, headers={**CLIENT, **headers})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers


def test_a_request_without_the_header_of_the_page_changes_nothing(studio):
    assert httpx.post(studio.address + "/api/run/stop", json={"name": "x"}).status_code == 403
    assert studio.post("/api/run/stop", {"name": "x"}, Origin=studio.address).status_code == 400


def test_every_answer_carries_the_policy(studio):
    for path in ("/", "/static/main.js", "/api/about", "/nowhere", "/static/../app.py", "/static/%2e%2e/app.py"):
        answer = studio.get(path)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in answer.headers
    assert studio.get("/docs").status_code == studio.get("/openapi.json").status_code == 404


def test_a_body_beyond_the_limit_is_refused_however_it_comes(studio):
    head = ("POST /api/pictures HTTP/1.1", "Host: localhost", "X-Client: 12345678")
    assert raw(studio, *head, f"Content-Length: {LARGEST_BODY + 1}") == b"413"

    def endless():
        for _ in range(LARGEST_BODY // (1 << 20) + 2):
            yield b"x" * (1 << 20)

    try:
        counted = httpx.post(studio.address + "/api/pictures", content=endless(), headers=CLIENT, timeout=60)
        assert counted.status_code == 413
    except httpx.WriteError:  # the server has hung up already
        pass
    assert studio.get("/api/about").status_code == 200


def test_an_address_that_others_can_reach_needs_the_token(tmp_path):
    with pytest.raises(ValueError, match="a token is needed"):
        Access(host="0.0.0.0")
    access = access_to("0.0.0.0")
    assert len(access.token) >= 32
    assert access_to("0.0.0.0").token != access.token
    assert access_to("127.0.0.1").token is access_to("::1").token is access_to("localhost").token is None
    for address, _ in running(StudioConfig(runs=tmp_path, access=access)):
        with httpx.Client(base_url=address) as client:
            assert client.get("/").status_code == 401
            assert client.get("/static/main.js").status_code == 401
            assert client.get("/?token=wrong").status_code == 401
            assert client.get("/api/about", headers={"Cookie": "anisodiff-studio=wrong"}).status_code == 401
            entered = client.get(f"/?token={access.token}")
            assert entered.status_code == 303
            assert "HttpOnly; SameSite=Strict" in entered.headers["set-cookie"]
            assert client.get("/api/about").status_code == 200
            assert client.get("/api/about", headers={"Host": "evil.example"}).status_code == 403


def test_the_address_that_is_printed_holds_the_token():
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert address_of(listener, Access()) == f"http://127.0.0.1:{port}/"
        there = address_of(listener, Access(host="192.168.0.2", token="abc"))
        assert there == f"http://192.168.0.2:{port}/?token=abc"
        with pytest.raises(ValueError, match="choose another --port"):
            listen("127.0.0.1", port)


def test_the_page_names_no_other_host():
    for path in STATIC.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")  # a name, not an address
        assert not re.search(r"https?://|//cdn|@import|url\(", text), path.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|\beval\(|document\.write|new Function", text), (
            path.name
        )


def test_the_server_opens_no_connection(studio, monkeypatch):
    """Everything that a page asks for, while this process may connect to the server itself alone."""
    own = int(studio.address.rpartition(":")[2])
    asked = []
    connect = socket.socket.connect

    def watched(self, address):
        asked.append(address)
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[1] != own:
            raise AssertionError(f"a connection to {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", watched)
    studio.get("/api/about")
    studio.events("/api/generate", {"model": "cifar10-tiny", "n": 1, "steps": 2})
    studio.events("/api/design", {"a": {"preset": "ve"}, "size": 32})
    studio.get("/api/results")
    assert {address[1] for address in asked if isinstance(address, tuple)} == {own}


def test_the_answer_is_json_whatever_was_asked(studio):
    for data in (b"{", b"[" * 100_000, b'{"a": {"preset": "\\ud800"}}', b'{"seed": ' + b"9" * 10_000 + b"}"):
        answer = studio.post("/api/design", data=data, **{"Content-Type": "application/json"})
        assert answer.status_code in (400, 422)
        assert json.loads(answer.text)["message"]
    assert studio.get("/nowhere").json()["message"]
