"""Checkpoints of tiny networks, and models that know the exact law of Gaussian images."""

import pytest
import torch

from anisodiff.dct import dct2, idct2
from anisodiff.generation import Generator
from anisodiff.generation.loaded_model import CheckpointOrigin
from anisodiff.training.model import Plan, Trained
from tests.generation.conftest import data, runs  # noqa: F401
from tests.support.oracles import Nothing, gaussian_images
from tests.training.conftest import tiny

F64 = torch.float64
SIZE = 8
EXACT = "exponential(wiener=1)"
"""Exact for Gaussian images, whatever the steps: the bridge when Wiener's predictor is all there is to know."""


class Exact:
    """Images N(μ, D_k) per DCT mode under a linear process, and a generator whose score is exact. No training.

    The contrast is low, so that nothing is ever cut at 0 or 1.
    """

    def __init__(self, process: str) -> None:
        # little noise at t_min: what E[x0|u] averages away there must not be seen
        keys = {"preset": process, "sigma_min": 0.001} if process == "ve" else process
        plan = Plan.of(tiny(process=keys, precision="fp64", t_min=0.01))
        images = 0.5 + 0.2 * (gaussian_images(400, SIZE) - 0.5)
        statistics = plan.process.estimate_statistics(images.float())
        trained = Trained(plan=plan, model=plan.model(Nothing(), statistics), prior=None, meta={})
        self.generator = Generator(
            trained, CheckpointOrigin(path="", model="", prior=None), device=torch.device("cpu")
        )
        self.mean, self.power = float(statistics.mean), statistics.data.to(F64)

    def images(self, count: int, seed: int = 0) -> torch.Tensor:
        """Draws of the data, float64 [count, 1, 8, 8]."""
        noise = torch.Generator().manual_seed(seed)
        xi = torch.randn(count, 1, SIZE, SIZE, dtype=F64, generator=noise)
        return self.mean + idct2(self.power.sqrt() * xi)

    def modes(self, images: torch.Tensor) -> torch.Tensor:
        """DCT about the mean, float64."""
        return dct2(images.to(F64) - self.mean)

    def kernel(self, t: float) -> tuple[torch.Tensor, torch.Tensor]:
        """B² D and N at time t, [8, 8]: Û_t given x̂ is N(B x̂, N)."""
        like = torch.zeros(1, 1, SIZE, SIZE, dtype=F64)
        process = self.generator.process
        known = self.modes(process.mean(idct2(torch.ones_like(like)) + self.mean, 0.0, t))[0, 0]
        return known.square() * self.power, process.variance(like, 0.0, t)[0, 0]

    def pull(self, t: float) -> torch.Tensor:
        """S/V: what is left of a painting's mode, on average, after going to t and back."""
        signal, noise = self.kernel(t)
        return signal / (signal + noise)


@pytest.fixture(scope="session", params=["ve", "heat"])
def exact(request) -> Exact:
    return Exact(request.param)


@pytest.fixture(scope="session")
def exact_ve() -> Exact:
    return Exact("ve")


@pytest.fixture(scope="session")
def pictures(data) -> torch.Tensor:  # noqa: F811
    """Eight training images of the tiny runs, [8, 1, 8, 8]."""
    return torch.from_numpy(data.images[:8].copy()).float() / 255
