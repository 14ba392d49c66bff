"""Denoising score matching with the exact kernel of a linear process (Song et al. 2021 for `ve`).

Û_t = e^{−A z} Û_0 + √φ ξ̂,      target −ξ̂/√φ in the DCT
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff.dct import dct2, idct2
from anisodiff.gaussian_kernel import grid_decay, grid_variance
from anisodiff.noise import Randomness, white
from anisodiff.objectives.contract import Draw, OfProcess
from anisodiff.objectives.phases import smooth_phases
from anisodiff.processes.closed_form import ClosedForm
from anisodiff.tensors import send


@dataclass(frozen=True)
class Exact(OfProcess[ClosedForm]):
    """The full kernel from 0 to t: the target of least variance."""

    @property
    def edges(self) -> tuple[float, ...]:
        """Nothing jumps; forty cells carry the tables, short ones where the noise begins."""
        return tuple(self.process.T * (k / 40) ** 2 for k in range(41))

    @property
    def phases(self) -> Tensor:
        """Nothing diverges either."""
        return smooth_phases()

    @property
    def learns_drift(self) -> bool:
        """Never: the drift is −α1 z_k û_k."""
        return False

    def snap_to_grid(self, t: Tensor) -> Tensor:
        """Any time will do."""
        return t

    def draw(self, x0: Tensor, t: Tensor, source: Randomness) -> Draw:
        """States with the score of the kernel from their image."""
        return self._kernel(x0, t, white(x0, source))

    def pairs(self, x0: Tensor, t: Tensor, source: Randomness) -> Draw:
        """The last piece is the whole path: ±ξ about the smoothed image."""
        xi = white(x0, source)
        both = torch.stack([xi, -xi], 1).flatten(0, 1)
        return self._kernel(x0.repeat_interleave(2, 0), t.repeat_interleave(2), both)

    def _kernel(self, x0: Tensor, t: Tensor, xi: Tensor) -> Draw:
        t = send(t, x0.device)
        begin = t.new_zeros(t.shape)
        root = grid_variance(self.equation, begin, t, x0).sqrt()
        mode = grid_decay(self.equation, begin, t, x0) * dct2(x0) + root * xi
        return Draw(idct2(mode), idct2(-xi / root), None)
