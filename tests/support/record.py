"""What the package computes, recorded: losses of 50 steps of every method, samples of every sampler, one table.

    python -m tests.support.record write    on the machine that is to be compared with
    python -m tests.support.record check    after a change that was meant to change no number: bit by bit
    python -m tests.support.record check heat    the same for some methods, without the table

Sums may round differently on another processor, so the test (`tests/test_record.py`) compares within a tolerance, and
the command on one machine compares bits. A change that is meant to change a number writes the record anew, and the
changelog says which number and why.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

RECORD = Path(__file__).with_name("record.json")
STEPS, BATCH, SIZE, SAMPLES = 50, 8, 16, 16

_GENTLE = {"process.diffusivity": "geometric(0.5, 0.01)", "process.drift_anisotropy": 0.05}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "ve": ("ve", {}),
    "ve-channel-pca": ("ve", {"channel_pca": True}),
    "ve-scalar": ("ve", {"parameterization": "scalar"}),
    "song": ("ve", {"parameterization": "ve", "weighting": "noise", "times": "log_uniform"}),
    "heat": ("heat", {}),
    "windows": ("anisotropic", {}),
    "one-window": ("anisotropic", {"process.step": "exponential(windows=1)", **_GENTLE}),
    "one-output": (
        "anisotropic",
        {
            "process.step": "exponential(windows=1)", "learns": "reverse_drift", "channel_pca": True,
            **_GENTLE,
        },
    ),
    "signal": ("anisotropic", {"process.step": "signal(windows=4)", **_GENTLE}),
    "paper": ("anisotropic-paper", {"learns": "score", "process.step": "tamed(dt=0.1)"}),
    "anisotropic-noise": ("anisotropic-paper", {"process.noise_anisotropy": 0.3, "process.step": "tamed(dt=0.1)"}),
    "flow-matching": ("flow-matching", {}),
    "flow-matching-uniform": ("flow-matching-uniform", {}),
    "heat-dissipation": ("heat-dissipation", {"process.levels": 20}),
    "edge-preserving": ("edge-preserving", {"process.levels": 40}),
}  # fmt: skip
"""Name → process and the keys that differ from the common ones."""

COMMON: dict[str, Any] = {
    "network.name": "small", "network.nf": 8, "network.multipliers": [1, 1], "network.blocks": 1,
    "network.dropout": 0.1, "size": SIZE, "batch": BATCH, "warm_up": 80, "calibration": 32, "log_every": BATCH,
    "checkpoint_every": 0, "sample_every": 0, "ema": ["constant(0.9)"], "lr": 1e-3, "precision": "fp32",
    "t_min": 0.02, "channel_pca": False,
}  # fmt: skip

SAMPLERS: dict[str, tuple[str, ...]] = {
    "ve": ("exponential", "exponential(order=1)", "exponential(wiener=0.5)", "exponential(corrector=0.1)", "ode",
           "euler", "ancestral", "pc", "exponential(grid=adapted)", "exponential(rho=7)"),
    "ve-channel-pca": ("exponential", "ode"),
    "ve-scalar": ("exponential",),
    "song": ("pc", "exponential"),
    "heat": ("exponential", "ancestral", "ode"),
    "windows": ("exponential", "ode", "euler(drift=projected)"),
    "one-window": ("exponential", "ode", "euler"),
    "one-output": ("exponential", "euler(drift=projected)"),
    "signal": ("exponential", "euler"),
    "paper": ("euler", "euler(corrector=0.1)"),
    "anisotropic-noise": ("auto",),
    "flow-matching": ("heun", "midpoint", "dopri5"),
    "flow-matching-uniform": ("heun",),
    "heat-dissipation": ("deblurring",),
    "edge-preserving": ("posterior",),
}  # fmt: skip


def pictures(count: int = 48, seed: int = 0) -> np.ndarray:
    """Disks on ramps, uint8 [count, 3, SIZE, SIZE]: edges, smooth parts, correlated channels."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:SIZE, 0:SIZE] / (SIZE - 1)
    a, b = rng.uniform(-0.3, 0.3, (2, count, 1, 1, 1))
    ground = 0.5 + a * (x - 0.5) + b * (y - 0.5)
    cy, cx = rng.uniform(0.2, 0.8, (2, count, 1, 1, 1))
    inside = (x - cx) ** 2 + (y - cy) ** 2 < rng.uniform(0.02, 0.08, (count, 1, 1, 1))
    color = rng.uniform(-0.4, 0.4, (count, 1, 1, 1)) + rng.uniform(-0.1, 0.1, (count, 3, 1, 1))
    field = ground + inside * color + rng.normal(0, 0.02, (count, 3, SIZE, SIZE))
    return (255 * field.clip(0, 1)).astype(np.uint8)


