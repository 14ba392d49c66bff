"""The moments of a process at given times, as the fields that preconditioning and samplers reckon with."""

from typing import NamedTuple

from torch import Tensor

from anisodiff.equation import Equation
from anisodiff.statistics import SpectralStatistics


class Surroundings(NamedTuple):
    """What stands around the network: its input's scale, and its outputs' places in score and drift; [B, 1, 1, 1]."""

    input: Tensor
    power: Tensor
    scale: Tensor
    residual: Tensor


class Known(NamedTuple):
    """S, N and V at given places of the tables, how S/V of every color compares with that of their mean, and w."""

    signal: Tensor
    noise: Tensor
    power: Tensor
    share: Tensor | float
    weight: Tensor
    """Of the linear drift −α1 w z û."""

    @classmethod
    def at(cls, statistics: SpectralStatistics, cell: Tensor, phase: Tensor, *, plain_noise: bool) -> "Known":
        """[B, 1, H, W], what knows of colors [B, C, H, W]; the share is 1 where the channels are the axes.

        ``plain_noise``: the drift moves the image alone, and so pulls a color by as much as is known of it.
        """
        mean, noise = (
            statistics.at(x, cell, phase)[:, None].exp() for x in (statistics.log_signal, statistics.log_noise)
        )
        signal = mean * statistics.shares
        power = signal + noise
        share = 1.0 if len(statistics.shares) == 1 else signal / power * (1 + noise / mean)
        weight = statistics.at(statistics.weight, cell, phase)[:, None]
        return cls(signal, noise, power, share, weight * share if plain_noise else weight)


class Coefficients:
    """The moments at one time per sample, as [B, 1, H, W] fields; what knows of colors [B, C, H, W]."""

    def __init__(
        self, statistics: SpectralStatistics, equation: Equation, t: Tensor, *, plain_noise: bool = False
    ) -> None:
        cell, phase = statistics.locate(t)

        def look(table: Tensor) -> Tensor:
            return statistics.at(table, cell, phase)[:, None]

        known = Known.at(statistics, cell, phase, plain_noise=plain_noise)
        self.signal, self.noise, self.power, share, self.weight = known
        self.target = look(statistics.log_target).exp()
        self.residual = look(statistics.log_residual).mul(0.5).exp() * share**0.5  # d_k
        self.scale = (self.signal / (self.noise * self.power)).sqrt()  # c_k
        self.data = statistics.data * statistics.shares  # D
        self.known = self.signal / self.data  # S/D: the square of what smoothing leaves of a mode
        self.input = (self.noise + statistics.data.mean() * self.known).rsqrt()
        self.alpha1, self.alpha2 = (
            x.to(self.power.dtype)[:, None, None, None] for x in (equation.alpha1(t), equation.alpha2(t))
        )
        self.t, self.cell, self.phase = t, cell, phase

    def scalars(self) -> Surroundings:
        """EDM's c_in, c_skip and c_out: one number a sample, [B, 1, 1, 1] each."""
        signal, noise, square = (
            x.mean((-3, -2, -1), keepdim=True) for x in (self.signal, self.noise, self.residual.square())
        )
        power = signal + noise
        return Surroundings(power.rsqrt(), power, (signal / (noise * power)).sqrt(), square.sqrt())
