"""Inverse heat dissipation (Rissanen et al. 2023): the network is the step to the next less blurred level.

    u + n(u, k) ≈ E[m_{k−1}(x0) | U_k = u],      loss |m_{k−1}(x0) − (u_k + n)|², summed over an image's numbers

The sum is the published one: with a mean, residuals of size 0.01 have gradients near Adam's ε.
"""

from typing import ClassVar

from torch import Tensor

from anisodiff.dct import dct2, idct2
from anisodiff.models.conditional import ConditionalModel
from anisodiff.processes.base import TrainingPair
from anisodiff.processes.heat_dissipation import HeatDissipation


class DeblurringModel(ConditionalModel[HeatDissipation]):
    """A step along the levels; images in [0, 1] as they are."""

    default_sampler: ClassVar[str] = "deblurring"
    predicts: ClassVar[str] = "deblurring_step"

    def to_coordinates(self, u: Tensor) -> Tensor:
        return u

    def from_coordinates(self, z: Tensor) -> Tensor:
        return z

    def regression_target(self, pair: TrainingPair) -> Tensor:
        return pair.target

    def loss(self, pair: TrainingPair, t: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        """Squared error summed over an image's numbers, [B]."""
        return super().loss(pair, t, dropout_key) * pair.state[0].numel()

    def denoised(self, z: Tensor, t: Tensor) -> Tensor:
        """One step, and the rest of the blur undone where a twentieth of the power is left; no more is known here."""
        below = (t - 1 / self.process.levels).clamp(min=0)
        decay = self.process.decay(below, z).clamp(min=0.05**0.5)
        return idct2(dct2(z + self.predict(z, t)) / decay)
