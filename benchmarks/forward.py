"""Images per second of the forward process, against the floor set by memory traffic.

    python benchmarks/forward.py --device cuda --sizes 32 64 256 --markdown benchmarks/results/forward.md
    python benchmarks/forward.py --kinds tamed --sizes 32 64 --batch 512

Two workloads at the paper's parameters: `tamed` is 200 tamed Euler–Maruyama steps from 0 to T with the paper's
stencil; `exponential` is the frozen-operator path over all ten windows. The noise is keyed, as in training. `eager`
and `compiled` take the tamed steps in the plain form; `fused`, on CUDA, has all of them in one kernel up to 64², and
two kernels for a step beyond.

The floor counts the fewest bytes a step must move through memory when everything inside it is fused (state and noise
read once, state written once; for a Chebyshev term: two states and two weight fields read, two states written, for
mean and noise together) over the bandwidth of a device-to-device copy measured in the same run. It does not bind
`fused`: noise does not pass through memory, nor does anything else up to 64².
"""

import argparse
import json
import platform
import time
from itertools import pairwise

import torch

from anisodiff import process
from anisodiff.integrators import kernels
from anisodiff.integrators.exponential import window_degree
from anisodiff.noise import KeyedNoise


class StepByStep(KeyedNoise):
    """The same noise, for which the tamed chain has no fused form."""


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def bandwidth(device: torch.device) -> float:
    """Bytes per second of a large copy, counting bytes read and written."""
    n = 2**30 if device.type == "cuda" else 2**27
    source = torch.randn(n // 4, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(8):
        sync(device)
        begin = time.perf_counter()
        target.copy_(source)
        sync(device)
        times.append(time.perf_counter() - begin)
    return 2 * n / sorted(times)[len(times) // 2]


def bytes_per_image(kind: str, size: int) -> float:
    """The fewest bytes the workload must move for one RGB image in single precision."""
    state = 3 * size * size * 4
    if kind == "tamed":
        return 200 * 3 * state
    shown = process("anisotropic", size)
    edges = shown.step.nodes(shown.equation)
    terms = sum(window_degree(shown.equation, s, e, shown.step.tolerance) for s, e in pairwise(edges))
    # a term reads T_j, T_{j−1} and the sum for both vectors, and two weight fields; writes T_{j+1} and the sum
    return terms * (2 * 5 + 2) * state


def make(kind: str, size: int, compiled: bool):
    if kind == "tamed":
        return process("anisotropic-paper", size, step=f"tamed(dt=0.01, compile={int(compiled)})")
    return process("anisotropic", size, step=f"exponential(windows=10, compile={int(compiled)})")


def measure(kind: str, size: int, batch: int, device: torch.device, mode: str, seconds: float) -> dict:
    shown = make(kind, size, mode == "compiled")
    images = torch.rand(batch, 3, size, size, device=device)
    noise = (KeyedNoise if mode == "fused" else StepByStep)(torch.arange(batch, device=device))
    begin = time.perf_counter()
    first = shown.draw(images, shown.T, noise)
    sync(device)
    warm_up = time.perf_counter() - begin
    assert torch.isfinite(first).all()
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        begin = time.perf_counter()
        shown.draw(images, shown.T, noise)
        sync(device)
        times.append(time.perf_counter() - begin)
    return {"rate": batch / sorted(times)[len(times) // 2], "runs": len(times), "first_call_s": warm_up}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64, 256])
    parser.add_argument("--pixels", type=int, default=None, help="batch x size² of one call; default by device")
    parser.add_argument("--batch", type=int, default=None, help="images of one call, whatever their size")
    parser.add_argument("--seconds", type=float, default=2.0, help="measure each row at least this long")
    parser.add_argument("--kinds", nargs="+", choices=["tamed", "exponential"], default=["tamed", "exponential"])
    modes = ["eager", "compiled", "fused"]
    parser.add_argument("--modes", nargs="+", choices=modes, default=modes)
    parser.add_argument("--markdown", help="also write the table here")
    parser.add_argument("--json", help="also write the raw numbers here")
    options = parser.parse_args()
    device = torch.device(options.device)
    pixels = options.pixels or (2**23 if device.type == "cuda" else 2**17)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    copy = bandwidth(device)
    lines = [
        f"{name}; torch {torch.__version__}, Python {platform.python_version()}; copy {copy / 1e9:.0f} GB/s, float32",
        "",
        "| workload | size | batch | mode | ms | images/s | floor images/s | share of floor | first call s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    rows = []
    print("\n".join(lines), flush=True)
    for kind in options.kinds:
        for size in options.sizes:
            batch = options.batch or max(1, pixels // size**2)
            floor = copy / bytes_per_image(kind, size)
            for mode in options.modes:
                if mode == "fused" and not (kind == "tamed" and kernels.usable(torch.empty(1, device=device))):
                    continue
                row = measure(kind, size, batch, device, mode, options.seconds)
                rows.append({"kind": kind, "size": size, "batch": batch, "mode": mode, "floor": floor, **row})
                lines.append(
                    f"| {kind} | {size}² | {batch} | {mode} | {1000 * batch / row['rate']:.2f} | {row['rate']:.0f} "
                    f"| {floor:.0f} | {100 * row['rate'] / floor:.0f}% | {row['first_call_s']:.1f} |"
                )
                print(lines[-1], flush=True)
    if options.markdown:
        with open(options.markdown, "w") as file:
            file.write("\n".join(lines) + "\n")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": name, "torch": torch.__version__, "copy": copy, "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
