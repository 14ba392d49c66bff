"""How far strokes are from photographs for a process, at equal strength: what an edit has to make up for.

    python benchmarks/stroke_gap.py DATASET --case 30,0.05 --case 10,infinite --images 64

An edit begins with a state of the forward process from a painting y in place of a photograph x. Where the noise is
beside the drift (`ve`, `step=signal`) the two laws are Gaussian with equal variance N, and differ by

    KL = ½ |m_t(x) − m_t(y)|²/N,        m_t the smoothed image

in nats: the less, the more a state from strokes looks like one from a photograph. Every process is asked at the time
at which it leaves as much information of an image as the others (the strength of `anisodiff edit`). No network.
A case is ∫α1 until σ = 1, in pixels², and λ. DATASET is a prepared one.
"""

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

import anisodiff
from anisodiff.data import open_dataset
from anisodiff.dct import dct2
from anisodiff.editing import strokes
from anisodiff.gaussian_kernel import quadrature
from anisodiff.processes import SPDE, ClosedForm
from anisodiff.stencils import STENCILS

NOISE = "geometric(0.02918, 145.9)"  # that of `ve` up to σ = 50


def built(text: str, size: int) -> SPDE | ClosedForm:
    """`ve`, or TOTAL,LAMBDA."""
    settings = {}
    if text != "ve":
        total, edge = text.split(",")
        strength = {"diffusivity": f"pulse({total}, 1.08, 0.117)", "intensity": NOISE}
        settings = {**strength, "drift_anisotropy": edge, "step": "signal(windows=1)"}
    found = anisodiff.process("anisotropic" if settings else "ve", size, **settings)
    assert isinstance(found, SPDE | ClosedForm)
    return found


def smoothed(process: SPDE | ClosedForm, t: float) -> Callable[[Tensor], Tensor]:
    """Images [N, C, H, W] → what the process leaves of them at ``t``, without its noise."""

    def flow(x: Tensor) -> Tensor:
        if not isinstance(process, SPDE):
            return x
        begin = torch.zeros(len(x), dtype=torch.float64)
        frozen = process.step.freeze(process.equation, STENCILS[process.stencil], x, 0)
        return frozen.advance(x, None, begin, begin + t)

    return flow


def spectrum(images: Tensor) -> Tensor:
    """Power of every mode about the channel means, [H, W]."""
    return dct2(images - images.mean((0, 2, 3))[:, None, None]).double().square().mean((0, 1))


def time_of(process: SPDE | ClosedForm, others: Tensor, strength: float) -> tuple[float, Tensor]:
    """t of Σ ln(1 + S_k/N) = Σ ln(1 + D_k/σ²), s = σ/(σ + σ_d), and N there; the tables without their chance."""
    data, zero = spectrum(others), torch.zeros(1, dtype=torch.float64)
    wanted = torch.log1p(data / data.mean() * (1 / strength - 1) ** 2).sum()
    low, high = 0.0, process.T
    for _ in range(16):
        t = 0.5 * (low + high)
        noise = quadrature(process.equation, zero, zero + t)[0].sum()
        known = torch.log1p(spectrum(smoothed(process, t)(others)) / noise).sum()
        low, high = (t, high) if known > wanted else (low, t)
    return t, noise


@torch.no_grad()
def gaps(text: str, photos: Tensor, paintings: Tensor, others: Tensor, strengths: list[float]) -> list[float]:
    """KL in nats at every strength, the mean over the images; strengths are those of ``others``."""
    process, found = built(text, photos.shape[-1]), []
    for strength in strengths:
        t, noise = time_of(process, others, strength)
        flow = smoothed(process, t)
        found.append(0.5 * float(((flow(photos) - flow(paintings)).square() / noise).sum((1, 2, 3)).mean()))
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("dataset")
    words.add_argument("--case", action="append", default=[], help="TOTAL,LAMBDA such as 30,0.05; may be repeated")
    words.add_argument("--images", type=int, default=64)
    words.add_argument("--strokes", type=int, default=6)
    words.add_argument("--strengths", type=float, nargs="+", default=[0.4, 0.6, 0.8])
    options = words.parse_args()
    data = open_dataset(options.dataset)
    if len(data) < 2 * options.images:
        words.error(f"--images: got {options.images}, and {len(data)} images; expected twice as many at least")
    places = torch.linspace(0, len(data) - 1, 2 * options.images).long().numpy()
    pictures = torch.from_numpy(data.images[places].copy()).float() / 255
    photos, others = pictures[::2], pictures[1::2]
    paintings = torch.stack([strokes(x, options.strokes) for x in photos])
    off = float((photos - paintings).square().mean()) ** 0.5
    print(f"{len(photos)} images, {options.strokes} colors, rms {off:.4f}")
    print("| case | " + " | ".join(f"{s:g}" for s in options.strengths) + " |")
    print("|---" * (1 + len(options.strengths)) + "|")
    for text in ("ve", *options.case):
        row = gaps(text, photos, paintings, others, options.strengths)
        print(f"| {text} | " + " | ".join(f"{x:.1f}" for x in row) + " |", flush=True)


if __name__ == "__main__":
    main()
