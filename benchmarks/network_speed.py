"""Speed of networks: seconds to the first step, images per second of training and of sampling, memory, share of peak.

    python benchmarks/network_speed.py cifar10 base small tiny small@64 lsun256 --seconds 500
    python benchmarks/network_speed.py cifar10 --both --profile

A network is NAME[@SIDE][:BATCH]. Each is measured in a process of its own, with empty caches of compiled kernels,
unless --warm is given. Images are random: nothing here depends on what they show.

first step  from the start of the process until the first training step is finished
training    forward and backward pass, clipping, Adam, EMA, with the same prepared batch again and again
sampling    one evaluation of the network for each image
share       multiplications and additions of convolutions, matrix products and attention, over what --peak allows; the
            backward pass counts as two forward passes, and recomputed activations count as another one
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ALL = ("cifar10", "base", "small", "tiny", "small@64", "lsun256")
BATCHES = {32: 512, 64: 256, 128: 128}
"""Images of a training step by side; 64 for larger ones."""
_SAMPLED = 256 * 32 * 32  # pixels of an evaluation, as `Generator.batch`


HEAD = "network | size | parameters | batch | how | first step | training, images/s | share | sampling, images/s"


@dataclass(frozen=True, kw_only=True)
class Row:
    device: str
    network: str
    size: int
    batch: int
    compiled: bool
    recompute: bool
    parameters: int
    first_step: float
    """Seconds."""
    stages: dict[str, float]
    """Seconds of each part of the time to the first step."""
    training: float
    sampling: float
    """Images a second."""
    training_share: float | None
    sampling_share: float | None
    gib: float | None
    """Peak memory of training."""
    kernels: list[tuple[str, float]]
    """With --profile: names and shares of the time."""


def config_of(text: str, compiled: bool) -> Any:
    """The config of NAME[@SIDE][:BATCH], with process `ve`, which costs little."""
    from anisodiff.networks import ncsnpp_config
    from anisodiff.training.recipes import config_of as recipe

    what, _, batch = text.partition(":")
    name, _, side = what.partition("@")
    size = int(side or ncsnpp_config(name).image_size)
    return recipe(
        "ve", network={"name": name}, size=(size, size), batch=int(batch or BATCHES.get(size, 64)), precision="bf16",
        compile=compiled, recompute=size > 128, ema=("constant(0.9999)",), calibration=64,
    )  # fmt: skip


def rate(work: Callable[[], Any], device: Any, seconds: float) -> float:
    """Calls a second, by as many as fit into ``seconds``."""
    import torch

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    work()
    wait()
    done, count, begin = 0, 1, time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds or not done:
        for _ in range(count):
            work()
        wait()
        done, count = done + count, min(2 * count, 64)
    return done / spent if spent else float(done)


class _Clock:
    """Seconds of the stages of a process that began at ``began``, on the clock of `time.time`."""

    def __init__(self, began: float) -> None:
        self.last, self.stages = began, dict[str, float]()

    def __call__(self, stage: str, device: Any = None) -> None:
        if device is not None and device.type == "cuda":
            import torch

            torch.cuda.synchronize(device)
        now = time.time()
        self.stages[stage], self.last = now - self.last, now


def measure(
    text: str, *, compiled: bool, device: str, began: float, seconds: float, peak: float, profile: bool,
    search: int = 10,
) -> Row:  # fmt: skip
    """``began``: when the process was started, on the clock of `time.time`."""
    import torch

    from anisodiff.generation.loaded_model import for_inference
    from anisodiff.runtime.distributed import Distributed
    from anisodiff.training import Plan
    from anisodiff.training.model import assemble
    from anisodiff.training.setup import prepare_device
    from anisodiff.training.step import Stepper

    clock = _Clock(began)
    clock("imports")
    where, config = torch.device(device), config_of(text, compiled)
    plan, distributed = Plan.of(config, where), Distributed(where)
    cuda = where.type == "cuda"
    prepare_device(config, where)
    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = search > 0, search
    images = torch.rand(config.batch, config.channels, *config.size, device=where)
    clock("device", where)
    statistics = plan.statistics(images[:64])
    clock("calibration", where)
    network, execution, model = assemble(plan, statistics, distributed)
    stepper = Stepper(plan, model, network, execution, distributed)
    clock("building", where)
    if cuda:
        torch.cuda.reset_peak_memory_stats(where)
    step = _Steps(stepper, images)
    clock("drawing a batch", where)
    step()
    clock("the step", where)
    first = sum(clock.stages.values())
    training = config.batch * rate(step, where, seconds)
    gib = torch.cuda.max_memory_allocated(where) / 2**30 if cuda else None
    kernels = _kernels(step) if profile and cuda else []

    count_of = max(1, min(1024, _SAMPLED // (config.size[0] * config.size[1]))) if cuda else 1
    sampled = for_inference(plan.build(where).requires_grad_(False), cuda=cuda, half=cuda, compile=compiled and cuda)
    x, level = images[:1].expand(count_of, -1, -1, -1).contiguous(), torch.zeros(count_of, device=where)
    with torch.no_grad():
        sampling = count_of * rate(lambda: sampled(x, level), where, seconds)
    work, parameters = count(plan)
    passes = 4 if config.recompute else 3
    name = torch.cuda.get_device_name(where) if cuda else f"{platform.machine()} CPU"
    return Row(
        device=f"{name}, Python {platform.python_version()}, torch {torch.__version__}",
        network=text, size=config.size[0], batch=config.batch, compiled=compiled and cuda, recompute=config.recompute,
        parameters=parameters, first_step=first, stages=clock.stages, training=training, sampling=sampling,
        training_share=training * passes * work / peak if cuda else None,
        sampling_share=sampling * work / peak if cuda else None, gib=gib, kernels=kernels,
    )  # fmt: skip


def count(plan: Any) -> tuple[int, int]:
    """Operations of a forward pass of one image, and parameters; without memory for either."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network = plan.network.build()
        network(torch.empty(1, plan.inputs, *plan.config.state_shape[1:]), torch.empty(1), None, None)
    return counter.get_total_flops(), sum(p.numel() for p in network.parameters())


