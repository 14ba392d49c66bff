"""What the trainer, the samplers' loop and editing need of a model, whatever it learns.

A model is a network with tables of the forward process on the data (`tables.Moments`): its noise level, and what its
preconditioning stands on. `ScoreModel` learns a score, the baselines in `networks/` what their papers say.
"""

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import ClassVar

import torch
from torch import Tensor, nn

from anisodiff.objectives.contract import Draw
from anisodiff.statistics import SpectralStatistics


def noise_level(statistics: SpectralStatistics) -> Tensor:
    """ln(σ/σ_d) on (cell, phase), [K, P]: σ is the white noise that alone would leave as much of an image as the
    process does, in the sense of information, Σ_k ln(1 + D_k/σ²) = Σ_k ln(1 + S_k/N_k); σ_d² is a pixel's variance.

    For `ve` this is its own noise level. Processes that smooth as well are compared by what they have destroyed.
    """
    data = statistics.data.double()
    known = torch.log1p((statistics.log_signal - statistics.log_noise).double().exp()).sum((-2, -1))
    level = torch.linspace(-9.0, 9.0, 721, dtype=torch.float64, device=data.device)
    white = torch.log1p(data.flatten() / data.mean() * torch.exp(-2 * level)[:, None]).sum(1)
    right = torch.searchsorted(-white, -known.contiguous()).clamp(1, len(level) - 1)
    weight = ((white[right - 1] - known) / (white[right - 1] - white[right])).clamp(0, 1)
    return torch.lerp(level[right - 1], level[right], weight).float()


class Model(nn.Module, ABC):
    """A network and the tables of its process. The tables are buffers, so they go where the weights go."""

    usual: ClassVar[str]
    """The sampler that is meant where none is named."""
    learns: str = "score_and_drift"
    """What has been learned of the reverse equation, see `ScoreModel`; all, where there is nothing to choose."""
    rotates_channels: bool = False
    """Whether the channels that samplers see are principal axes of the colors, each with a law of its own."""

    level: Tensor
    """`noise_level` of the tables, [K, P]."""
    statistics_mean: Tensor
    statistics_edges: Tensor

    def __init__(self, network: nn.Module, statistics: SpectralStatistics) -> None:
        super().__init__()
        self.network = network
        for f in fields(statistics):
            self.register_buffer(f"statistics_{f.name}", getattr(statistics, f.name))
        self.register_buffer("level", noise_level(statistics))

    @property
    def statistics(self) -> SpectralStatistics:
        """The tables, on the model's device."""
        return SpectralStatistics(
            **{f.name: getattr(self, f"statistics_{f.name}") for f in fields(SpectralStatistics)}
        )

    def level_at(self, t: Tensor) -> Tensor:
        """The noise level at times ``t`` (float64 [M], on the CPU), float64 [M]."""
        host = self.statistics.to(torch.device("cpu"))
        return host.at(self.level.cpu(), *host.locate(t)).double()

    @property
    @abstractmethod
    def T(self) -> float:
        """The horizon of the process."""

    @abstractmethod
    def density(self, *, mean: float, std: float, t_min: float) -> tuple[Tensor, Tensor]:
        """Ascending times [M] and the cumulative distribution that t is drawn from in training; on the CPU, float64.

        ``mean`` and ``std`` of the noise level and ``t_min`` are the run's; a method with a rule of its own has that.
        """

    @abstractmethod
    def loss(self, drawn: Draw, t: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        """The error per sample, [B], of states and targets at times ``t`` (float64 [B])."""

    @abstractmethod
    def to_coordinates(self, u: Tensor) -> Tensor:
        """States ``u`` [B, C, H, W] in the coordinates that the model's samplers step in."""

    @abstractmethod
    def from_coordinates(self, z: Tensor) -> Tensor:
        """The way back."""

    @abstractmethod
    def denoised(self, z: Tensor, t: Tensor) -> Tensor:
        """E[x0 | z], the image [B, C, H, W], from states ``z`` of `to_coordinates` at ``t`` [1]; NFE 1."""
