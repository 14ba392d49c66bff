"""The moments of a process at given times, as the fields that preconditioning and samplers reckon with."""

from typing import NamedTuple

from torch import Tensor

from anisodiff.equation import Equation
from anisodiff.tables import Moments


class Surroundings(NamedTuple):
    """What stands around the network: its input's scale, and its outputs' places in score and drift; [B, 1, 1, 1]."""

    input: Tensor
    power: Tensor
    scale: Tensor
    residual: Tensor


class Coefficients:
    """The moments at one time per sample, as [B, 1, H, W] fields; signal, power and scale [B, C, H, W] by colours."""

    def __init__(self, moments: Moments, equation: Equation, t: Tensor) -> None:
        cell, phase = moments.locate(t)

        def look(table: Tensor) -> Tensor:
            return moments.at(table, cell, phase)[:, None]

        signal = look(moments.log_signal).exp()
        self.signal = signal * moments.shares
        self.noise = look(moments.log_noise).exp()
        self.power = self.signal + self.noise
        self.weight = look(moments.weight)
        self.target = look(moments.log_target).exp()
        self.residual = look(moments.log_residual).mul(0.5).exp()  # d_k
        self.scale = (self.signal / (self.noise * self.power)).sqrt()  # c_k
        self.data = moments.data * moments.shares  # D
        self.known = signal / moments.data  # S/D: the square of what smoothing leaves of a mode
        self.input = (self.noise + moments.data.mean() * self.known).rsqrt()
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
