"""Diagnosis of a forward process: residual dependence of U_T on U_0 (paper, Sec. 4.3), stiffness of its time step.

A prior that does not depend on data is valid only if U_T is nearly independent of the image U_0. Measured on N
images, from two independent simulations a, b of each:

- SNR per frequency band: signal Cov(a, b), noise Var(a) − Cov(a, b)
- mutual information I(U_0; U_T) ≤ ½ Σ_k log2(1 + S_k/N_k), an upper bound for Gaussian noise, and the mismatch
  KL(p_T ‖ N(μ, N)) = ½ Σ_k (S_k/N_k − ln(1 + S_k/N_k)) of a Gaussian prior with the noise power only; S_k and N_k
  from `paired_runs`, channels taken as independent
- correlation of U_T and U_0 over all pixels
- how often the source of b is identified among the N images: by the best linear detector (per DCT mode, regression
  of a on U_0 and its residual variance, then maximum likelihood), and by the nearest neighbor in pixels
- normality of U_T given U_0: D'Agostino–Pearson test per pixel, from many simulations of a few images
- systematic change of the channel means (the paper stencil does not conserve them)

The stiffness is 8 ∫α1 over the longest time step; 8 bounds the spectrum of −L. Explicit steps are stable below 2.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisodiff.dct import dct2, radial_bands
from anisodiff.integrators.chebyshev import SPECTRUM
from anisodiff.paired_runs import Sums, add_runs, signal_and_noise
from anisodiff.processes.base import EquationProcess, Process
from anisodiff.tensors import to_float64

Progress = Callable[[int, int], None]
_TARGET_SNR, _LIMIT = 0.01, 0.05
_MULTIPLE = 10.0
"""Of chance: the identification rate that means dependence."""
_PERMUTATIONS = 19
"""Of the permutation test of the mutual information: its level is 1/20."""
_COARSE = 0.25
"""A detection limit of the SNR above which significant information leaves the conclusion open."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The measurements, with a conclusion and advice."""

    images: int
    size: tuple[int, int]
    snr: list[float]
    """Per band, from the mean color (band 0) to the finest detail."""
    terminal_snr: float
    """Of all modes together."""
    information: float
    """I(U_0; U_T), at most, in bits per image."""
    information_by_chance: float
    """The largest of 19 such estimates with images and terminal states paired at random: a larger ``information`` is
    distinguishable from 0 at the 5% level. Infinite: not tested."""
    information_found: bool
    """Whether ``information``, and with it ``prior_mismatch``, are distinguishable from 0."""
    prior_mismatch: float
    """KL divergence from p_T to a Gaussian with the noise power only, in bits per image."""
    correlation: float
    found_again: float
    """Rate at which the linear detector identifies the source."""
    found_by_pixels: float
    """Rate at which the nearest neighbor in pixels identifies the source."""
    found_by_chance: float
    non_gaussian_pixels: float
    """Share of pixels whose normality is rejected at the 1% level; about 0.015 for a Gaussian."""
    excess_kurtosis: float
    mean_drift: float
    """Root mean square over images and channels of E[mean U_T] − mean U_0."""
    mean_drift_sigma: float
    """Its square, in standard errors."""
    mean_noise: float
    """Standard deviation of the channel mean of U_T given U_0."""
    stiffness: float | None
    """8 ∫α1 over the longest time step; None without time steps."""
    forgets: bool | None
    """Whether U_T is nearly independent of U_0; None: not decided, the images are too few."""
    verdict: str
    advice: list[str]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinities are None."""
        values = asdict(self)
        values["snr"] = [v if math.isfinite(v) else None for v in self.snr]
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def identified_from(images: int) -> float:
    """The identification rate from which U_T depends on U_0: 10 times chance; for few images, midway to 1.

    For `ve` at σ = 50 and 32² it is 1 to 5 times chance (1000 images).
    """
    chance = 1.0 / images
    return min(_MULTIPLE * chance, 0.5 * (1.0 + chance))


def _is_identified(rate: float, images: int) -> bool:
    """Whether the source is identified more often than `identified_from`, and by chance in less than 1% of cases.

    Of two or three images all are identified by chance in more.
    """
    from scipy.stats import binom

    found = round(rate * images)
    return rate > identified_from(images) and float(binom.sf(found - 1, images, 1.0 / images)) < 0.01


def snr_threshold(images: int) -> float:
    """The SNR of a band from which U_T depends on U_0: 1/20, or the detection limit with ``images`` images."""
    return max(_LIMIT, 3.0 / math.sqrt(images))


def step_stiffness(process: Process) -> float | None:
    """8 ∫α1 over the longest step, 8 α1(t_k) Δt for explicit steps; None without time steps."""
    step = getattr(process, "step", None)
    if not isinstance(process, EquationProcess) or step is None:
        return None
    t = torch.tensor(step.jumps(process.equation), dtype=torch.float64)
    amount = process.equation.smoothing(t[:-1], t[1:])
    if process.taming is not None:
        amount = process.equation.alpha1(t[:-1]) * t.diff()
    return SPECTRUM * float(amount.max())


def _advice(process: Process, snr: list[float], loud: list[int], *, drifts: bool) -> list[str]:
    """What to change, in the keys that ``process`` has."""
    lines = []
    spde = process if isinstance(process, EquationProcess) else None
    if any(math.isinf(ratio) for ratio in snr):
        return ["set intensity > 0"] if spde else []
    if loud:
        worst = max(loud, key=lambda k: snr[k])
        if spde:
            lines.append(
                f"raise the intensity at T about {math.sqrt(snr[worst] / _TARGET_SNR):.1f} times: the SNR of band "
                f"{worst} then falls from {snr[worst]:.2g} to {_TARGET_SNR:g} (SNR ∝ 1/intensity²)"
            )
        if spde and any(k > 0 for k in loud):
            lines.append(
                "a larger diffusivity lowers the SNR of bands above 0, but not that of the mean color (band 0)"
            )
        if process.own_prior == "simulate":
            lines.append("start from terminal states of data images, as published (--prior simulate), and report it")
        else:
            lines.append("or keep the process and start from a Gaussian fitted to U_T (--prior gaussian)")
    if spde and drifts and spde.stencil == "paper":
        lines.append("the paper stencil changes the channel means: set stencil=flux, which conserves them")
    stiffness = step_stiffness(process)
    if spde and spde.taming and stiffness is not None and stiffness >= 2:
        state = "unstable" if spde.taming.norm == "none" else "unstable, bounded only by its taming"
        lines.append(
            f"the explicit step is {state}: set dt well below {2 / stiffness * spde.taming.dt:.2g}, "
            "or stencil=flux and step=exponential"
        )
    return lines


def _conclusion(
    snr: list[float], identified: float, images: int, *, informed: bool = False
) -> tuple[bool | None, list[int], str]:
    """Whether U_T is nearly independent of U_0, the bands above the threshold, and both in words.

    ``identified``: the rate of the better detector; ``informed``: the mutual information is significant. With ten
    images or fewer independence cannot be shown: ten times the chance rate is at least 1, and the smallest detectable
    SNR is close to 1. With fewer than 144 a significant information may be that of an SNR up to that limit.
    """
    if any(math.isinf(ratio) for ratio in snr):
        return False, [], "U_T is a function of U_0: the process has no noise"
    threshold = snr_threshold(images)
    loud = [k for k, ratio in enumerate(snr) if ratio > threshold]
    met = []
    if loud:
        bands = f"band{'s' * (len(loud) > 1)} {', '.join(map(str, loud))}"
        meaning = f"the smallest that {images} images show" if threshold > _LIMIT else "5% of the noise power"
        met.append(f"SNR above {threshold:.2g} ({meaning}) in {bands}{' (the mean color)' * (loud == [0])}")
    if _is_identified(identified, images):
        met.append(f"the source is identified {identified * images:.0f} times as often as by chance")
    if met:
        return False, loud, f"U_T depends on U_0: {'; '.join(met)}"
    if images <= _MULTIPLE:
        return None, loud, f"not decided: {images} images are too few"
    if informed and threshold > _COARSE:
        enough = math.ceil((3.0 / _COARSE) ** 2)
        words = f"U_T depends on U_0, but {images} images do not tell how much; give {enough} or more"
        return None, loud, f"not decided: {words}"
    return True, loud, "U_T is nearly independent of U_0: a prior that does not depend on data is valid"


def _terminal(process: Process, images: Tensor, generator: torch.Generator, tick: Callable[[int], None]) -> Tensor:
    parts = []
    for part in torch.split(images, 64):
        parts.append(process.draw(part, process.T, generator))
        tick(len(part))
    return torch.cat(parts)


def _identified(sources: Tensor, first: Tensor, second: Tensor) -> float:
    """Share of ``second`` [N, D] assigned to its own row of ``sources`` by the detector fitted on ``first``."""
    x, a = sources - sources.mean(0), first - first.mean(0)
    power = x.square().mean(0)
    gain = (x * a).mean(0) / power.clamp(min=1e-12)
    rest = (a.square().mean(0) - gain.square() * power).clamp(min=1e-12)
    template = gain * x / rest.sqrt()
    whitened = (second - first.mean(0)) / rest.sqrt()
    distance = template.square().sum(1)[None, :] - 2.0 * whitened @ template.mT
    return float((distance.argmin(1) == torch.arange(len(x), device=x.device)).double().mean())


def _information(
    modes0: Tensor, centered1: Tensor, centered2: Tensor, seed: int, permutations: int
) -> tuple[float, float, float]:
    """Mutual information and prior mismatch in bits per image, from DCT modes [N, C, H, W].

    The third is the largest mutual information with random permutations of both sets of terminal states.
    """
    count, channels = modes0.shape[:2]
    sums, x = Sums(), modes0 - modes0.mean(0)

    def bits() -> tuple[float, float]:
        signal, noise = signal_and_noise(sums, count * channels)
        ratio, each = signal / noise.clamp(min=1e-300), 0.5 * channels / math.log(2)
        return each * float(ratio.log1p().sum()), each * float((ratio - ratio.log1p()).sum())

    add_runs(sums, x, [centered1, centered2])
    information, mismatch = bits()
    rng, chance = np.random.default_rng((seed % 2**63, permutations)), []  # a stream apart from that of the states
    for _ in range(permutations):
        one, two = (v[torch.from_numpy(rng.permutation(count)).to(v.device)] for v in (centered1, centered2))
        sums.replace("cross with image", (one + two) * x)  # power and data stay what they were
        sums.replace("signal", one * two)
        chance.append(bits()[0])
    return information, mismatch, max(chance, default=math.inf)


def diagnose(
    process: Process, images: Tensor, *, seed: int = 0, bands: int = 8, replicates: int = 128,
    permutations: int = _PERMUTATIONS, progress: Progress | None = None,
) -> Diagnosis:  # fmt: skip
    """Diagnose ``process`` on ``images`` [N, C, H, W] in [0, 1]; use a few hundred images or more.

    ``replicates``: simulations of each of a few images for the test of normality, 20 or more; ``permutations``: of
    the test of the mutual information, 0 for none.
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

    def ratio(chosen: Tensor) -> float:
        s, p = float(signal[chosen].sum().clamp(min=0)), float(power[chosen].sum())
        return s / max(p - s, 1e-300) if s < p else math.inf

    snr, terminal_snr = [ratio(band == k) for k in range(bands)], ratio(band >= 0)
    noiseless = any(math.isinf(v) for v in snr)
    information, mismatch, by_chance = math.inf, math.inf, 0.0
    if not noiseless:
        information, mismatch, by_chance = _information(modes0, centered1, centered2, seed, permutations)
    informed = information > by_chance

    x, u = (to_float64(v) - to_float64(v).mean() for v in (images, first))
    correlation = float((x * u).mean() / (x.square().mean() * u.square().mean()).sqrt().clamp(min=1e-300))

    repeated = images[:probes].repeat_interleave(replicates, 0)
    runs = to_float64(_terminal(process, repeated, generator, tick))
    values = runs.reshape(probes, replicates, -1).cpu().numpy()
    noisy = values.std(1) > 1e-9
    rejected, excess = 0.0, 0.0
    if noisy.any():
        tested = values.transpose(1, 0, 2)[:, noisy]
        rejected = float((normaltest(tested, axis=0).pvalue < 0.01).mean())
        excess = float(kurtosis(tested, axis=0, bias=False).mean())
    channel_means = runs.mean((-2, -1)).reshape(probes, replicates, -1)
    shift1, shift2 = (to_float64(v - images).mean((-2, -1)).flatten() for v in (first, second))
    product = shift1 * shift2  # its mean is the squared systematic part: the noise of the two is independent
    mean_drift = math.sqrt(max(0.0, float(product.mean())))
    sigma = float(product.mean() / (product.std() / math.sqrt(len(product))).clamp(min=1e-300))

    linear = _identified(modes0.flatten(1), modes1.flatten(1), modes2.flatten(1))
    nearest = torch.cdist(to_float64(second).flatten(1), to_float64(images).flatten(1)).argmin(1).cpu()
    pixels = float((nearest == torch.arange(count)).double().mean())
    independent, loud, verdict = _conclusion(snr, max(linear, pixels), count, informed=informed)
    return Diagnosis(
        images=count,
        size=(height, width),
        snr=snr,
        terminal_snr=terminal_snr,
        information=information,
        information_by_chance=by_chance,
        information_found=informed,
        prior_mismatch=mismatch,
        correlation=correlation,
        found_again=linear,
        found_by_pixels=pixels,
        found_by_chance=1.0 / count,
        non_gaussian_pixels=rejected,
        excess_kurtosis=excess,
        mean_drift=mean_drift,
        mean_drift_sigma=sigma,
        mean_noise=float(channel_means.std(1).mean()),
        stiffness=step_stiffness(process),
        forgets=independent,
        verdict=verdict,
        advice=_advice(process, snr, loud, drifts=sigma > 4 and mean_drift > 1e-6),
    )
