"""How fast the studio answers one person: wall-clock time of a request, and the processor time it costs the server.

    python benchmarks/studio_latency.py --requests 15

Every request has coefficients that were not seen before, as while a curve is dragged. Processor time does not
depend on what else the machine does; the wall-clock time does.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from studio_load import MODEL, _painting, server


def processor_time(pid: int) -> float:
    """Seconds that all threads of a process have computed."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bodies(number: int) -> dict[str, tuple[str, dict[str, Any], str]]:
    """Name → address, request, and the event that is waited for."""
    found = {}
    for preset, size in (
        ("anisotropic-gentle", 32), ("anisotropic-gentle", 64), ("anisotropic-gentle", 128), ("ve", 64), ("heat", 64),
        ("anisotropic", 64), ("anisotropic-paper", 64), ("design-3b", 64),
    ):  # fmt: skip
        keys = {"intensity": f"geometric(0.02, {10 + number / 100})"}
        if preset == "design-3b":  # it has no noise
            keys = {"diffusivity": f"geometric(0.5, {1000 - number / 100})"}
        body = {"a": {"preset": preset, "keys": keys}, "size": size}
        found[f"designer, {preset}, {size}²"] = ("/api/design", body, "trajectory")
    painting = f"data:image/png;base64,{_painting()}"
    noised = {"model": MODEL, "painting": painting, "strength": 0.5 + number / 1000}
    found["strength slider, 32²"] = ("/api/noised", noised, "noised")
    strokes = {"model": MODEL, "picture": "photograph", "colors": 3 + number % 8}
    found["strokes by k-means, 32²"] = ("/api/strokes", strokes, "painting")
    images = {"model": MODEL, "n": 4, "steps": 20, "seed": number}
    found["generate 4, 20 NFE: first picture"] = ("/api/generate", images, "step")
    found["generate 4, 20 NFE: all"] = ("/api/generate", images, "done")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=15)
    count = min(parser.parse_args().requests, 200)
    with server() as (address, child), httpx.Client(headers={"X-Client": "the-stop-watch"}, timeout=300) as client:
        print("| request | wall clock, median, ms | largest, ms | processor, ms |\n|---|---|---|---|")
        for name in bodies(0):
            walls = []
            once(client, address, *bodies(count)[name])  # the first one loads
            spent = processor_time(child.pid)
            for number in range(count):
                begin = time.perf_counter()
                once(client, address, *bodies(number)[name])
                walls.append(1e3 * (time.perf_counter() - begin))
            spent = 1e3 * (processor_time(child.pid) - spent) / count
            print(f"| {name} | {median(walls):.0f} | {max(walls):.0f} | {spent:.0f} |", flush=True)
    return 0


def once(client: httpx.Client, address: str, path: str, body: dict[str, Any], until: str) -> None:
    with client.stream("POST", address + path, json=body) as answer:
        for line in answer.iter_lines():
            if json.loads(line)["kind"] == until:
                return


if __name__ == "__main__":
    sys.exit(main())
