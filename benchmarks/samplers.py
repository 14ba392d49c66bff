"""Quality and speed of the samplers on a trained model: FID and images per second against evaluations of the network.

    python benchmarks/samplers.py CHECKPOINT --data DIR --inception FILE --out DIR \\
        --samplers exponential 'exponential(order=1)' ode 'euler(drift=projected)' --nfe 10 20 50 100 200

DIR holds CIFAR-10 as PNGs of 10000x1024 RGB, one image a row; the reference is its training set. Every row starts
from the same seeds and the same prior. Writes samplers.json, samplers.md, samplers.png and a grid of every sampler.
"""

import argparse
import json
import time
from pathlib import Path

import torch

import anisodiff
from anisodiff.io.figures import canvas, save_figure
from anisodiff.io.grids import save_grid
from anisodiff.io.images import to_bytes
from anisodiff.metrics import frechet_distance, gaussian_statistics, inception
from sheets import cifar


def table(rows: list[dict], samplers: list[str], nfe: list[int], key: str, form: str) -> list[str]:
    lines = ["| sampler | " + " | ".join(map(str, nfe)) + " |", "|" + "---|" * (len(nfe) + 1)]
    for name in samplers:
        found = {row["asked"]: row.get(key) for row in rows if row["sampler"] == name}
        cells = (form.format(found[n]) if found.get(n) is not None else "–" for n in nfe)
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--inception", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samplers", nargs="+", default=["exponential", "exponential(order=1)", "ode"])
    parser.add_argument("--nfe", nargs="+", type=int, default=[10, 20, 50, 100])
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=1250)
    parser.add_argument("--prior", default="gaussian")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no row after this long")
    parser.add_argument("--compile", action="store_true", help="on CUDA: four times as fast after half a minute")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    generator = anisodiff.load(options.checkpoint, device=options.device, compile=options.compile)
    began, features, reference = time.perf_counter(), None, None
    if options.inception:
        features = inception(options.inception, device=generator.device, tf32=True)

    def statistics(pictures: torch.Tensor):
        return gaussian_statistics(torch.cat([features(part)[0] for part in torch.split(pictures, 500)]))

    if features:
        reference = statistics(cifar(options.data).to(generator.device))
    rows: list[dict] = []
    prior = generator.prior(options.prior)
    for asked in options.nfe:  # by evaluations first: whenever the time is up, the curves are comparable
        for name in options.samplers:
            if time.perf_counter() - began > options.seconds:
                continue
            row = {"sampler": name, "asked": asked, "samples": options.samples, "prior": options.prior}
            try:
                reverse = generator.reverse_process(steps=asked, sampler=name)
                generator.sample_with(reverse, range(options.batch), prior, batch=options.batch)  # records, compiles
                begin = time.perf_counter()
                drawn = generator.sample_with(reverse, range(options.samples), prior, batch=options.batch).images
            except ValueError as error:
                rows.append({**row, "error": str(error)})
                print(rows[-1], flush=True)
                continue
            row |= {"nfe": reverse.nfe, "rate": options.samples / (time.perf_counter() - begin)}
            if features and reference:
                pictures = to_bytes(drawn).to(generator.device)
                row["fid"] = float(frechet_distance(statistics(pictures), reference))
            rows.append(row)
            print(json.dumps(row), flush=True)
            (options.out / "samplers.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
            save_grid(drawn[:64].clamp(0, 1), options.out / f"grid-{options.samplers.index(name)}.png")
    where = torch.cuda.get_device_name() if generator.device.type == "cuda" else "CPU"
    lines = [
        f"{time.strftime('%Y-%m-%d')}, {where}, torch {torch.__version__}, anisodiff {anisodiff.__version__}; "
        f"{options.samples} samples a cell, prior {options.prior}. "
        "FID by evaluations:",
        "",
        *table(rows, options.samplers, options.nfe, "fid", "{:.1f}"),
        "",
        f"Images per second, {options.batch} at a time:",
        "",
        *table(rows, options.samplers, options.nfe, "rate", "{:,.0f}"),
    ]
    (options.out / "samplers.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    figure = canvas(5.5, 3.6)
    axes = figure.subplots()
    for name in options.samplers:
        shown = [(row["nfe"], row["fid"]) for row in rows if row["sampler"] == name and "fid" in row]
        if shown:
            axes.plot(*zip(*shown), marker="o", markersize=3, linewidth=1.3, label=name)
    axes.set(xscale="log", yscale="log", xlabel="evaluations of the network", ylabel="FID")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    save_figure(figure, options.out / "samplers.png")


if __name__ == "__main__":
    main()