class _Steps:
    """Numbered steps that are given the same values."""

    def __init__(self, stepper: Any, images: Any) -> None:
        self.stepper, self.kept, self.k = stepper, stepper.prepare(0, images), 0

    def __call__(self) -> None:
        self.stepper.step(self.k, replace(self.kept, k=self.k))
        self.k += 1


def _kernels(step: Callable[[], None], steps: int = 5) -> list[tuple[str, float]]:
    """The ten kernels that take most of the device's time, with their shares of it."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    spent = {event.key: float(event.self_device_time_total) for event in seen.key_averages()}
    total = sum(spent.values()) or 1.0
    return [(name, time / total) for name, time in sorted(spent.items(), key=lambda item: -item[1])[:10]]


def child(options: argparse.Namespace, text: str, compiled: bool, limit: float) -> Row | str:
    """`measure` in a new process, or why there is no result."""
    words = [sys.executable, __file__, text, "--device", options.device, "--each", str(options.each)]
    words += ["--peak", str(options.peak), *(["--compile"] if compiled else []), *(["--profile"] * options.profile)]
    words += ["--search", str(options.search)]
    with tempfile.TemporaryDirectory() as caches:
        cold = {name: f"{caches}/{name}" for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
        own = {"NETWORK_SPEED_BEGAN": str(time.time())} | ({} if options.warm else cold)
        try:
            done = subprocess.run(
                words, env=os.environ | own, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            return f"not finished after {limit:.0f} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["failed without a word"])[-1]
    values = json.loads(done.stdout.splitlines()[-1])
    return Row(**{**values, "kernels": [tuple(pair) for pair in values["kernels"]]})


def line(row: Row) -> str:
    def percent(share: float | None) -> str:
        return "" if share is None else f"{100 * share:.0f}%"

    cells = (
        row.network, f"{row.size}²", f"{row.parameters / 1e6:.1f} M", row.batch,
        ", ".join(["compiled"] * row.compiled + ["recomputed"] * row.recompute), f"{row.first_step:.1f} s",
        f"{row.training:,.0f}", percent(row.training_share), f"{row.sampling:,.0f}", percent(row.sampling_share),
        "" if row.gib is None else f"{row.gib:.1f} GiB",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=list(ALL), help="NAME[@SIDE][:BATCH]")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true", help="torch.compile the networks")
    parser.add_argument("--both", action="store_true", help="each network without and with torch.compile")
    parser.add_argument("--profile", action="store_true", help="the ten kernels that take most time")
    parser.add_argument("--warm", action="store_true", help="keep the caches of compiled kernels")
    parser.add_argument("--search", type=int, default=10, help="algorithms cuDNN tries for a convolution; 0: none")
    parser.add_argument("--seconds", type=float, default=540.0, help="of everything; what is left is left out")
    parser.add_argument("--each", type=float, default=3.0, help="seconds of each of the two rates")
    parser.add_argument(
        "--peak", type=float, default=790e12, help="operations a second that the device can do in bf16"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if "NETWORK_SPEED_BEGAN" in os.environ:
        found = measure(
            options.networks[0], compiled=options.compile, device=options.device,
            began=float(os.environ["NETWORK_SPEED_BEGAN"]), seconds=options.each, peak=options.peak,
            profile=options.profile, search=options.search,
        )  # fmt: skip
        print(json.dumps(asdict(found)))
        return
    begin, rows = time.perf_counter(), []
    print(f"| {HEAD} | share | memory |\n{'|---' * 11}|", flush=True)
    for text in options.networks:
        for compiled in (False, True) if options.both else (options.compile,):
            left = options.seconds - (time.perf_counter() - begin)
            row = child(options, text, compiled, left) if left > 0 else "left out, no time"
            if isinstance(row, str):
                print(f"| {text} | | | | {'compiled: ' * compiled}{row} |", flush=True)
                continue
            rows.append(row)
            print(line(row), flush=True)
    for device in sorted({row.device for row in rows}):
        print(f"\n{time.strftime('%Y-%m-%d')}, {device}")
    for row in rows:
        stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in row.stages.items())
        print(f"{row.network}{', compiled' * row.compiled}: {stages}")
        for name, share in row.kernels:
            print(f"{row.network}{', compiled' * row.compiled}: {100 * share:6.1f}%  {name[:90]}")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
