"""Fifty people click in one studio for two minutes: does it stay up, fair, and within its memory?

    python benchmarks/studio_load.py --clients 50 --seconds 120 --json load.json

The server is a child on loopback. Every client is one page: it looks at processes, drops good and bad pictures,
paints, generates, cancels, closes its tab in the middle of an answer. At the end all leave, and a last request
must be served at once. Exit code 1 where an answer was no answer of ours, or the server died.
"""

import argparse
import asyncio
import base64
import io
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

MOST_CLIENTS, MOST_SECONDS = 200, 600
PRESETS = ("ve", "anisotropic-gentle", "heat", "anisotropic")
MODEL = "cifar10-tiny"


class Load:
    """What all clients have seen."""

    def __init__(self, address: str, until: float) -> None:
        self.address, self.until = address, until
        self.took: dict[str, list[float]] = defaultdict(list)
        self.wrong: list[str] = []
        self.finished: Counter[int] = Counter()
        self.farthest = 0
        self.refused = 0

    async def events(
        self, client: httpx.AsyncClient, path: str, body: dict[str, Any], most: int | None = None
    ) -> bool:
        """Read the events of a request; after ``most`` of them the tab is closed. True where it ended by itself."""
        async with client.stream("POST", self.address + path, json=body) as answer:
            if answer.status_code == 503:
                self.refused += 1
                return False
            if answer.status_code != 200:
                self.wrong.append(f"{path}: {answer.status_code}")
                return False
            count = 0
            async for line in answer.aiter_lines():
                event = json.loads(line)
                if event["kind"] == "queued":
                    self.farthest = max(self.farthest, event["position"])
                if event["kind"] == "error":
                    self.wrong.append(f"{path}: {event['message']}")
                count += 1
                if most is not None and count >= most:
                    return False
        return True


async def person(load: Load, number: int, chance: random.Random) -> None:
    """One page, until the time is over."""
    actions = {"design": 6, "generate": 2, "noised": 3, "upload": 1, "bad": 1, "list": 2, "diagnose": 1, "leave": 2}
    names = [name for name, weight in actions.items() for _ in range(weight)]
    limits = httpx.Limits(max_keepalive_connections=1)
    async with httpx.AsyncClient(headers={"X-Client": f"person-{number:04d}"}, timeout=300, limits=limits) as client:
        while time.monotonic() < load.until:
            name = chance.choice(names)
            begin = time.monotonic()
            try:
                if await _act(load, client, name, chance):
                    load.took[name].append(time.monotonic() - begin)
                    load.finished[number] += 1
            except httpx.HTTPError as error:
                load.wrong.append(f"{name}: {type(error).__name__}")
                await asyncio.sleep(0.5)
            await asyncio.sleep(chance.uniform(0.05, 0.5))


async def _act(load: Load, client: httpx.AsyncClient, name: str, chance: random.Random) -> bool:
    keys = {"intensity": f"geometric(0.02, {chance.uniform(1, 50):.4g})"}
    design = {
        "a": {"preset": chance.choice(PRESETS), "keys": keys}, "size": 32, "seed": chance.randrange(100),
    }  # fmt: skip
    images = {
        "model": MODEL,
        "n": chance.randint(1, 4),
        "steps": chance.randint(2, 8),
        "seed": chance.randrange(1000),
    }
    if name == "design":
        return await load.events(client, "/api/design", design)
    if name == "diagnose":
        return await load.events(client, "/api/diagnose", design, chance.choice([None, 3]))
    if name == "generate":
        return await load.events(client, "/api/generate", images)
    if name == "leave":  # in any phase: waiting, begun, half done
        await load.events(client, "/api/generate", {**images, "n": 16, "steps": 200}, chance.randint(1, 8))
        return False
    if name == "noised":
        body = {
            "model": MODEL,
            "painting": f"data:image/png;base64,{_painting()}",
            "strength": chance.uniform(0.2, 0.9),
        }
        return await load.events(client, "/api/noised", body)
    if name == "list":
        for path in ("/", "/static/main.js", "/api/about", "/api/runs", "/api/results"):
            answer = await client.get(load.address + path)
            if answer.status_code != 200:
                load.wrong.append(f"{path}: {answer.status_code}")
        return True
    data = (
        _picture(chance)
        if name == "upload"
        else chance.choice([b"no picture", b"\x89PNG\r\n\x1a\n" + b"0" * 1000, b""])
    )
    answer = await client.post(load.address + "/api/pictures", content=data)
    if answer.status_code != (200 if name == "upload" else 400):
        load.wrong.append(f"{name}: {answer.status_code}")
    return True


