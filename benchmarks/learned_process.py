"""A learned process: gradients of the bits bound in the smoothing, from `ve` as start. Where does it go?

    python benchmarks/learned_process.py TRAIN TEST --out OUT [--images 64000 --seeds 0 1]

Smoothing and network are trained together on one bound (`learned_path.py`): a(ln σ) ≥ 0 at nine noise levels,
λ, ρ² and the reference w̄. Every case of a seed has the same first weights, images, levels and noise:

    ve          a = 0, frozen: the control. At its end, the gradient in a for several λ and ρ, with errors
    from-ve     a = 0 at the start, all learned
    from-drift  a = 0.1 pixels² per e-fold of the noise at the start, all learned
    isotropic   λ = ∞, w̄ = 1 frozen, a = 0 at the start: smoothing that the states know

Bits are those of path and prior on images of TEST with the same noise for all; the last step of the bound is the same
for all. TRAIN and TEST are prepared datasets. Every run is a file in OUT, made once; README.md there has the tables.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anisodiff.data import open_dataset
from anisodiff.dct import dct2, frequencies, idct2
from anisodiff.io.records import write_json
from anisodiff.networks import NCSNpp, NCSNppConfig
from anisodiff.runtime.devices import pick_device
from learned_path import SmoothingPath

SIGMA = (1 / 255, 50.0)
CASES: dict[str, tuple[dict[str, float], tuple[str, ...]]] = {  # the start, and what is learned
    "ve": ({}, ()),
    "from-ve": ({}, ("rate", "log_edge", "blur_variance", "reference")),
    "from-drift": ({"rate": 0.1}, ("rate", "log_edge", "blur_variance", "reference")),
    "isotropic": ({"edge": math.inf, "reference": 1.0}, ("rate",)),
}
PROBED = [(0.02, 0.0), (0.05, 0.0), (0.05, 2.0), (0.2, 0.0), (math.inf, 0.0)]
"""(λ, ρ) of the gradients at `ve`."""
SHARE = 0.1
"""Of the steps, for the warm-up."""
EPS = 1e-3
"""Of Adam for the process: where the gradient is far below, at high noise, a stays where it is."""


class Denoiser(nn.Module):
    """The Wiener filter of the smoothed images, and what a network adds in units of its error."""

    def __init__(self, network: nn.Module, path: SmoothingPath, images: Tensor) -> None:
        super().__init__()
        self.network, self.path = network, path
        self.center = images.mean((0, 2, 3))[:, None, None]
        self.power = dct2(images - self.center).square().mean((0, 1))

    def forward(self, u: Tensor, level: Tensor) -> Tensor:
        noise = (2 * level).exp().to(u.dtype)[:, None, None, None]
        kept, z = self.path.kept(level, u).square(), dct2(u - self.center)
        signal = self.power * kept
        total = signal + noise
        seen = idct2(z * (noise + self.power.mean() * kept).rsqrt())
        answer = self.network(seen, 0.25 * (level.to(u.dtype) - 0.5 * self.power.mean().log()))
        return self.center + idct2(signal / total * z + (signal * noise / total).sqrt() * dct2(answer))


def bits(denoiser: Denoiser, x0: Tensor, rng: torch.Generator) -> Tensor:
    """Path and prior of images, in bits for each of their numbers, [B]; levels are even over the batch."""
    path, count = denoiser.path, len(x0)
    place = (torch.randperm(count, generator=rng) + torch.rand(count, generator=rng)) / count
    level = (path.levels[0].cpu() + path.span * place.double()).to(x0.device)
    xi = torch.randn(x0.shape, generator=rng).to(x0.device)
    point = path.point(x0, level, xi)
    nats = path.span * point.nats(denoiser(point.state, level)) + path.start(x0, denoiser.center, denoiser.power)
    return nats / (math.log(2) * x0[0].numel())


@torch.no_grad()
def reference_of(path: SmoothingPath, images: Tensor) -> float:
    """The isotropic part of the smoothing: the energy that it takes, over that of the Laplacian."""
    _, slope = path.smoothed(images, images.new_zeros(len(images)))
    z = frequencies(images.shape[-2], images.shape[-1], images.dtype, images.device)
    return float(-(images * slope).sum() / (z * dct2(images).square()).sum())


@torch.no_grad()
def removed(path: SmoothingPath, images: Tensor) -> float:
    """The share of the gradients' energy that is gone at σ_max."""
    z = frequencies(images.shape[-2], images.shape[-1], images.dtype, images.device)
    left = path.smoothed(images, path.smoothing(path.levels[-1:])[1].expand(len(images)))[0]
    return 1 - float((z * dct2(left).square()).sum() / (z * dct2(images).square()).sum())


