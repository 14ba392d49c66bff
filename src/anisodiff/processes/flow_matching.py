"""Flow matching with conditional optimal-transport paths (Lipman et al. 2023).

For v = 2u − 1 in [−1, 1], in our time (0 = data, 1 = noise; theirs is 1 − t):

    V_t = (1 − t)·v0 + (t + σmin(1 − t))·ξ,      dV_t/dt = (1 − σmin)·ξ − v0

a straight line from the image to the noise with constant velocity. V_t/(1 − t) is the image with white noise of
σ = t/(1 − t). Two public implementations differ in the density of t:

    skewed     trained at ln σ ~ N(−1.2, 1.2²), sampled on EDM's grid of σ, ρ = 7     facebookresearch/flow_matching
    uniform    trained at t ~ U(0, 1), sampled in equal steps of t                     torchcfm; Lipman et al. 2023

σmin = 0 by default, as in the public code for CIFAR-10 (the paper requires a small σmin): then U_0 is the image.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.noise import Randomness, white
from anisodiff.priors import GaussianPrior, normal_density
from anisodiff.processes.conditional import ScaledGaussian, check_numbers
from anisodiff.stencils.gradient import per_sample
from anisodiff.tensors import to_highest_precision

DENSITIES = ("skewed", "uniform")


@dataclass(frozen=True, kw_only=True)
class FlowMatching(ScaledGaussian):
    """Straight paths from images to white noise N(½, ¼)."""

    name: ClassVar[str] = "flow-matching"

    sigma_min: float = 0.0
    """Standard deviation of the noise at t = 0, for images in [−1, 1]."""
    density: str = "skewed"
    """Density of the training times; it also sets the default time grid of samplers."""

    def __post_init__(self) -> None:
        check_numbers(self, {"sigma_min": (0.0, 0.5)})
        notation.check_choice(self.density, DENSITIES, "density")

    def signal_power(self, t: Tensor) -> Tensor:
        """(1 − t)²."""
        return (1 - t).square()

    def spread(self, x0: Tensor, t: Tensor) -> Tensor:
        """½ (t + σmin(1 − t)), [B, 1, 1, 1]."""
        return per_sample(0.5 * self.noise(t), x0)

    def noise(self, t: Tensor) -> Tensor:
        """t + σmin(1 − t), for images in [−1, 1]."""
        return t + self.sigma_min * (1 - t)

    def velocity(self, x0: Tensor, xi: Tensor) -> Tensor:
        """dU_t/dt along the path from ``x0`` to the noise ``xi``, in the units of images."""
        return 0.5 * (1 - self.sigma_min) * xi - (x0 - 0.5)

    def target(self, x0: Tensor, t: Tensor, xi: Tensor, state: Tensor) -> Tensor:
        return self.velocity(x0, xi)

    @property
    def path_obstacle(self) -> str:
        """None: dV = −V/(1 − t) dt + √(2s/(1 − t)) dW, s = t + σmin(1 − t), has the same kernel from the image."""
        return ""

    def draw_with_density(self, x0: Tensor, t: float, rng: Randomness = None) -> tuple[Tensor, Tensor]:
        when, xi = self.times(x0, t), white(x0, rng)
        spread = self.spread(x0, when)
        determinant = 2 * x0[0].numel() * to_highest_precision(spread).log().flatten()
        return self.mean(x0, when) + spread * xi, normal_density(xi, determinant)

    def continued(self, x0: Tensor, u: Tensor, s: Tensor, t: Tensor, rng: Randomness) -> Tensor:
        """The same straight line: ξ is drawn at s = 0 and computed from U_s after that."""
        first = not bool((s > 0).any())
        xi = white(x0, rng) if first else (u - self.mean(x0, s)) / self.spread(x0, s)
        return self.mean(x0, t) + self.spread(x0, t) * xi

    def prior(self, images: Tensor) -> GaussianPrior:
        """N(½, ¼); ``images`` give shape and device only."""
        channels, height, width = images.shape[1:]
        level = torch.zeros(channels, height, width, device=images.device)
        level[:, 0, 0] = 0.5 * (height * width) ** 0.5
        root = 0.5 * torch.eye(channels, device=images.device).expand(height, width, channels, channels)
        return GaussianPrior(level, root.contiguous())
