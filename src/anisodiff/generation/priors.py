"""Priors by name: where sampling starts, and how much of their images it reveals.

    auto          the one that belongs to the process (`Process.own_prior`): gaussian, but for heat-dissipation
    gaussian      a Gaussian fitted to terminal states; usually stored in the checkpoint, then no image is needed
    simulate      the forward process run from images
    conditional   per DCT mode Û_T ≈ μ_T + g·(Û_0 − μ_0) + √R ξ̂ given an image; exact (g = e^{−A z}, R = q φ) for
                  linear processes, else regressed on simulated pairs: g = E[x y]/E[x²], R = E(y − g x)² with x, y
                  the centered modes, pooled over channels
    heldout       as simulate, from images outside the training set

A prior that starts from images carries them into the samples as far as the terminal state depends on its source.
This dependence is measured (`anisodiff.diagnosis`) on some of the same images and reported beside every result.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisodiff.data import Dataset, is_dataset, open_dataset, open_source, read_images
from anisodiff.data.dataset import fingerprint
from anisodiff.dct import dct2
from anisodiff.diagnosis import diagnose
from anisodiff.gaussian_kernel import grid_decay
from anisodiff.noise import KeyedNoise, combine
from anisodiff.notation import counted
from anisodiff.priors import ConditionalPrior, GaussianPrior, Images, Prior, take
from anisodiff.processes import Process
from anisodiff.runtime.progress import Progress
from anisodiff.tensors import highest_precision, to_float64

PriorImages = str | Path | Dataset | Tensor
"""A prepared dataset, or a folder, zip, npy or npz of pictures, or a tensor [N, C, H, W] in [0, 1]."""

PRIORS = ("auto", "gaussian", "simulate", "conditional", "heldout")
_OTHER = "another method than published, whose prior is {}; "
MOST_DECODED, MEASURED_ON, FITTED_TO, PAIRS = 200_000, 256, 2048, 512
"""Images: decoded at once at most; to measure leakage on; to fit a Gaussian to; pairs to regress on."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Images [N, C, H, W] of the model's shape, or their latents."""

    images: Images
    fingerprint: str
    """As a prepared dataset's: equal fingerprints mean equal images."""
    name: str

    def __len__(self) -> int:
        return len(self.images)

    def some(self, count: int, device: torch.device) -> Tensor:
        """At most ``count`` of them, evenly spread over the set, float32 or float64 in [0, 1]."""
        index = np.linspace(0, len(self) - 1, min(count, len(self))).round().astype(np.int64)
        return take(self.images, torch.from_numpy(index).to(device))


def open_pool(source: PriorImages, channels: int, size: tuple[int, int]) -> Pool:
    """The images of ``source``; pictures are cropped and resized, a prepared dataset or a tensor must fit."""
    if isinstance(source, Tensor):
        _check_shape("the images", tuple(source.shape[1:]), (channels, *size))
        if not len(source) or not bool(((source >= 0) & (source <= 1)).all()):
            raise ValueError("the images: expected a tensor [N, C, H, W] of numbers in [0, 1], one image at least")
        pixels = (source * 255).round().to(torch.uint8).cpu().numpy()
        return Pool(images=source, fingerprint=fingerprint(pixels), name=counted(len(source), "image"))
    if isinstance(source, Dataset) or is_dataset(source):
        dataset = source if isinstance(source, Dataset) else open_dataset(source)
        _check_shape(str(dataset.path), (dataset.channels, *dataset.size), (channels, *size))
        name = _named(len(dataset), dataset.path)
        return Pool(images=dataset.images, fingerprint=dataset.fingerprint, name=name)
    return _decoded(Path(source), channels, size)


def _decoded(path: Path, channels: int, size: tuple[int, int]) -> Pool:
    """Images in memory, by the rule of `anisodiff data prepare`: the same pictures have the same fingerprint."""
    source = open_source(path)
    if len(source) > MOST_DECODED:
        raise ValueError(
            f"{path} holds {len(source)} pictures, expected at most {MOST_DECODED:,} to decode now; "
            "prepare them once with 'anisodiff data prepare'"
        )
    images = read_images(source, size=size, channels=channels)
    return Pool(images=images, fingerprint=fingerprint(images), name=_named(len(images), path))


def _named(count: int, path: Path) -> str:
    """The name without its folders: protocols are published."""
    return f"{counted(count, 'image')} of {path.resolve().name}"


