"""Flow matching (Lipman et al. 2023): the network predicts the velocity.

    w(z, t) ≈ E[dZ_t/dt | Z_t = z],     z = 2u − 1,     loss |w − ((1 − σmin)ξ − z0)|², mean over the values of an
    image

Since Z_t = (1 − t)z0 + (t + σmin(1 − t))ξ, the denoised image is (1 − σmin)z − (t + σmin(1 − t))w.

Training times are uniform, or skewed as in EDM (Karras et al. 2022): ln σ ~ N(−1.2, 1.2²), σ = t/(1 − t).
"""

from typing import ClassVar

import torch
from torch import Tensor

from anisodiff.models.conditional import Signed
from anisodiff.processes.base import TrainingPair
from anisodiff.processes.flow_matching import FlowMatching
from anisodiff.tensors import to_highest_precision

_MEAN, _STD, _REACH = -1.2, 1.2, 6.0
"""Mean and standard deviation of ln σ, and the range in standard deviations."""


class VelocityModel(Signed[FlowMatching]):
    """A velocity field, in time from 0 (data) to 1 (noise)."""

    default_sampler: ClassVar[str] = "heun"
    predicts: ClassVar[str] = "velocity"

    def time_density(self, *, mean: float, std: float, t_min: float) -> tuple[Tensor, Tensor]:
        """Uniform on (0, 1), or skewed, as ``density`` of the process says."""
        if self.process.density == "uniform":
            return super().time_density(mean=mean, std=std, t_min=t_min)
        score = torch.linspace(-_REACH, _REACH, 4001, dtype=torch.float64)
        below = torch.special.ndtr(score)
        return torch.sigmoid(_MEAN + _STD * score), (below - below[0]) / (below[-1] - below[0])

    def velocity(self, z: Tensor, t: Tensor) -> Tensor:
        """dz/dt at times ``t`` ([1] or [B]); NFE 1."""
        return self.predict(z, t)

    @property
    def path_obstacle(self) -> str:
        return ""

    def path_rate(self, pair: TrainingPair, t: Tensor) -> Tensor:
        """½ g²‖error of the score‖² = (1 − t)/s·‖w − dz/dt‖² for the equation with noise g² = 2s/(1 − t).

        s = t + σmin(1 − t), and the score is −(z + (1 − t)w)/s.
        """
        off = self.velocity(self.to_coordinates(pair.state), t) - self.regression_target(pair)
        return (1 - t) / self.process.noise(t) * to_highest_precision(off).square().sum((-3, -2, -1))

    def denoised(self, z: Tensor, t: Tensor) -> Tensor:
        """E[x0 | u]."""
        return self.image(z, t, self.velocity(z, t))

    def image(self, z: Tensor, t: Tensor, w: Tensor) -> Tensor:
        """E[x0 | u] from the velocity."""
        noise = self.process.noise(t).to(z.dtype)[:, None, None, None]
        return self.from_coordinates((1 - self.process.sigma_min) * z - noise * w)
