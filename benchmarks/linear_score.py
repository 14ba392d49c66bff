"""Spectra under the best linear score, without Monte-Carlo error on the generating side; variance of the targets.

    python benchmarks/linear_score.py --data DIR --images 400 --out DIR

With affine predictors the reverse process is linear and diagonal in the DCT; its power at t_min is propagated exactly
through the sampler's own steps. What is left is (i) the error of the steps, which must vanish as they grow, and (ii)
the error of the measured tables. DIR holds CIFAR-10 as PNGs of 10000x1024 RGB, one image a row.

Criterion: Σ_k v_k / Σ_k E|û_k|² over each of eight radial bands within 2% of 1, with forward states at t_min of the
images that the tables came from and fresh noise. Means of ratios, and other images, are reported beside it.
"""

import argparse
import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import anisodiff
import linear_moments as lm
from anisodiff.dct import dct2
from anisodiff.io.figures import canvas, save_figure
from anisodiff.models.score import ScoreModel
from anisodiff.noise import KeyedNoise, combine
from anisodiff.priors import fit_gaussian
from anisodiff.processes import SPDE, Process
from anisodiff.samplers.exponential import Exponential
from anisodiff.samplers.grids import grid_between
from anisodiff.statistics import SpectralStatistics
from sheets import cifar

T_MIN, BANDS, GROUPS, MAIN = 0.02, 8, 5, 200
STEPS, DT = (50, 100, 200, 400, 800), (0.02, 0.01, 0.005)
GENTLE = {"diffusivity": "geometric(0.1, 2)"}
CASES: dict[str, tuple[str, dict[str, str]]] = {
    "ve": ("ve", {}),
    "heat": ("heat", {}),
    "10 windows": ("anisotropic", {}),
    "5 windows": ("anisotropic", {"step": "exponential(windows=5)"}),
    "1 window": ("anisotropic", {"step": "exponential(windows=1)"}),
    "10 windows, gentle": ("anisotropic", GENTLE),
}
CHAINS: dict[str, tuple[str, dict[str, str]]] = {
    "flux": ("anisotropic", {}),
    "flux, gentle": ("anisotropic", GENTLE),
    "anisotropic-paper": ("anisotropic-paper", {}),
}


def _levels(model: ScoreModel, steps: int) -> Tensor:
    """Descending times, even in the noise level."""
    return grid_between(model, "level", steps, T_MIN, model.equation.T)


def generated(model: ScoreModel, start: Tensor, steps: int, wiener: float = 1.0) -> Tensor:
    """Power at t_min, [H, W]."""
    return lm.propagate(lm.gains(Exponential(order=1, wiener=wiener), model, _levels(model, steps)), start)


def sums(a: Tensor, b: Tensor) -> list[float]:
    return lm.ratio_of_sums(a, b, BANDS).tolist()


class Subject:
    """A process, images in groups, and what is measured of them."""

    def __init__(self, process: Process, images: Tensor, *, paths: bool = True) -> None:
        self.process, self.groups = process, images.tensor_split(GROUPS)
        self.mean = images.double().mean((0, 2, 3)).float()
        self.each = lm.forward_power(process, images, self.mean, T_MIN)
        self.forward = lm.symmetric(self.each.mean(0))
        self.ends = [self._terminal(group, 50 + k) for k, group in enumerate(self.groups)]
        self.parts: list[lm.Sums] = []
        if paths and isinstance(process, SPDE):
            self.parts = [lm.along(process, group, self.mean, 10 + k) for k, group in enumerate(self.groups)]

    def _terminal(self, images: Tensor, seed: int) -> Tensor:
        """Terminal states for the prior, four an image: its own noise would blur the lowest bands."""
        many = images.repeat(4, 1, 1, 1)
        return self.process.draw(many, self.process.T, KeyedNoise(combine(seed, torch.arange(len(many)))))

    def start(self, without: int | None = None) -> Tensor:
        """Power of the Gaussian prior, perhaps without one of the groups."""
        ends = torch.cat([x for k, x in enumerate(self.ends) if k != without])
        return lm.prior_power(fit_gaussian(ends), self.mean)

    def statistics(self, without: int | None = None, drift: str = "C") -> SpectralStatistics:
        """Tables along paths, perhaps without one of the groups; of linear processes the exact ones."""
        images = torch.cat([x for k, x in enumerate(self.groups) if k != without])
        if not isinstance(self.process, SPDE):
            return self.process.estimate_statistics(images)
        means = lm.pooled([x for k, x in enumerate(self.parts) if k != without])
        centered = images.double() - self.mean.double()[:, None, None]
        data = lm.symmetric(dct2(centered).square().mean((0, 1)))
        return lm.path_tables(self.process, means, self.mean, data, drift=drift)

    def error(self, steps: int) -> list[float]:
        """Standard error of the ratios by the jackknife: prior, tables and forward states without each group."""
        ratios = []
        for k, own in enumerate(self.each.tensor_split(GROUPS)):
            forward = (self.each.sum(0) - own.sum(0)) / (len(self.each) - len(own))
            model = lm.linear_model(self.process, self.statistics(without=k))
            ratios.append(torch.tensor(sums(generated(model, self.start(without=k), steps), forward)))
        return (torch.stack(ratios).var(0, correction=0) * (GROUPS - 1)).sqrt().tolist()


