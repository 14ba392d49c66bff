"""Short training runs under one roof: train each variant for a fixed time, sample, and measure FID.

    python benchmarks/short_runs.py --data DIR --inception FILE --seconds 90 --out DIR ve 've:gamma=0' 'anisotropic:…'

A variant is PRESET[:KEY=VALUE[;KEY=VALUE…]]. A key is one of a process, one of a training config (gamma, level_mean,
antithetic, …), `flat` (1: one scalar c_skip for all frequencies, as EDM, instead of Wiener's), `sampler` or `steps`
(evaluations; several, separated by +, are all measured).
Network, optimiser, batch, EMA, time density in noise level, sampler and number of evaluations are the same for all.
DIR holds CIFAR-10 as PNGs of 10000x1024 RGB, one image a row (data_batch_1.png … data_batch_5.png).
"""

import argparse
import json
import time
from pathlib import Path

import torch
import yaml
from torch import Tensor

from anisodiff.generation.generator import Generator, Origin
from anisodiff.hashing import combine
from anisodiff.metrics import extract, frechet_distance, gaussian_statistics, inception
from anisodiff.photos import to_bytes
from anisodiff.processes.presets import OVERRIDES
from anisodiff.tables import measure
from anisodiff.train import Plan, TrainConfig
from anisodiff.train.model import Trained
from anisodiff.train.preview import fit_prior, write_grid
from anisodiff.train.setup import assemble, prepare_device
from anisodiff.train.step import Stepper
from anisodiff.train.team import Team
from sheets import cifar

OWN = ("flat", "sampler", "steps")


def parse(variant: str, options: argparse.Namespace) -> tuple[TrainConfig, dict[str, str]]:
    """The variant's config, and what is not of a config."""
    name, _, rest = variant.partition(":")
    keys = dict(item.split("=", 1) for item in rest.split(";") if item)
    own = {k: keys.pop(k) for k in OWN if k in keys}
    process = {k: keys.pop(k) for k in list(keys) if k in OVERRIDES}
    config = TrainConfig(
        process={"preset": name, **process}, network={"size": options.size, "dropout": options.dropout},
        batch=options.batch, lr=options.lr, warm_up=options.warm_up * options.batch, seed=options.seed,
        ema=(f"constant({options.ema})",), precision="bf16", compile=True, calibration=options.calibration,
    )  # fmt: skip
    return config.changed({k: yaml.safe_load(v) for k, v in keys.items()}), own


def batch_of(images: Tensor, config: TrainConfig, k: int) -> Tensor:
    """Images of step k, drawn with replacement, half of them flipped."""
    place = torch.arange(config.parents, device=images.device)
    keys = combine(config.seed + 1, k, place)
    x0 = images[torch.remainder(keys, len(images))].float() / 255
    return torch.where((combine(keys, 1) & 1 == 0)[:, None, None, None], x0, x0.flip(-1))


def train(stepper: Stepper, images: Tensor, seconds: float, most: int) -> dict:
    """Steps until the time is up; what it took to compile does not count."""
    wait = torch.cuda.synchronize if images.is_cuda else lambda: None
    k, losses, begin = 0, [], 0.0
    while True:
        if k == 5 or (k and k % 20 == 0):
            wait()
            begin = time.perf_counter() if k == 5 else begin
            if k > 5 and (time.perf_counter() - begin > seconds or (most and k >= most)):
                break
        with stepper.ahead():
            prepared = stepper.prepare(k, batch_of(images, stepper.config, k))
        stepper.step(k, prepared)
        k += 1
        if k % 100 == 0:
            tally = stepper.tally
            losses.append(round(float(tally.loss.sum() / tally.count.sum()), 4))
            tally.loss.zero_(), tally.count.zero_()
    spent = time.perf_counter() - begin
    return {"steps": k, "images": k * stepper.config.batch, "train_s": spent, "losses": losses}


def generator_of(plan: Plan, stepper: Stepper, prior: dict[str, Tensor], device: torch.device) -> Generator:
    """The averaged weights, ready to sample."""
    network = plan.build(device)
    with torch.no_grad():
        for name, value in stepper.averages.of(0).items():
            network.get_parameter(name).copy_(value)
        for name, value in stepper.network.named_buffers():
            network.get_buffer(name).copy_(value)
    model = plan.model(network, stepper.model.moments).eval()
    trained = Trained(plan=plan, model=model, prior=prior, meta={})
    return Generator(trained, Origin(path="", model="", prior=None), device=device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--inception", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--most", type=int, default=0, help="stop after this many steps, whatever the time")
    parser.add_argument("--size", default="base")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=4e-4)
    parser.add_argument("--warm-up", type=int, default=100, help="steps")
    parser.add_argument("--ema", type=float, default=0.995)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--sample-batch", type=int, default=1250)
    parser.add_argument("--evaluations", type=int, default=50)
    parser.add_argument("--sampler", default="auto")
    parser.add_argument("--calibration", type=int, default=2048)
    parser.add_argument("--images", type=int, default=50000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.device(options.device)
    plans = [(text, *parse(text, options)) for text in options.variants]  # mistakes show before anything is trained
    images = cifar(options.data, options.images).to(device)
    features = inception(options.inception, device=device, tf32=True) if options.inception else None

    def statistics(pictures: Tensor):
        return gaussian_statistics(extract(features, iter(torch.split(pictures, 500)))[0])

    begin = time.perf_counter()
    reference = statistics(images) if features else None
    print(f"reference: {time.perf_counter() - begin:.1f} s; {options}", flush=True)
    for number, (text, config, own) in enumerate(plans):
        began = time.perf_counter()
        plan, team = Plan.of(config, device), Team(device)
        prepare_device(config, device)
        known = images[: config.calibration].float() / 255
        flat = bool(int(own.get("flat", 0)))
        moments = measure(plan.objective, known, flat=True) if flat else plan.method.measure(known, seed=config.seed)
        network, model = assemble(plan, moments, team)
        stepper = Stepper(config, plan.objective, model, network, team)
        result = {"variant": text, "seed": options.seed, "ready_s": time.perf_counter() - began}
        result |= train(stepper, images, options.seconds, options.most)
        print(json.dumps(result), flush=True)
        generator = generator_of(plan, stepper, dict(fit_prior(plan.process, known)), device)
        for steps in own.get("steps", str(options.evaluations)).split("+"):
            began_sampling = time.perf_counter()
            route = generator.route(own.get("sampler", options.sampler), int(steps))
            drawn = generator.sample_along(
                route, range(options.samples), generator.prior(), batch=options.sample_batch
            )  # fmt: skip
            row = {**result, "sampler": str(route.sampler), "evaluations": route.evaluations}
            row["sample_s"] = time.perf_counter() - began_sampling
            if features and reference:
                pictures = to_bytes(drawn).to(device)
                row["fid"] = float(frechet_distance(statistics(pictures), reference))
            row["total_s"] = time.perf_counter() - began
            print(json.dumps({k: v for k, v in row.items() if k != "losses"}), flush=True)
            with open(options.out / "results.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps({**row, "options": {k: str(v) for k, v in vars(options).items()}}) + "\n")
        write_grid(drawn[:64], options.out / f"grid-{number}.png")
        del stepper, generator, model, network


if __name__ == "__main__":
    main()
