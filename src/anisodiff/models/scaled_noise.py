"""Noise prediction (DDPM; Vandersanden et al. 2024), for any process that scales the image.

    n(z, t) ≈ E[s_t(z0) ⊙ ξ | Z_t = z],     z = 2u − 1,     loss |n − s_t ⊙ ξ|², mean over the values of an image

The denoised image is (z − n)/a_t.
"""

from typing import ClassVar

from torch import Tensor

from anisodiff.models.conditional import Signed
from anisodiff.processes.conditional import ScaledGaussian


class ScaledNoiseModel(Signed[ScaledGaussian]):
    """The network predicts the noise."""

    default_sampler: ClassVar[str] = "posterior"
    predicts: ClassVar[str] = "noise"

    def image(self, z: Tensor, t: Tensor) -> Tensor:
        """E[z0 | z], not clipped to [−1, 1]; NFE 1."""
        return self.image_from(z, t, self.predict(z, t))

    def image_from(self, z: Tensor, t: Tensor, n: Tensor) -> Tensor:
        """E[z0 | z] from the predicted noise ``n``."""
        return (z - n) / self.process.signal_power(t).sqrt().to(z.dtype)[:, None, None, None]

    def denoised(self, z: Tensor, t: Tensor) -> Tensor:
        """E[x0 | u], clipped to [0, 1]: near T errors are divided by a small a_t."""
        return self.from_coordinates(self.image(z, t).clamp(-1, 1))