def _picture(chance: random.Random) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (chance.randint(50, 800), chance.randint(50, 800)), "teal").save(buffer, "JPEG")
    return buffer.getvalue()


def _painting() -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64), "green").save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def memory(pid: int) -> float:
    """Resident memory of a process in MB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    return int(found.group(1)) / 1024 if found else 0.0


async def run(address: str, pid: int, clients: int, seconds: float, seed: int) -> dict[str, Any]:
    """All clients, and the memory of the server meanwhile."""
    load, begun = Load(address, time.monotonic() + seconds), memory(pid)
    people = [asyncio.create_task(person(load, k, random.Random(seed * 1000 + k))) for k in range(clients)]
    seen: list[float] = []
    while time.monotonic() < load.until:
        await asyncio.sleep(min(1.0, seconds / 10))
        seen.append(memory(pid))
    for one in people:  # every tab is closed at once, whatever it was doing
        one.cancel()
    await asyncio.gather(*people, return_exceptions=True)
    begin = time.monotonic()
    async with httpx.AsyncClient(headers={"X-Client": "the-last-one"}, timeout=120) as client:
        last = await load.events(client, "/api/generate", {"model": MODEL, "n": 1, "steps": 2})
    half = len(seen) // 2
    shares = [load.finished[k] for k in range(clients)]
    return {
        "clients": clients, "seconds": seconds, "requests": sum(shares), "wrong": load.wrong[:20],
        "refused": load.refused, "farthest_place": load.farthest, "last_served": last,
        "last_seconds": round(time.monotonic() - begin, 2),
        "memory_mb": {"begin": round(begun), "half": round(max(seen[: half + 1])), "most": round(max(seen))},
        "per_client": {"least": min(shares), "mean": round(sum(shares) / clients, 1), "most": max(shares)},
        "seconds_by_kind": {name: _spread(values) for name, values in sorted(load.took.items())},
    }  # fmt: skip


def _spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "count": len(ordered), "median": round(ordered[len(ordered) // 2], 3),
        "p95": round(ordered[int(0.95 * (len(ordered) - 1))], 3), "most": round(ordered[-1], 3),
    }  # fmt: skip


@contextmanager
def server() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A studio as a child, on a free port of loopback; and its address."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            sys.executable,
            "-m",
            "anisodiff",
            "studio",
            folder,
            "--no-browser",
            "--port",
            "0",
            "--device",
            "cpu",
        ]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            assert child.stdout is not None
            address = child.stdout.readline().split()[-1].rstrip("/")
            while True:
                try:
                    httpx.get(f"{address}/api/about")
                    break
                except httpx.ConnectError:
                    time.sleep(0.1)
            yield address, child
        finally:
            child.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    clients, seconds = min(given.clients, MOST_CLIENTS), min(given.seconds, MOST_SECONDS)
    with server() as (address, child):
        found = asyncio.run(run(address, child.pid, clients, seconds, given.seed))
        found["alive"] = child.poll() is None
    said = child.communicate(timeout=60)[0]
    lines = [line for line in said.splitlines() if "Traceback" in line or "Error" in line]
    found["server_errors"] = lines[:20]
    text = json.dumps(found, indent=1, ensure_ascii=False)
    print(text)
    if given.json is not None:
        given.json.write_text(text + "\n", encoding="utf-8")
    return 0 if found["alive"] and found["last_served"] and not found["wrong"] and not lines else 1


if __name__ == "__main__":
    sys.exit(main())
