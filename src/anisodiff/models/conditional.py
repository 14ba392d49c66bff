"""Models of processes that are Gaussian given the image: what the baselines share.

The network sees the state as its method's paper has it, [−1, 1] or [0, 1], and the time t ∈ [0, 1] as its condition;
there is no preconditioning. t is drawn uniformly. The tables serve the noise level alone, so that the log and the
strength of edits mean the same as for every other process.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from anisodiff.dct import dct2
from anisodiff.models.base import Model
from anisodiff.objectives.contract import Draw
from anisodiff.objectives.phases import table_phases
from anisodiff.processes.conditional import Conditional
from anisodiff.statistics import SpectralStatistics, channel_axes

ProcessT = TypeVar("ProcessT", bound=Conditional)
_BATCH = 128


def estimate_conditional_statistics(
    process: Conditional, images: Tensor, progress: Callable[[int, int], None] | None = None
) -> SpectralStatistics:
    """S, N and the data's power on ``images`` [N, C, H, W] in [0, 1]; exact for these images, without any noise."""
    mean = images.double().mean((0, 2, 3))
    data = dct2(images.double() - mean[:, None, None]).square().mean((0, 1))
    phases, parts = table_phases(1), torch.split(images, _BATCH)
    rows = []
    for number, t in enumerate(phases):
        found = [process.powers(part, t.reshape(1), mean) for part in parts]
        shares = [len(part) / len(images) for part in parts]
        rows.append([sum((w * x for w, x in zip(shares, column)), torch.zeros_like(data)) for column in zip(*found)])
        if progress:
            progress(number + 1, len(phases))
    signal, noise = (torch.stack(column)[None] for column in zip(*rows))
    nothing = torch.zeros_like(noise).float()
    return SpectralStatistics(
        edges=torch.tensor([0.0, process.T], dtype=torch.float64, device=images.device),
        phases=phases.to(images.device),
        mean=mean.float(),
        data=data.float(),
        **channel_axes(images.shape[1], data.float()),
        log_noise=noise.log().float(),
        log_signal=torch.maximum(signal, 1e-8 * noise).log().float(),
        weight=nothing + 1,
        log_target=nothing,
        log_residual=nothing.clone(),  # one tensor under two names would be saved once
    )


class ConditionalModel(Model, Generic[ProcessT]):
    """A network that is shown states and times as they are."""

    def __init__(self, network: nn.Module, process: ProcessT, statistics: SpectralStatistics) -> None:
        super().__init__(network, statistics)
        self.process = process

    @property
    def T(self) -> float:
        """The horizon."""
        return self.process.T

    def density(self, *, mean: float, std: float, t_min: float) -> tuple[Tensor, Tensor]:
        """Uniform on (0, 1), whatever level and t_min the run names."""
        times = torch.linspace(0, self.T, 1001, dtype=torch.float64)
        return times, times / self.T

    def answer(self, z: Tensor, t: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        """The network's output for states ``z`` of `to_coordinates` at times ``t`` ([1] or [B]), [B, C, H, W].

        A copy: a replayed network writes its next answer over this one, and solvers need several at a time.
        """
        condition = t.to(z.dtype).expand(len(z)).contiguous()
        out: Tensor = self.network(z, condition, dropout_key)
        return out.to(z.dtype, copy=True)

    @abstractmethod
    def wanted(self, drawn: Draw) -> Tensor:
        """What the network's output is compared with, [B, C, H, W]."""

    def loss(self, drawn: Draw, t: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        """Mean squared error over an image's numbers, [B]."""
        found = self.answer(self.to_coordinates(drawn.state), t, dropout_key)
        return (found - self.wanted(drawn)).square().mean((-3, -2, -1))


class Signed(ConditionalModel[ProcessT]):
    """A model that is shown images in [−1, 1], z = 2u − 1, and asked for something in these units."""

    def to_coordinates(self, u: Tensor) -> Tensor:
        """2u − 1."""
        return 2 * u - 1

    def from_coordinates(self, z: Tensor) -> Tensor:
        """(z + 1)/2."""
        return 0.5 * (z + 1)

    def wanted(self, drawn: Draw) -> Tensor:
        """The target in units of z."""
        return 2 * drawn.target
