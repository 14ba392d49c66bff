"""Where sampling starts: the law of U_T.

`GaussianPrior` is fitted once to simulated terminal states: their mean, the covariance across channels of the low DCT
modes, and the pooled power of the others. It needs no image when sampling.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from anisodiff.noise import Randomness, white
from anisodiff.transforms import dct2, idct2


@dataclass(frozen=True)
class GaussianPrior:
    """N(mean, covariance), diagonal over DCT modes; across channels full for modes below ``low`` in both axes."""

    mean: Tensor
    """[C, H, W], in the DCT."""
    root: Tensor
    """[H, W, C, C], Cholesky factors of the covariance across channels."""

    def draw(self, count: int, source: Randomness) -> Tensor:
        """``count`` terminal states [count, C, H, W]."""
        xi = white(self.mean.expand(count, *self.mean.shape), source)
        return idct2(self.mean + torch.einsum("hwcd,bdhw->bchw", self.root, xi))


def fit_gaussian(states: Tensor, low: int = 8) -> GaussianPrior:
    """The prior of simulated terminal states [N, C, H, W]."""
    modes = dct2(states.double())
    count, channels = modes.shape[:2]
    mean = torch.zeros_like(modes[0])
    mean[:, :low, :low] = modes[:, :, :low, :low].mean(0)
    centred = modes - mean
    power = centred.square().mean((0, 1))
    covariance = power[:, :, None, None] * torch.eye(channels, dtype=torch.float64, device=states.device)
    lows = centred[:, :, :low, :low]
    covariance[:low, :low] = torch.einsum("bchw,bdhw->hwcd", lows, lows) / count
    root = torch.linalg.cholesky(covariance + 1e-12 * torch.eye(channels, dtype=torch.float64, device=states.device))
    return GaussianPrior(mean.float(), root.float())