def finite(edge: float) -> float | None:
    """λ, None where it is infinite: as JSON has it."""
    return None if edge == math.inf else edge


@torch.no_grad()
def settings_of(path: SmoothingPath) -> dict[str, Any]:
    """The process in words of the method."""
    return {
        "a": [round(float(a), 5) for a in path.rate], "edge": finite(math.exp(path.log_edge)),
        "blur": float(path.blur_variance) ** 0.5, "reference": float(path.reference),
    }  # fmt: skip


def build(case: str, images: Tensor, seed: int, options: argparse.Namespace) -> Denoiser:
    """Weights follow from the seed alone; the reference is that of the first λ, unless the case has one."""
    path = SmoothingPath(*SIGMA, **{"edge": 0.05} | CASES[case][0])
    if "reference" not in CASES[case][0]:
        path.reference.data.fill_(reference_of(path, images[:256]))
    torch.manual_seed(seed)
    config = NCSNppConfig(
        image_size=images.shape[-1], in_channels=images.shape[1], out_channels=images.shape[1], nf=options.nf,
        multipliers=(1, 1), blocks=1, attention=(), dropout=0.0, progressive_input="none", fir=False,
    )  # fmt: skip
    return Denoiser(NCSNpp(config), path, images[:2000])


def train(
    denoiser: Denoiser, learned: tuple[str, ...], images: Tensor, seed: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Adam, a warm-up, then a cosine to 0, for network and process alike; the curve of the process."""
    path, rng, device = denoiser.path, torch.Generator().manual_seed(seed), pick_device(options.device)
    denoiser.to(device)
    denoiser.center, denoiser.power = denoiser.center.to(device), denoiser.power.to(device)
    for name, parameter in path.named_parameters():
        parameter.requires_grad_(name in learned)
    groups: list[dict[str, Any]] = [{"params": list(denoiser.network.parameters()), "lr": options.lr}]
    process = [p for p in path.parameters() if p.requires_grad]
    groups.append({"params": process, "lr": options.process_lr, "eps": EPS})
    optimizer = torch.optim.Adam([group for group in groups if group["params"]])
    steps = options.images // options.batch
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: min(1, (k + 1) / (SHARE * steps)) * 0.5 * (1 + math.cos(math.pi * k / steps))
    )
    curve, recent = [], list[float]()
    for step in range(steps):
        chosen = torch.randint(len(images), (options.batch,), generator=rng)
        loss = bits(denoiser, images[chosen].to(device), rng).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(denoiser.network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        path.project()
        recent.append(loss.item())
        if (step + 1) % max(1, steps // 12) == 0:
            row = {"images": (step + 1) * options.batch, "bits": sum(recent) / len(recent), **settings_of(path)}
            curve.append(row)
            print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
            recent.clear()
    return curve


@torch.no_grad()
def held_out(denoiser: Denoiser, images: Tensor, options: argparse.Namespace) -> list[float]:
    """Bits of every image, four levels each, the same noise for every case and seed."""
    rng, total = torch.Generator().manual_seed(999), torch.zeros(len(images))
    for _ in range(4):
        parts = [bits(denoiser, x.to(denoiser.power.device), rng).cpu() for x in images.split(options.batch)]
        total += torch.cat(parts) / 4
    return [round(float(x), 6) for x in total]


def slopes(denoiser: Denoiser, images: Tensor, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The gradient of the bits in a at the levels, at a = 0, and its standard error over batches."""
    found, own, device = [], denoiser.path, denoiser.power.device
    for edge, blur in PROBED:
        path = SmoothingPath(*SIGMA, edge=edge, blur=blur).to(device)
        path.reference.data.fill_(reference_of(path, images[:256].to(device)))
        denoiser.path = path
        rng, each = torch.Generator().manual_seed(998), []
        for _ in range(4):
            for x in images.split(options.batch):
                (slope,) = torch.autograd.grad(bits(denoiser, x.to(device), rng).mean(), path.rate)
                each.append(slope.cpu())
        every = torch.stack(each)
        facts = {"edge": finite(edge), "blur": blur, "reference": float(path.reference)}
        found.append(facts | {"mean": every.mean(0).tolist(), "error": (every.std(0) / len(every) ** 0.5).tolist()})
    denoiser.path = own
    return found


def shown(value: float | None) -> str:
    return "∞" if value is None else f"{value:.3g}"


def page(out: Path) -> str:
    """Tables of all runs that are there."""
    runs = {(r["seed"], r["case"]): r for r in (json.loads(p.read_text()) for p in sorted(out.glob("*-*.json")))}
    any_run = next(iter(runs.values()))
    lines = [f"{any_run['protocol']}", ""]
    lines += ["| seed | case | bits (held out) | against `ve` | removed | λ | ρ | w̄ | a at σ = " + ", ".join(
        f"{math.exp(x):.2g}" for x in any_run["levels"]) + " |", "|---" * 9 + "|"]  # fmt: skip
    for (seed, case), run in sorted(runs.items()):
        each, end = torch.tensor(run["held_out"]), run["curve"][-1]
        gap = "–"
        if (seed, "ve") in runs and case != "ve":
            off = each - torch.tensor(runs[seed, "ve"]["held_out"])
            gap = f"{off.mean():+.4f} ± {off.std() / len(off) ** 0.5:.4f}"
        rates = ", ".join(f"{a:.3g}" for a in end["a"])
        named = " | ".join(shown(end[k]) for k in ("edge", "blur", "reference"))
        lines.append(f"| {seed} | {case} | {each.mean():.4f} | {gap} | {run['removed']:.3f} | {named} | {rates} |")
    lines += ["", "Gradient of the bits in a at `ve`, times 1000, with standard errors; below 0 smoothing pays.", ""]
    lines += ["| seed | λ | ρ | at σ = " + " | ".join(f"{math.exp(x):.2g}" for x in any_run["levels"]) + " |"]
    lines.append("|---" * (3 + len(any_run["levels"])) + "|")
    for (seed, _), run in sorted(runs.items()):
        for row in run.get("slopes", ()):
            cells = (f"{1e3 * m:.2f} ± {1e3 * e:.2f}" for m, e in zip(row["mean"], row["error"]))
            lines.append(f"| {seed} | {shown(row['edge'])} | {shown(row['blur'])} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("train")
    words.add_argument("test")
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    words.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    words.add_argument("--images", type=int, default=64_000, help="seen by each run")
    words.add_argument("--held-out", type=int, default=1024, help="images of TEST")
    words.add_argument("--batch", type=int, default=64)
    words.add_argument("--nf", type=int, default=32, help="channels of the network")
    words.add_argument("--lr", type=float, default=2e-3)
    words.add_argument("--process-lr", type=float, default=5e-3)
    words.add_argument("--device", default="auto")
    options = words.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    data, test = open_dataset(options.train), open_dataset(options.test)
    images, unseen = data.first(len(data)), test.first(min(options.held_out, len(test)))
    for seed in options.seeds:
        for case in options.cases:
            path, begun = options.out / f"{case}-{seed}.json", time.monotonic()
            if path.is_file():
                continue
            print(f"{case}, seed {seed}", flush=True)
            denoiser = build(case, images, seed, options)
            curve = train(denoiser, CASES[case][1], images, seed, options)
            size, device = "×".join(map(str, images.shape[1:])), denoiser.power.device
            weights = sum(p.numel() for p in denoiser.network.parameters())
            facts: dict[str, Any] = {
                "case": case, "seed": seed, "levels": denoiser.path.levels.tolist(), "curve": curve,
                "removed": removed(denoiser.path, unseen.to(device)), "held_out": held_out(denoiser, unseen, options),
                "protocol": f"{size}, {weights:,} parameters, {options.images:,} images in batches of "
                f"{options.batch}, {len(unseen)} held-out images, {device.type}",
            }  # fmt: skip
            if case == "ve":
                facts["slopes"] = slopes(denoiser, unseen, options)
            write_json(path, facts | {"seconds": round(time.monotonic() - begun)})
    told = page(options.out)
    (options.out / "README.md").write_text(told)
    print(told)


if __name__ == "__main__":
    main()
