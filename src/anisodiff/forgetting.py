"""Does a process forget its start? What a terminal state U_T still says about the image it came from.

A prior that is drawn without looking at data is right only if it does forget. Measured on a set of images:

- signal-to-noise ratio per frequency band: two independent runs a, b from each image; Cov(a, b) is the signal,
  Var(a) − Cov(a, b) the noise
- correlation of U_T with its source, over all pixels
- how often the source is found again among the N images by the best linear detector: per DCT mode the regression
  of U_T on U_0 and its residual variance are fitted on run a, and run b is assigned to its likeliest source; and,
  for comparison, by the plain nearest neighbor in pixels
- whether U_T given U_0 is Gaussian: replicated runs of a few images, D'Agostino–Pearson test per pixel
- the systematic drift of the channel means (the paper's stencil does not conserve them)
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from anisodiff.dct import dct2, radial_bands
from anisodiff.processes import Process
from anisodiff.tensors import to_float64

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Forgetting:
    """The measurements, with a verdict in words."""

    images: int
    size: tuple[int, int]
    snr: list[float]
    """Per band from the mean (band 0) to the finest detail."""
    correlation: float
    found_again: float
    """By the linear detector."""
    found_by_pixels: float
    """By the nearest neighbor in pixels."""
    found_by_chance: float
    non_gaussian_pixels: float
    """Share of pixels whose normality is rejected at the 1 % level; 0.01 is what a Gaussian gives."""
    excess_kurtosis: float
    mean_drift: float
    """Root mean square over images and channels of E[mean U_T] − mean U_0."""
    mean_drift_sigma: float
    """How many standard errors that is above nothing."""
    mean_noise: float
    """Standard deviation of the channel mean of U_T given U_0."""
    forgets: bool
    verdict: str
    advice: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def _terminal(process: Process, images: Tensor, generator: torch.Generator, tick: Callable[[int], None]) -> Tensor:
    parts = []
    for part in torch.split(images, 64):
        parts.append(process.draw(part, process.T, generator))
        tick(len(part))
    return torch.cat(parts)


def _found_again(sources: Tensor, first: Tensor, second: Tensor) -> float:
    """Share of ``second`` [N, D] assigned to its own row of ``sources`` by the detector fitted on ``first``."""
    x, a = sources - sources.mean(0), first - first.mean(0)
    power = x.square().mean(0)
    gain = (x * a).mean(0) / power.clamp(min=1e-12)
    rest = (a.square().mean(0) - gain.square() * power).clamp(min=1e-12)
    template = gain * x / rest.sqrt()
    seen = (second - first.mean(0)) / rest.sqrt()
    distance = template.square().sum(1)[None, :] - 2.0 * seen @ template.mT
    return float((distance.argmin(1) == torch.arange(len(x), device=x.device)).double().mean())


def often(images: int) -> float:
    """The rate above which the source counts as found: 10 times chance; of few images, halfway from chance to always.

    `ve` itself, at σ = 50 and 32², is found 1 to 5 times as often as by chance (1000 images).
    """
    chance = 1.0 / images
    return min(10.0 * chance, 0.5 * (1.0 + chance))


def loud_from(images: int) -> float:
    """The signal-to-noise ratio from which a band counts as remembered: 1/20, or what N images can tell from zero."""
    return max(0.05, 3.0 / math.sqrt(images))


def _verdict(
    snr: list[float], found: float, images: int, *, drifts: bool, equation: bool
) -> tuple[bool, str, list[str]]:
    """From the ratios, and the better of the two detectors' rates: each is the stronger one at some noise level.

    ``equation``: the process has the coefficients of the SPDE, which the advice names.
    """
    chance = 1.0 / images
    found_too_often = found > often(images)
    loud = [k for k, ratio in enumerate(snr) if ratio > loud_from(images)]
    advice = []
    if any(math.isinf(ratio) for ratio in snr):
        return False, "remembers its start: it has no noise at all", ["set intensity > 0"] if equation else []
    if loud:
        worst = max(loud, key=lambda k: snr[k])
        factor = math.sqrt(snr[worst] / 0.01)
        if equation:
            advice.append(
                f"raise the intensity towards T by about {factor:.1f}x (its square divides the signal-to-noise ratio "
                f"of {snr[worst]:.2g} in band {worst}), or"
            )
        advice.append("keep the process and draw the prior from a Gaussian fitted to U_T, or by simulation; say so")
        if equation and any(k > 0 for k in loud):
            advice.append("a larger diffusivity also removes the bands above 0; it never touches the mean (band 0)")
    if drifts and equation:
        advice.append("the channel means drift: the flux stencil conserves them exactly")
    where = "the mean color" if loud == [0] else f"bands {', '.join(map(str, loud))}"
    if not loud and not found_too_often:
        return True, "forgets its start: a prior that knows no data is right", advice
    remembers = f"its signal stands out of the noise in {where}" if loud else "no band stands out"
    again = f"the source is found up to {found / chance:.0f} times as often as by chance"
    return False, f"remembers its start: {remembers}; {again}", advice


def forgetting(
    process: Process, images: Tensor, *, seed: int = 0, bands: int = 8, replicates: int = 128,
    progress: Progress | None = None,
) -> Forgetting:  # fmt: skip
    """Measure ``process`` on ``images`` [N, C, H, W] in [0, 1]; N of a few hundred or more gives stable numbers.

    ``replicates``: runs of each of a few images, 20 or more, which tell whether U_T given U_0 is Gaussian.
    """
    from scipy.stats import kurtosis, normaltest

    count, height, width = len(images), images.shape[-2], images.shape[-1]
    if count < 2:
        raise ValueError(f"at least 2 images are needed, got {count}")
    bands = min(bands, max(2, min(height, width) // 2 + 1))
    probes = min(4, count)
    done, total = 0, 2 * count + replicates * probes

    def tick(number: int) -> None:
        nonlocal done
        done += number
        if progress:
            progress(done, total)

    generator = torch.Generator(images.device).manual_seed(seed)
    first = _terminal(process, images, generator, tick)
    second = _terminal(process, images, generator, tick)
    modes0, modes1, modes2 = (to_float64(dct2(v)) for v in (images, first, second))

    centered1, centered2 = modes1 - modes1.mean(0), modes2 - modes2.mean(0)
    signal = (centered1 * centered2).mean((0, 1)).cpu()
    power = (0.5 * (centered1.square() + centered2.square())).mean((0, 1)).cpu()
    band = radial_bands(height, width, bands)
    snr = []
    for k in range(bands):
        s, p = float(signal[band == k].sum().clamp(min=0)), float(power[band == k].sum())
        snr.append(s / max(p - s, 1e-300) if s < p else math.inf)

    x, u = (to_float64(v) - to_float64(v).mean() for v in (images, first))
    correlation = float((x * u).mean() / (x.square().mean() * u.square().mean()).sqrt().clamp(min=1e-300))

    repeated = images[:probes].repeat_interleave(replicates, 0)
    runs = to_float64(_terminal(process, repeated, generator, tick))
    standard = runs.reshape(probes, replicates, -1).cpu().numpy()
    noisy = standard.std(1) > 1e-9
    if noisy.any():
        tested = standard.transpose(1, 0, 2)[:, noisy]
        rejected = float((normaltest(tested, axis=0).pvalue < 0.01).mean())
        excess = float(kurtosis(tested, axis=0, bias=False).mean())
    else:
        rejected, excess = 0.0, 0.0
    channel_means = runs.mean((-2, -1)).reshape(probes, replicates, -1)
    mean_noise = float(channel_means.std(1).mean())
    shift1, shift2 = (to_float64(v - images).mean((-2, -1)).flatten() for v in (first, second))
    product = shift1 * shift2  # independent noise: its mean is the squared systematic part
    mean_drift = math.sqrt(max(0.0, float(product.mean())))
    sigma = float(product.mean() / (product.std() / math.sqrt(len(product))).clamp(min=1e-300))

    found = _found_again(modes0.flatten(1), modes1.flatten(1), modes2.flatten(1))
    nearest = torch.cdist(to_float64(second).flatten(1), to_float64(images).flatten(1)).argmin(1).cpu()
    pixels = float((nearest == torch.arange(count)).double().mean())
    forgets, verdict, advice = _verdict(
        snr, max(found, pixels), count, drifts=sigma > 4 and mean_drift > 1e-6,
        equation="equation" in process.capabilities,
    )  # fmt: skip
    return Forgetting(
        images=count,
        size=(height, width),
        snr=snr,
        correlation=correlation,
        found_again=found,
        found_by_pixels=pixels,
        found_by_chance=1.0 / count,
        non_gaussian_pixels=rejected,
        excess_kurtosis=excess,
        mean_drift=mean_drift,
        mean_drift_sigma=sigma,
        mean_noise=mean_noise,
        forgets=forgets,
        verdict=verdict,
        advice=advice,
    )
