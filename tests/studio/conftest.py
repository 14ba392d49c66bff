"""One studio for all tests of this folder: a real server on loopback, in a thread of this process."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from anisodiff.studio.app import StudioConfig
from anisodiff.studio.guard import Access
from anisodiff.studio.server import listen, prepared

CLIENT = {"X-Client": "tests-of-the-studio"}
SMALL = {
    "size": "16", "network.nf": "8", "network.multipliers": "[1, 1]", "network.blocks": "1", "batch": "4",
    "calibration": "16", "log_every": "8", "checkpoint_every": "80", "sample_every": "0", "warm_up": "20",
}  # fmt: skip
"""Settings of a training that takes its first step at once."""


@dataclass(frozen=True)
class Place:
    """A server that runs, and its folder of runs."""

    address: str
    runs: Path

    def events(self, path: str, body: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
        """All events of a request."""
        with (
            httpx.Client(timeout=120) as client,
            client.stream("POST", self.address + path, json=body, headers={**CLIENT, **headers}) as answer,
        ):
            assert answer.status_code == 200, answer.read()
            return [json.loads(line) for line in answer.iter_lines()]

    def get(self, path: str, **query: Any) -> httpx.Response:
        return httpx.get(self.address + path, params=query, timeout=60)

    def post(self, path: str, body: Any = None, data: bytes | None = None, **headers: str) -> httpx.Response:
        given: dict[str, Any] = {"content": data} if data is not None else {"json": body}
        return httpx.post(self.address + path, headers={**CLIENT, **headers}, timeout=120, **given)


def running(config: StudioConfig) -> Iterator[tuple[str, Any]]:
    """A server in a thread until the generator is closed."""
    listener = listen(config.access.host, 0)
    server = prepared(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
    server.should_exit = True
    thread.join(60)
    assert not thread.is_alive()


def photographs(folder: Path, count: int = 24) -> None:
    """Ramps of many colors."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for k in range(count):
        ramp = np.linspace(0, 255, 24)[None, :, None] * rng.uniform(0.3, 1, (24, 1, 3))
        Image.fromarray(ramp.astype(np.uint8)).save(folder / f"{k:03d}.png")


def page(results: Path) -> Path:
    """A page of results as `anisodiff compare` writes it, with its numbers."""
    (results / "figures").mkdir(parents=True)
    Image.new("RGB", (8, 8), "red").save(results / "figures" / "sheets.png")
    (results / "page.md").write_text(
        "# Comparison\n\nTwo runs, <b>not bold</b>, **bold**.\n\n| run | FID |\n|---|---|\n| ve | 20.5 |\n"
        "| heat | 31 |\n\n![Sheets](figures/sheets.png)\n\n    anisodiff compare ve heat\n\n"
        "- a note\n  of two lines\n",
        encoding="utf-8",
    )
    lines = [{"name": name, "points": [[10, fid], [50, fid / 2]]} for name, fid in (("ve", 41.0), ("heat", 62.0))]
    curve = {"title": "FID over NFE, prior gaussian", "x": "NFE", "y": "FID", "lines": lines}
    (results / "page.json").write_text(json.dumps({"curves": [curve]}), encoding="utf-8")
    return results / "page.md"


@pytest.fixture(scope="session")
def studio(tmp_path_factory) -> Iterator[Place]:
    runs = tmp_path_factory.mktemp("runs")
    photographs(runs / "photos")
    for kind in ("dawn", "noon"):
        photographs(runs / "kinds" / kind, 12)
    page(runs / "study" / "results")
    results = tmp_path_factory.mktemp("results")
    (results / "README.md").write_text(
        "# Overview\n\nSee [the study](a/page.md).\n\n| x |\n|---|\n| 1 |\n", encoding="utf-8"
    )
    page(results / "a")
    (results / "secret.txt").write_text("secret")
    for address, _ in running(StudioConfig(runs=runs, results=results, device="cpu", access=Access())):
        yield Place(address, runs)
