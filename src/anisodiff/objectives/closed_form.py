"""Denoising score matching with the exact kernel of a linear process (Song et al. 2021 for `ve`).

Û_t = e^{−A z} Û_0 + √φ ξ̂,      target −ξ̂/√φ in the DCT
"""

from dataclasses import dataclass

from torch import Tensor

from anisodiff.equation import Equation
from anisodiff.linear import grid_decay, grid_variance
from anisodiff.noise import Randomness, white
from anisodiff.objectives.contract import Draw, Objective, require_white_noise
from anisodiff.processes.closed_form import ClosedForm
from anisodiff.transforms import dct2, idct2


@dataclass(frozen=True)
class Exact(Objective):
    """The full kernel from 0 to t: the target of least variance."""

    process: ClosedForm

    def __post_init__(self) -> None:
        require_white_noise(self.equation)

    @property
    def equation(self) -> Equation:
        """The process's equation."""
        return self.process.equation

    @property
    def edges(self) -> tuple[float, ...]:
        """Nothing jumps; forty cells carry the tables."""
        return tuple(self.process.T * k / 40 for k in range(41))

    @property
    def learns_drift(self) -> bool:
        """Never: the drift is −α1 z_k û_k."""
        return False

    def settle(self, t: Tensor) -> Tensor:
        """Any time will do."""
        return t

    def draw(self, x0: Tensor, t: Tensor, source: Randomness) -> Draw:
        """States with the score of the kernel from their image."""
        t = t.to(x0.device)
        begin = t.new_zeros(t.shape)
        root = grid_variance(self.equation, begin, t, x0).sqrt()
        xi = white(x0, source)
        mode = grid_decay(self.equation, begin, t, x0) * dct2(x0) + root * xi
        return Draw(idct2(mode), idct2(-xi / root), None)
