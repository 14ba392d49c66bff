"""Targets that are right for linear processes only, to be compared with the unbiased one.

Both take the states from the true process and the score from the linear reference, the equation with λ1 = λ2 = ∞ and
the kernel Û_t | x0 ~ N(e^{−A z} x̂0, φ) in the DCT (see `linear`). The drift's target is the unbiased one in both.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from anisodiff.dct import dct2, idct2
from anisodiff.gaussian_kernel import grid_decay, grid_variance
from anisodiff.integrators import LocalKernel
from anisodiff.objectives.local import Simulated
from anisodiff.processes.spde import SPDE
from anisodiff.schedules import Constant
from anisodiff.tensors import send


@dataclass(frozen=True)
class TotalNoise(Simulated):
    """`total-noise`: target −(û_t − m̂_t)/φ, with m_t the path of ``x0`` without any noise.

    This takes u_t given x0 for the Gaussian N(m_t, φ): its mean is what the drift alone makes of the image, on the
    process's own stencil and time steps, and all that differs from it is noise, of the variance that the linear
    reference accumulates from 0 to t. The paper calls its process "at least approximately, conditionally Gaussian
    given the initial state" and states no loss; this is what one would write down on the strength of that sentence.
    It is exact where the drift is linear. Else it is wrong twice: the noise moves the edge detector, so that m_t is
    not the mean, and edges that stop the smoothing keep more noise than φ.
    """

    @cached_property
    def quiet(self) -> SPDE:
        """The process without its noise."""
        return replace(self.process, equation=replace(self.equation, intensity=Constant(0.0)))

    def target(self, x0: Tensor, t: Tensor, piece: LocalKernel) -> Tensor:
        """From the state and the noise-free path."""
        t = send(t, x0.device)
        spread = grid_variance(self.equation, torch.zeros_like(t), t, x0)
        return idct2(-dct2(piece.state - self.quiet.simulate(x0, t)) / spread)


@dataclass(frozen=True)
class InitialState(Simulated):
    """`x0`: target −(û_t − e^{−A z} x̂0)/φ; regressing on it is regressing on x0, for its mean given u_t is

        −(û_t − e^{−A z} E[x̂0 | u_t])/φ,

    Tweedie's formula of the linear reference at the best estimate of the image. Exact for linear processes; for
    others the estimate is right, but the formula that makes a score of it is not.
    """

    def target(self, x0: Tensor, t: Tensor, piece: LocalKernel) -> Tensor:
        """From the state and the image."""
        t = send(t, x0.device)
        begin = torch.zeros_like(t)
        kept = grid_decay(self.equation, begin, t, x0) * dct2(x0)
        return idct2((kept - dct2(piece.state)) / grid_variance(self.equation, begin, t, x0))