def _check_shape(what: str, got: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if got != expected:
        shapes = ["×".join(map(str, shape)) for shape in (got, expected)]
        raise ValueError(
            f"{what}: got {shapes[0]} (channels, height, width), the model makes {shapes[1]}; prepare them again"
        )


def conditional_prior(process: Process, pool: Pool, device: torch.device, pairs: int = PAIRS) -> ConditionalPrior:
    """Exact for a linear process; else regressed on ``pairs`` simulated pairs (of at most that many images)."""
    if "closed_form" in process.capabilities:
        return _exact(process, pool, device)
    some = pool.some(pairs, device)
    images = some.repeat(-(-pairs // len(some)), 1, 1, 1)[:pairs]  # a small set meets other noise each time
    keys = combine(0xC09D, torch.arange(len(images), device=device))
    parts = zip(torch.split(images, 128), torch.split(keys, 128))
    states = torch.cat([process.draw(part, process.T, KeyedNoise(key)) for part, key in parts])
    before, after = to_float64(images).mean((0, 2, 3)), to_float64(states).mean((0, 2, 3))
    x = dct2(to_float64(images) - before[:, None, None])
    y = dct2(to_float64(states) - after[:, None, None])
    gain = (x * y).mean((0, 1)) / x.square().mean((0, 1)).clamp(min=1e-300)
    rest = (y - gain * x).square().mean((0, 1))
    gain, rest, before, after = (value.to(images) for value in (gain, rest, before, after))
    return ConditionalPrior(pool.images, gain, rest, before, after)


def _exact(process: Any, pool: Pool, device: torch.device) -> ConditionalPrior:
    one = pool.some(1, device)
    end = torch.full((1,), process.T, dtype=highest_precision(device), device=device)
    gain = grid_decay(process.equation, torch.zeros_like(end), end, one)[0, 0]
    level = one.new_zeros(one.shape[1])
    return ConditionalPrior(pool.images, gain, process.variance(one, 0.0, process.T)[0, 0], level, level)


@dataclass(frozen=True, kw_only=True)
class Leakage:
    """How much terminal states depend on the image they came from, measured on ``images`` of them."""

    images: int
    correlation: float
    snr_of_the_mean: float | None
    """Signal-to-noise ratio of the mean color; None where there is no noise."""
    found_again: float
    """Rate at which the better of two detectors identifies the source among the images; by chance 1/images."""

    def line(self) -> str:
        mean = "no noise" if self.snr_of_the_mean is None else f"signal-to-noise {self.snr_of_the_mean:.2g}"
        return (
            f"residual dependence on {self.images} images: correlation {self.correlation:.2f}, mean color {mean}, "
            f"source identified {100 * self.found_again:.1f}% (chance {100 / self.images:.1f}%)"
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class NamedPrior:
    """A prior with its name, its description, and the images behind it."""

    name: str
    prior: Prior
    description: str
    process: Process
    pool: Pool | None = None
    """The images it starts from, or was fitted to just now; None: it is stored in the checkpoint."""
    heldout: bool = False
    """Whether the images were named as held out, or are those that the run kept aside."""

    @property
    def starts_from_images(self) -> bool:
        return self.pool is not None and not isinstance(self.prior, GaussianPrior)

    def leakage(self, device: torch.device, progress: Progress | None = None) -> Leakage | None:
        """Measured where samples start from images; None where they do not, or there is only one."""
        if self.pool is None or len(self.pool) < 2 or not self.starts_from_images:
            return None
        found = diagnose(self.process, self.pool.some(MEASURED_ON, device), permutations=0, progress=progress)
        return Leakage(
            images=found.images,
            correlation=found.correlation,
            snr_of_the_mean=None if found.snr[0] == float("inf") else found.snr[0],
            found_again=max(found.found_again, found.found_by_pixels),
        )

    def note(self, leakage: Leakage | None) -> str | None:
        """What to report beside every number that used this prior; None where nothing leaks."""
        own = self.process.own_prior
        label = "" if own == "gaussian" else "the method's own prior; " if self.name == own else _OTHER.format(own)
        if not self.starts_from_images:
            return label.removesuffix("; ") or None
        measured = leakage.line() if leakage is not None else "residual dependence not measured: one image only"
        if self.heldout:
            return f"{label}note: samples depend on these held-out images; never score against them; {measured}"
        return (
            f"{label}leakage: samples depend on the images they start from; report it beside any number; {measured}"
        )