def examine(subject: Subject, others: Tensor, most: int) -> dict[str, Any]:
    """The criterion with error bars, convergence, other images, and tables that are wrong on purpose."""
    steps, forward, start = min(MAIN, most), subject.forward, subject.start()
    statistics = subject.statistics()
    model = lm.linear_model(subject.process, statistics)
    found = generated(model, start, steps)
    unseen = lm.forward_power(subject.process, others, subject.mean, T_MIN, draws=1)
    second = Exponential(order=2)
    few = [n for n in STEPS if n <= min(MAIN, most)]
    result = {
        "ratio": sums(found, forward),
        "error": subject.error(steps),
        "mean of ratios": lm.mean_of_ratios(found, forward, BANDS).tolist(),
        "wiener=1": {n: sums(generated(model, start, n), forward) for n in STEPS if n <= most},
        "wiener=0": {n: sums(generated(model, start, n, 0.0), forward) for n in STEPS if n <= most},
        "wiener=0, order=2": {n: sums(lm.impulses(second, model, _levels(model, n), start), forward) for n in few},
        "other images": sums(found, unseen.mean(0)),
        "other images, forward": sums(forward, unseen.mean(0)),
        "other images, error": torch.hypot(
            lm.image_error(subject.each, BANDS), lm.image_error(unseen, BANDS)
        ).tolist(),
    }
    for name, share in zip(("from the prior", "past stiff steps"), lm.origins(model, start, _levels(model, steps))):
        result[name] = sums(share * found, found)
    shift = math.log(1.05)
    wrong = {
        "w 5 % low": dataclasses.replace(statistics, weight=0.95 * statistics.weight),
        "V 5 % high": dataclasses.replace(
            statistics, log_noise=statistics.log_noise + shift, log_signal=statistics.log_signal + shift
        ),
    }
    if subject.parts:
        wrong["drift at u_t"] = subject.statistics(drift="U")
    result["wrong"] = {
        name: sums(generated(lm.linear_model(subject.process, bad), start, steps), forward)
        for name, bad in wrong.items()
    }
    return result


def examine_chain(subject: Subject, most: int) -> dict[str, Any]:
    """The tamed chain: the exponential sampler, and the chain's own reverse steps."""
    assert isinstance(subject.process, SPDE)
    own = lm.chain_steps(subject.process, lm.pooled(subject.parts), T_MIN)
    model = lm.linear_model(subject.process, subject.statistics())
    return {
        "ratio": sums(generated(model, subject.start(), most), subject.forward),
        "error": subject.error(min(MAIN, most)),
        "own": sums(lm.propagate(own, subject.start()), subject.forward),
    }


