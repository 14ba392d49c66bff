"""Models of processes that are Gaussian given the image, the base of the baselines.

The input of the network is the state, in [−1, 1] or [0, 1] as in the paper of the method, and t ∈ [0, 1]; there is no
preconditioning. Training times are uniform by default. The statistics are used for the noise level only, so that logs
and SDEdit strengths are comparable with other processes.
"""

from abc import abstractmethod
from typing import ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from anisodiff.models.base import Model, ModelOptions
from anisodiff.processes.base import Process, TrainingPair
from anisodiff.processes.conditional import ConditionalGaussian
from anisodiff.statistics import SpectralStatistics

ProcessT = TypeVar("ProcessT", bound=ConditionalGaussian)
_FIXED = ("parameterization", "learns", "channel_pca")


class ConditionalModel(Model, Generic[ProcessT]):
    """A network without preconditioning."""

    predicts: ClassVar[str]
    """What the output of the network is: one of `samplers.base.CAPABILITIES`."""

    def __init__(self, network: nn.Module, process: ProcessT, statistics: SpectralStatistics) -> None:
        super().__init__(network, statistics)
        self.process, self.provided = process, frozenset({self.predicts})

    @classmethod
    def check(cls, process: Process, options: ModelOptions) -> None:
        for name in _FIXED:
            got, own = getattr(options, name), getattr(ModelOptions(), name)
            if got != own:
                what = process.identity().get("kind", "this process")
                raise ValueError(f"{name}: {what} has its own, got {got!r}; leave it at {own!r}")

    @classmethod
    def provides(cls, process: Process, options: ModelOptions) -> frozenset[str]:
        return frozenset({cls.predicts})

    @classmethod
    def build(
        cls, network: nn.Module, process: ProcessT, statistics: SpectralStatistics, options: ModelOptions
    ) -> Self:
        return cls(network, process, statistics)

    @property
    def T(self) -> float:
        return self.process.T

    def time_density(self, *, mean: float, std: float, t_min: float) -> tuple[Tensor, Tensor]:
        """Uniform on (0, 1)."""
        times = torch.linspace(0, self.T, 1001, dtype=torch.float64)
        return times, times / self.T

    def predict(
        self, z: Tensor, t: Tensor, dropout_key: Tensor | None = None, labels: Tensor | None = None
    ) -> Tensor:
        """The output of the network for states ``z`` at times ``t`` ([1] or [B]), [B, C, H, W].

        A copy, because a CUDA graph overwrites its output.
        """
        condition = t.to(z.dtype).expand(len(z)).contiguous()
        out = self.evaluate_network(z, condition, t, labels, dropout_key)
        return out.to(z.dtype, copy=True)

    @abstractmethod
    def regression_target(self, pair: TrainingPair) -> Tensor:
        """The target of the network, [B, C, H, W]."""

    def loss(self, pair: TrainingPair, t: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        """Mean squared error over the values of an image, [B]."""
        output = self.predict(self.to_coordinates(pair.state), t, dropout_key, pair.labels)
        return (output - self.regression_target(pair)).square().mean((-3, -2, -1))


class Signed(ConditionalModel[ProcessT]):
    """A model with input and output in the units of z = 2u − 1 ∈ [−1, 1]."""

    def to_coordinates(self, u: Tensor) -> Tensor:
        return 2 * u - 1

    def from_coordinates(self, z: Tensor) -> Tensor:
        return 0.5 * (z + 1)

    def regression_target(self, pair: TrainingPair) -> Tensor:
        """The target in units of z."""
        return 2 * pair.target
