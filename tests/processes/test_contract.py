"""A process that has only what the contract asks for: everything else follows from its simulations."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

import anisodiff
from anisodiff.models.base import noise_level
from anisodiff.noise import Randomness
from anisodiff.processes import Process, TrainingPair
from tests.support.oracles import gaussian_images

VE = anisodiff.process("ve", 8, sigma_max=5.0)


class Opaque(Process):
    """VE, seen through the contract alone."""

    @property
    def T(self) -> float:
        return VE.T

    def draw(self, x0: Tensor, t: Tensor | float, rng: Randomness = None) -> Tensor:
        return VE.draw(x0, t, rng)

    def path(self, x0: Tensor, times: Sequence[float], rng: Randomness = None) -> list[Tensor]:
        return VE.path(x0, times, rng)

    def training_pair(self, x0: Tensor, t: Tensor, rng: Randomness = None) -> TrainingPair:
        return VE.training_pair(x0, t, rng)

    def identity(self) -> dict[str, Any]:
        return {"kind": "opaque"}


def test_statistics_of_simulations_are_those_of_the_closed_form():
    """V within 4 standard errors of 600 pairs in every mode; S where it stands out of the noise; levels rise."""
    images = gaussian_images(600, 8).float()
    found, exact = (process.estimate_statistics(images) for process in (Opaque(), VE))
    t = torch.tensor([0.2, 0.6, 1.1], dtype=torch.float64)
    powers = []
    for statistics in (found, exact):
        place = statistics.locate(t)
        signal, noise = (
            statistics.at(table, *place).exp() for table in (statistics.log_signal, statistics.log_noise)
        )
        powers.append((signal, signal + noise))
    (signal, power), (signal_exact, power_exact) = powers
    # interpolation between phases adds to chance: 3% of V
    assert ((power / power_exact - 1).abs() < 4 * (2 / 1200) ** 0.5 + 0.03).all()
    strong = signal_exact > power_exact / 4
    assert strong.float().mean() > 0.1
    assert ((signal / signal_exact - 1)[strong].abs() < 0.2).all()
    assert (noise_level(found)[0].diff() > -1e-3).all()


def test_what_follows_from_the_contract():
    process, t = Opaque(), torch.tensor([0.3, 1.0], dtype=torch.float64)
    assert process.capabilities == frozenset()
    assert process.learns_drift is False
    assert torch.equal(process.snap_to_grid(t), t)
    assert process.compiled() is process
    prior = process.prior(gaussian_images(256, 8).float())
    spread = prior.draw(400, torch.Generator().manual_seed(0)).std()
    assert abs(float(spread) / 5.0 - 1) < 0.05  # σ_max
