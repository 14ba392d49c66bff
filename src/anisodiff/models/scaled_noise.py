"""Edge-preserving noise (Vandersanden et al. 2024): the network is the noise with its scale.

    n(z, t) ≈ E[b_t(z0) ⊙ ξ | Z_t = z],     z = 2u − 1,     loss |n − b_t ⊙ ξ|², mean over an image's numbers

so that the image expected at the end is (z − n)/√ᾱ.
"""

from typing import ClassVar

from torch import Tensor

from anisodiff.models.conditional import Signed
from anisodiff.processes.edge_preserving import EdgePreserving


class ScaledNoiseModel(Signed[EdgePreserving]):
    """A predictor of noise."""

    usual: ClassVar[str] = "posterior"

    def image(self, z: Tensor, t: Tensor) -> Tensor:
        """E[z0 | z] as the network sees it, in [−1, 1] but for its errors; one evaluation."""
        return (z - self.answer(z, t)) / self.process.kept(t).sqrt().to(z.dtype)[:, None, None, None]

    def denoised(self, z: Tensor, t: Tensor) -> Tensor:
        """E[x0 | u], with values that images can have: late in time errors are divided by a small number."""
        return self.from_coordinates(self.image(z, t).clamp(-1, 1))
