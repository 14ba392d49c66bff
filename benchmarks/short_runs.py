"""Short training runs under one roof: train each variant for a fixed time, sample, and measure FID.

    python benchmarks/short_runs.py --data DIR --inception FILE --seconds 90 --out DIR ve ve:gamma=0 anisotropic:…

A variant is PRESET[:KEY=VALUE[;KEY=VALUE…]] with the keys of a process, or `gamma` (how the loss weighs frequencies),
`flat` (1: one scalar c_skip for all frequencies, as EDM, instead of Wiener's), `mean`, `std` (time density),
`wiener` (noise of the sampler).
Network, optimiser, batch, EMA, time density in noise level, sampler and number of evaluations are the same for all.
DIR holds CIFAR-10 as PNGs of 10000x1024 RGB, one image a row (data_batch_1.png … data_batch_5.png).
"""

import argparse
import copy
import json
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import anisodiff
from anisodiff.hashing import combine
from anisodiff.metrics import extract, frechet_distance, gaussian_statistics, inception
from anisodiff.networks import NCSNpp, ncsnpp_config
from anisodiff.networks.precondition import ScoreModel, draw_times, level_density
from anisodiff.noise import KeyedNoise
from anisodiff.objectives import objective_for
from anisodiff.priors import fit_gaussian
from anisodiff.samplers.exponential import level_grid, sample
from anisodiff.tables import measure

T_MIN = 0.02
OWN = ("gamma", "flat", "mean", "std", "wiener")


def load(folder: Path, most: int) -> torch.Tensor:
    """CIFAR-10 training images, uint8 [N, 3, 32, 32]."""
    Image.MAX_IMAGE_PIXELS = None
    parts = [np.asarray(Image.open(p)) for p in sorted(folder.rglob("data_batch_*.png"))]
    if not parts:
        raise SystemExit(f"no data_batch_*.png below {folder}")
    pixels = np.concatenate(parts).reshape(-1, 32, 32, 3)[:most]
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()


def parse(variant: str) -> tuple[str, dict, dict]:
    name, _, rest = variant.partition(":")
    keys = dict(item.split("=", 1) for item in rest.split(";") if item)
    own = {k: float(keys.pop(k)) for k in OWN if k in keys}
    return name, keys, own


class Inner(torch.nn.Module):
    """The network in bf16 under autocast, its answer in float32."""

    def __init__(self, network: torch.nn.Module, half: bool) -> None:
        super().__init__()
        self.network, self.half_precision = network, half

    def forward(self, x, c, key=None):
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.half_precision):
            return self.network(x, c, key).float()


