"""The noise as it was added (DDPM; Vandersanden et al. 2024): for any process that scales the image.

    n(z, t) ≈ E[s_t(z0) ⊙ ξ | Z_t = z],     z = 2u − 1,     loss |n − s_t ⊙ ξ|², mean over an image's numbers

so that the image expected at the end is (z − n)/a_t.
"""

from typing import ClassVar

from torch import Tensor

from anisodiff.models.conditional import Signed
from anisodiff.processes.conditional import ScaledGaussian


class ScaledNoiseModel(Signed[ScaledGaussian]):
    """A predictor of noise."""

    default_sampler: ClassVar[str] = "posterior"
    predicts: ClassVar[str] = "noise"

    def image(self, z: Tensor, t: Tensor) -> Tensor:
        """E[z0 | z] as the network sees it, in [−1, 1] but for its errors; NFE 1."""
        return self.image_from(z, t, self.predict(z, t))

    def image_from(self, z: Tensor, t: Tensor, n: Tensor) -> Tensor:
        """E[z0 | z] from the noise."""
        return (z - n) / self.process.signal_power(t).sqrt().to(z.dtype)[:, None, None, None]

    def denoised(self, z: Tensor, t: Tensor) -> Tensor:
        """E[x0 | u], with values that images can have: late in time errors are divided by a small number."""
        return self.from_coordinates(self.image(z, t).clamp(-1, 1))
