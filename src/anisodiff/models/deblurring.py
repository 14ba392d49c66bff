"""Inverse heat dissipation (Rissanen et al. 2023): the network predicts the step to the next less blurred level.

    u + n(u, k) ≈ E[m_{k−1}(x0) | U_k = u],      loss |m_{k−1}(x0) − (u_k + n)|², summed over the values of an image

The loss is a sum, as published: with a mean, the gradients of residuals of size 0.01 would be near Adam's ε.
"""

from typing import ClassVar

from torch import Tensor

from anisodiff.dct import dct2, idct2
from anisodiff.models.conditional import ConditionalModel
from anisodiff.processes.base import TrainingPair
from anisodiff.processes.heat_dissipation import HeatDissipation


class DeblurringModel(ConditionalModel[HeatDissipation]):
    """Deblurring steps for images in [0, 1]."""

    default_sampler: ClassVar[str] = "deblurring"
    predicts: ClassVar[str] = "deblurring_step"

    def to_coordinates(self, u: Tensor) -> Tensor:
        return u

    def from_coordinates(self, z: Tensor) -> Tensor:
        return z

    def regression_target(self, pair: TrainingPair) -> Tensor:
        return pair.target

    def loss(self, pair: TrainingPair, t: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        """Squared error summed over the values of an image, [B]."""
        return super().loss(pair, t, dropout_key) * pair.state[0].numel()

    def denoised(self, z: Tensor, t: Tensor) -> Tensor:
        """One step, then the rest of the blur inverted, by at most a factor of 20 in power per mode."""
        below = (t - 1 / self.process.levels).clamp(min=0)
        decay = self.process.decay(below, z).clamp(min=0.05**0.5)
        return idct2(dct2(z + self.predict(z, t)) / decay)