def _run(*words: object) -> None:
    """The command line, in this process."""
    from anisodiff.cli.main import run

    old, sys.argv = sys.argv, ["anisodiff", *map(str, words)]
    try:
        run()
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f"anisodiff {' '.join(map(str, words))}: exit code {stop.code}") from None
    finally:
        sys.argv = old


def _sets(values: dict[str, Any]) -> list[str]:
    return [word for key, value in values.items() for word in ("--set", f"{key}={json.dumps(value)}")]


def _summary(images: np.ndarray) -> dict[str, Any]:
    """Bits, and numbers to compare where bits may differ."""
    return {
        "sha256": hashlib.sha256(np.ascontiguousarray(images)).hexdigest(),
        "mean": [float(image.mean()) for image in images],
        "std": [float(image.std()) for image in images],
    }


def losses(folder: Path, name: str, steps: int = STEPS) -> list[float]:
    """Train ``name`` in a folder of its own below ``folder``; the loss of every step."""
    process, keys = METHODS[name]
    torch.set_num_threads(1)
    if not (folder / "raw.npy").exists():
        np.save(folder / "raw.npy", pictures())
    _run("train", process, "--data", folder / "raw.npy", "-o", folder / name, "--device", "cpu",
         "--images", steps * BATCH, *_sets({**COMMON, **keys}))  # fmt: skip
    return [json.loads(line)["loss"] for line in (folder / name / "log.jsonl").read_text().splitlines()]


def measure(folder: Path, methods: Sequence[str] = ()) -> dict[str, Any]:
    """Train, sample and evaluate in ``folder``; where ``methods`` are named, train and sample with these alone."""
    from anisodiff.generation import load

    found: dict[str, Any] = {"losses": {}, "samples": {}}
    for name in methods or METHODS:
        found["losses"][name] = losses(folder, name)
        generator = load(folder / name, "cpu")
        for sampler in SAMPLERS[name]:
            images = generator.sample(SAMPLES, steps=500 if sampler == "dopri5" else 24, sampler=sampler)
            found["samples"][f"{name} {sampler}"] = _summary(images.numpy())
    return found if methods else found | tables(folder)


def part_of(record: dict[str, Any], methods: Sequence[str]) -> dict[str, Any]:
    """What `measure` finds of ``record`` for these methods; everything where none are named."""
    if not methods:
        return record
    samples = {f"{name} {sampler}" for name in methods for sampler in SAMPLERS[name]}
    kept = {"losses": set(methods), "samples": samples}
    return {part: {name: record[part][name] for name in record[part] if name in kept[part]} for part in kept}


def tables(folder: Path) -> dict[str, Any]:
    """One `evaluate` report and the rows of one `compare` page."""
    from tests.metrics.conftest import save_network

    network = save_network(folder / "tiny.pt")
    _run("sample", folder / "ve", "--n", 32, "--steps", 12, "--device", "cpu", "--out", folder / "made")
    _run("evaluate", folder / "made", "--reference", folder / "ve" / "data", "--network", network,
         "--trust-code", "--input", "unit", "--device", "cpu", "--json", folder / "report.json")  # fmt: skip
    report = json.loads((folder / "report.json").read_text())
    study = folder / "study"
    _run("compare", "ve", "flow-matching", "--data", folder / "ve" / "data", "--out", study, "--images", 80,
         "--n", 16, "--steps", "4,6", "--network", network, "--trust-code",
         "--input", "unit", "--device", "cpu", "--batch", 8,
         *_sets(COMMON))  # fmt: skip
    page = json.loads((study / "results" / "page.json").read_text())
    return {"evaluate": _numbers(report), "compare": _numbers(page["rows"])}


_TIMES = ("seconds", "seconds_per_image", "checkpoint_path", "version", "created")


def _numbers(value: Any, path: str = "") -> dict[str, float]:
    """Every number of a nested value under its path; times left out."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return {}
    if isinstance(value, int | float):
        return {path: float(value)}
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    found: dict[str, float] = {}
    for key, inner in pairs:
        if key not in _TIMES:
            found |= _numbers(inner, f"{path}/{key}")
    return found


def main(verb: str, *methods: str, record: Path = RECORD) -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), methods)
    if verb == "write":
        if methods and record.exists():
            kept = json.loads(record.read_text(encoding="utf-8"))
            found = {part: kept.get(part, {}) | found.get(part, {}) for part in kept | found}
        record.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {record}")
        return 0
    known = part_of(json.loads(record.read_text(encoding="utf-8")), methods)
    different = [
        f"{part}: {name}" for part, entries in known.items() for name, value in entries.items()
        if found.get(part, {}).get(name) != value
    ]  # fmt: skip
    for line in different:
        print(f"differs: {line}")
    print(f"{sum(map(len, known.values())) - len(different)} equal, {len(different)} different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or ["check"])))