def train(model, objective, images, options, own, ema) -> dict:
    device = images.device
    times, cumulative = level_density(model, mean=own.get("mean", -0.5), std=own.get("std", 1.2), t_min=T_MIN)
    fused = device.type == "cuda"
    optimiser = torch.optim.Adam(model.network.parameters(), lr=options.lr, betas=(0.9, 0.999), fused=fused)
    weights, averages = list(model.network.parameters()), list(ema.parameters())
    losses, step, begin = [], 0, None
    total = torch.zeros((), device=device)
    while True:
        if begin is None and step == 5:
            if device.type == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
        if begin and step % 20 == 0:
            if device.type == "cuda":
                torch.cuda.synchronize()
            if time.perf_counter() - begin > options.seconds or (options.steps and step >= options.steps):
                break
        for group in optimiser.param_groups:
            group["lr"] = options.lr * min(1.0, (step + 1) / options.warm_up)
        place = torch.arange(options.batch, device=device)
        keys = combine(options.seed, step, place)
        index = torch.remainder(combine(options.seed + 1, step, place), len(images))
        x0 = images[index].float() / 255
        x0 = torch.where((keys & 1 == 0)[:, None, None, None], x0, x0.flip(-1))
        uniform = KeyedNoise(combine(options.seed, step, torch.arange(options.batch))).uniform()
        t = objective.settle(draw_times(times, cumulative, uniform))
        with torch.no_grad():
            drawn = objective.draw(x0, t, KeyedNoise(keys))
        loss = model.loss(drawn, t.to(device), combine(7, keys)).mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        decay = min(options.ema, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(averages, weights, 1 - decay)
        total += loss.detach()
        step += 1
        if step % 100 == 0:
            losses.append(round(float(total) / 100, 4))
            total.zero_()
    return {"steps": step, "images": step * options.batch, "train_s": time.perf_counter() - begin, "losses": losses}


@torch.no_grad()
def generate(model, prior, count, steps, batch, seed, wiener) -> tuple[torch.Tensor, float, int]:
    grid = level_grid(model, steps - 1, T_MIN)
    parts, begin = [], time.perf_counter()
    for first in range(0, count, batch):
        seeds = torch.arange(first, first + batch, device=prior.mean.device)
        start = prior.draw(batch, KeyedNoise(combine(seed, 1, seeds)))
        images = sample(model, start, grid, KeyedNoise(combine(seed, 2, seeds)), wiener=wiener)
        parts.append((images.clamp(0, 1) * 255).round().to(torch.uint8))
    return torch.cat(parts)[:count], time.perf_counter() - begin, len(grid)


def statistics(network, images: torch.Tensor):
    """Gaussian statistics of the features of uint8 images."""
    return gaussian_statistics(extract(network, iter(torch.split(images, 500)))[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--inception", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--steps", type=int, default=0, help="stop after this many steps, whatever the time")
    parser.add_argument("--size", default="base")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--warm-up", type=int, default=100)
    parser.add_argument("--ema", type=float, default=0.995)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--sample-batch", type=int, default=1250)
    parser.add_argument("--evaluations", type=int, default=50)
    parser.add_argument("--calibration", type=int, default=2048)
    parser.add_argument("--images", type=int, default=50000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="write the EMA weights in half precision")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.device(options.device)
    torch.backends.cudnn.allow_tf32 = True  # convolutions only: the DCT of the preconditioning stays in float32
    cuda = device.type == "cuda"
    images = load(options.data, options.images).to(device)
    network = inception(options.inception, device=device, tf32=True) if options.inception else None
    reference = None
    if network:
        begin = time.perf_counter()
        reference = statistics(network, images)
        print(f"reference features of {len(images)} images: {time.perf_counter() - begin:.1f} s", flush=True)
    config = ncsnpp_config(options.size, image_size=32, out_channels=6)
    bare = NCSNpp(config).to(device).to(memory_format=torch.channels_last)
    initial = {k: v.clone() for k, v in bare.state_dict().items()}
    inner = Inner(bare, cuda)
    ema = copy.deepcopy(bare).requires_grad_(False)
    ema_inner = Inner(ema, cuda)
    if cuda:
        inner.network = torch.compile(bare, dynamic=False)
        ema_inner.network = torch.compile(ema, dynamic=False)
    print(f"{sum(p.numel() for p in bare.parameters()) / 1e6:.1f} M parameters, {options}", flush=True)
    for number, variant in enumerate(options.variants):
        began = time.perf_counter()
        name, keys, own = parse(variant)
        bare.load_state_dict(initial)
        ema.load_state_dict(initial)
        process = anisodiff.process(name, 32, **keys)
        objective = objective_for(process)
        calibration = images[: options.calibration].float() / 255
        moments = measure(objective, calibration, flat=bool(own.get("flat", 0)))
        measured = time.perf_counter() - began
        gamma, drift = own.get("gamma", 1.0), objective.learns_drift
        model = ScoreModel(inner, process.equation, moments, drift=drift, gamma=gamma).to(device)
        average = ScoreModel(ema_inner, process.equation, moments, drift=drift, gamma=gamma).to(device)
        result = {"variant": variant, "seed": options.seed, "calibrate_s": measured}
        result |= train(model, objective, images, options, own, ema)
        terminal = []
        for part in torch.split(images[: 4 * options.calibration], 512):
            source = KeyedNoise(combine(99, torch.arange(len(part), device=device)))
            terminal.append(process.simulate(part.float() / 255, process.T, source))
        prior = fit_gaussian(torch.cat(terminal))
        with torch.no_grad():
            result["level"] = [round(float(model.level[0, 0]), 2), round(float(model.level[-1, -1]), 2)]
        for evaluations, wiener in [(options.evaluations, own.get("wiener", 0.0))]:
            pictures, seconds, used = generate(
                average, prior, options.samples, evaluations, options.sample_batch, options.seed, wiener
            )
            result |= {"evaluations": used, "sample_s": seconds}
            if network and reference:
                result["fid"] = float(frechet_distance(statistics(network, pictures), reference))
        result["total_s"] = time.perf_counter() - began
        print(json.dumps(result), flush=True)
        with open(options.out / "results.jsonl", "a") as file:
            file.write(json.dumps({**result, "options": {k: str(v) for k, v in vars(options).items()}}) + "\n")
        grid = pictures[:64].reshape(8, 8, 3, 32, 32).permute(0, 3, 1, 4, 2).reshape(256, 256, 3).cpu().numpy()
        Image.fromarray(grid).resize((512, 512), Image.Resampling.NEAREST).save(options.out / f"grid-{number}.png")
        if options.keep:
            torch.save({k: v.half() for k, v in ema.state_dict().items()}, options.out / f"ema-{number}.pt")


if __name__ == "__main__":
    main()
