"""Flow matching (Lipman et al. 2023): the network is the velocity.

    w(z, t) ≈ E[dZ_t/dt | Z_t = z],     z = 2u − 1,     loss |w − ((1 − σmin)ξ − z0)|², mean over an image's numbers

Since Z_t = (1 − t)z0 + (t + σmin(1 − t))ξ, the image expected at the end is (1 − σmin)z − (t + σmin(1 − t))w.
"""

from typing import ClassVar

from torch import Tensor

from anisodiff.models.conditional import Signed
from anisodiff.processes.base import TrainingPair
from anisodiff.processes.flow_matching import FlowMatching


class VelocityModel(Signed[FlowMatching]):
    """A velocity field, in our time: from the image towards the noise."""

    default_sampler: ClassVar[str] = "heun"
    answers: ClassVar[str] = "velocity"

    def velocity(self, z: Tensor, t: Tensor) -> Tensor:
        """dz/dt at times ``t`` ([1] or [B]); NFE 1."""
        return self.answer(z, t)

    @property
    def path_obstacle(self) -> str:
        return ""

    def path_rate(self, pair: TrainingPair, t: Tensor) -> Tensor:
        """½ g²‖error of the score‖² = (1 − t)/s·‖w − dz/dt‖² for the equation with noise g² = 2s/(1 − t).

        s = t + σmin(1 − t), and the score is −(z + (1 − t)w)/s.
        """
        off = self.velocity(self.to_coordinates(pair.state), t) - self.wanted(pair)
        return (1 - t) / self.process.noise(t) * off.double().square().sum((-3, -2, -1))

    def denoised(self, z: Tensor, t: Tensor) -> Tensor:
        """E[x0 | u]."""
        noise = self.process.noise(t).to(z.dtype)[:, None, None, None]
        return self.from_coordinates((1 - self.process.sigma_min) * z - noise * self.velocity(z, t))