def target_power(subject: Subject) -> tuple[list[float], list[float]]:
    """Times, and the mean over frequencies of the target's power times N_k: 1 for the full kernel."""
    assert isinstance(subject.process, SPDE)
    edges, phases = lm.places(subject.process)
    means = lm.pooled(subject.parts)
    ratio = (means["Y"] * (means["V"] - means["S"])).mean((-2, -1))
    return (edges[:-1, None] + phases * edges.diff()[:, None]).flatten().tolist(), ratio.tolist()


def table(rows: dict[str, list[float]], errors: dict[str, list[float]] | None = None) -> str:
    lines = ["| | " + " | ".join(f"band {k}" for k in range(BANDS)) + " |", "|" + "---|" * (BANDS + 1)]
    for label, row in rows.items():
        spread = (errors or {}).get(label)
        cells = [f"{x:.3f}" + (f" ± {1000 * spread[k]:.0f}" if spread else "") for k, x in enumerate(row)]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw_targets(curves: dict[str, tuple[list[float], list[float]]], path: Path) -> None:
    figure = canvas(7.5, 3.8)
    axes = figure.subplots()
    for label, (t, ratio) in curves.items():
        axes.plot(t, ratio, label=label, linewidth=1.2)
    axes.axhline(1.0, color="#777777", linewidth=0.8, linestyle=":")
    axes.set(yscale="log", xlabel="t", ylabel="power of the target × noise", ylim=(0.8, 100))
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for results.json, tables.md, target-variance.png"
    )
    parser.add_argument("--images", type=int, default=400, help="images for the tables; tamed chains take half")
    parser.add_argument("--others", type=int, default=2000, help="further images, for forward states only")
    parser.add_argument("--steps", type=int, default=STEPS[-1], help="the most steps")
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--chains", nargs="*", choices=list(CHAINS), default=list(CHAINS))
    parser.add_argument("--shipped", nargs="*", choices=list(CASES), default=["5 windows", "10 windows, gentle"],
                        help="cases to take with the tables of `measure` too, on half of the images")  # fmt: skip
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    pool = cifar(options.data, options.images + options.others).float() / 255
    images, others, half = pool[: options.images], pool[options.images :], pool[: options.images // 2]
    results: dict[str, dict[str, Any]] = {"cases": {}, "chains": {}, "shipped": {}}
    curves: dict[str, tuple[list[float], list[float]]] = {}

    def note(kind: str, label: str, found: dict[str, Any], begin: float) -> None:
        results[kind][label] = found
        (options.out / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        print(
            f"{label:34s}",
            " ".join(f"{x:.4f}" for x in found["ratio"]),
            f" {time.process_time() - begin:.0f} s",
            flush=True,
        )

    for label in options.cases:
        begin, (name, keys) = time.process_time(), CASES[label]
        subject = Subject(anisodiff.process(name, 32, **keys), half if label == "1 window" else images)
        note("cases", label, examine(subject, others, options.steps), begin)
        if subject.parts:
            curves[label] = target_power(subject)
    for label in options.chains:
        for dt in DT:
            begin, (name, keys) = time.process_time(), CHAINS[label]
            subject = Subject(anisodiff.process(name, 32, **keys, step=f"tamed(dt={dt})"), half)
            note("chains", f"{label}, Δt = {dt:g}", examine_chain(subject, options.steps), begin)
            if dt == 0.01 and name == "anisotropic":
                curves[f"one step, {label}"] = target_power(subject)
    for label in options.shipped:
        begin, (name, keys) = time.process_time(), CASES[label]
        process = anisodiff.process(name, 32, **keys)
        subject = Subject(process, half, paths=False)
        model = lm.linear_model(process, process.estimate_statistics(half))
        power = generated(model, subject.start(), min(MAIN, options.steps))
        note("shipped", label, {"ratio": sums(power, subject.forward)}, begin)
    text = [table({k: v["ratio"] for k, v in rows.items()}, {k: v["error"] for k, v in rows.items() if "error" in v})
            for rows in results.values() if rows]  # fmt: skip
    (options.out / "tables.md").write_text("\n".join(text), encoding="utf-8")
    if curves:
        results["targets"] = {label: {"t": t, "power": power} for label, (t, power) in curves.items()}
        (options.out / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        draw_targets(curves, options.out / "target-variance.png")


if __name__ == "__main__":
    main()
