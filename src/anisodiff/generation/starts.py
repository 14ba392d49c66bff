"""Priors by name, in words, and with what they leak.

A prior that starts from images carries them into the samples as far as the terminal state remembers its source. How
far that is gets measured (`diagnostics.forgetting`) on some of the very images, and is said beside every result.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.generation.conditional import PAIRS, conditional_prior
from anisodiff.generation.pool import Pictures, Pool, open_pool
from anisodiff.priors import GaussianPrior, Prior, SimulatedPrior
from anisodiff.processes import Process

MEASURED_ON = 256
FITTED_TO = 2048


@dataclass(frozen=True, kw_only=True)
class Leakage:
    """What terminal states still know of the image they came from, measured on ``images`` of them."""

    images: int
    correlation: float
    snr_of_the_mean: float | None
    """Signal-to-noise ratio of the mean color; None where there is no noise."""
    found_again: float
    """How often the better of two detectors finds the source among the images; by chance 1/images."""

    def line(self) -> str:
        """For people."""
        mean = "no noise" if self.snr_of_the_mean is None else f"signal-to-noise {self.snr_of_the_mean:.2g}"
        return (
            f"residual dependence on {self.images} images: correlation {self.correlation:.2f}, mean color {mean}, "
            f"source found again in {100 * self.found_again:.1f} % (chance {100 / self.images:.1f} %)"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Start:
    """A prior in force."""

    name: str
    prior: Prior
    words: str
    pool: Pool | None = None
    """The images it starts from, or was fitted to just now; None for what is in the checkpoint."""
    process: Process
    trained_on: bool = False
    """Whether training images may be among them."""

    def leakage(self, device: torch.device, progress: Callable[[int, int], None] | None = None) -> Leakage | None:
        """Measured for a prior whose draws start from images; None for one that needs none, or has too few."""
        if self.pool is None or len(self.pool) < 2 or isinstance(self.prior, GaussianPrior):
            return None
        from anisodiff.forgetting import forgetting

        found = forgetting(self.process, self.pool.some(MEASURED_ON, device), progress=progress)
        return Leakage(
            images=found.images,
            correlation=found.correlation,
            snr_of_the_mean=None if found.snr[0] == float("inf") else found.snr[0],
            found_again=max(found.found_again, found.found_by_pixels),
        )

    def note(self, leakage: Leakage | None) -> str | None:
        """What must stand beside a number that used this prior; None where nothing leaks."""
        if self.pool is None or isinstance(self.prior, GaussianPrior):
            return None
        measured = leakage.line() if leakage is not None else "residual dependence not measured: one image only"
        if not self.trained_on:
            return f"note: samples carry something of these held-out images; never score against them; {measured}"
        return f"leakage: samples carry something of the images they start from; say so beside any number; {measured}"


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What priors are made from."""

    process: Process
    stored: Mapping[str, Tensor] | None
    """prior.safetensors of the checkpoint."""
    pictures: Pictures | None
    """Where images lie; opened only by the priors that need them."""
    channels: int
    size: tuple[int, int]
    data: Mapping[str, Any]
    """What the checkpoint says of its training data: fingerprint, images, source."""
    device: torch.device

    def images(self, otherwise: str) -> Pool:
        """The images of the model's shape; where none were given, ``otherwise`` says why they are needed."""
        if self.pictures is None:
            source = self.data.get("source") or "unknown"
            raise ValueError(f"{otherwise}: say where they lie with --images (trained on: {source})")
        return open_pool(self.pictures, self.channels, self.size)

    def is_training_set(self, pool: Pool) -> bool:
        """By the fingerprint of all pixels."""
        return pool.fingerprint == self.data.get("fingerprint")

    def whose(self, pool: Pool) -> str:
        """The images in words."""
        return f"{pool.name} ({'the training set' if self.is_training_set(pool) else 'not the training set as such'})"


def _gaussian(ground: Ground) -> Start:
    words = "a Gaussian fitted to terminal states of training images"
    if ground.stored is not None:
        try:
            mean, root = (ground.stored[name].to(ground.device).float() for name in ("mean", "root"))
        except KeyError as error:
            raise ValueError(
                f"the checkpoint's prior has no {error}: it is of another version; train it anew"
            ) from None
        words += ", from the checkpoint; no image is needed"
        return Start(name="gaussian", prior=GaussianPrior(mean, root), words=words, process=ground.process)
    pool = ground.images("the checkpoint holds no fitted prior, images are needed to fit one")
    prior = ground.process.prior(pool.some(FITTED_TO, ground.device))
    words = f"a Gaussian fitted just now to terminal states of {ground.whose(pool)}"
    return Start(name="gaussian", prior=prior, words=words, pool=pool, process=ground.process)


def _simulate(ground: Ground) -> Start:
    pool = ground.images("prior 'simulate' starts from images")
    words = f"the forward process run from {ground.whose(pool)}"
    prior = SimulatedPrior(ground.process, pool.images)
    return Start(name="simulate", prior=prior, words=words, pool=pool, process=ground.process, trained_on=True)


def _conditional(ground: Ground) -> Start:
    pool = ground.images("prior 'conditional' starts from images")
    exact = "closed_form" in ground.process.capabilities
    law = "exact: this process is linear" if exact else f"an approximation, regressed on {PAIRS} simulated pairs"
    words = f"the Gaussian of the terminal state given one of {ground.whose(pool)}; {law}"
    prior = conditional_prior(ground.process, pool, ground.device)
    return Start(name="conditional", prior=prior, words=words, pool=pool, process=ground.process, trained_on=True)


def _heldout(ground: Ground) -> Start:
    pool = ground.images("prior 'heldout' starts from images")
    if ground.is_training_set(pool):
        raise ValueError(
            f"prior 'heldout' wants images outside the training set, but {pool.name} have its fingerprint "
            f"({pool.fingerprint[:12]}); give others, or use prior 'simulate'"
        )
    words = f"the forward process run from {pool.name}, which are not the training set"
    return Start(
        name="heldout",
        prior=SimulatedPrior(ground.process, pool.images),
        words=words,
        pool=pool,
        process=ground.process,
    )


_MAKERS: Mapping[str, Callable[[Ground], Start]] = MappingProxyType(
    {"gaussian": _gaussian, "simulate": _simulate, "conditional": _conditional, "heldout": _heldout}
)
PRIORS = tuple(_MAKERS)


def start_of(name: str, ground: Ground) -> Start:
    """The prior of that name; an unknown one is refused with the nearest."""
    if name not in _MAKERS:
        raise ValueError(f"unknown prior {name!r}; {notation.nearest(str(name), PRIORS)}")
    return _MAKERS[name](ground)
