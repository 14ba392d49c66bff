"""A covariance of images that is diagonal in the DCT and in the channel axes of the statistics."""

from dataclasses import dataclass

from torch import Tensor

from anisodiff.dct import dct2, idct2
from anisodiff.statistics import Powers, SpectralStatistics, rotate_channels


@dataclass(frozen=True, eq=False)
class SpectralCovariance:
    """C = Fᵀ diag(variance) F, F the DCT, with ``axes`` in rotated channels."""

    variance: Tensor
    """[1 or B, 1 or C, H, W] in the DCT; [1 or B, 1, 1, 1]: white."""
    axes: Tensor | None = None
    """Orthonormal rows [C, C]; None: the channels."""

    @property
    def white(self) -> bool:
        """Whether it is a multiple of the identity."""
        return self.variance.shape[1:] == (1, 1, 1)

    def modes(self, x: Tensor) -> Tensor:
        """F x, of images [B, C, ·, ·] of any size."""
        return dct2(x) if self.axes is None else rotate_channels(dct2(x), self.axes.to(x))

    def field(self, z: Tensor) -> Tensor:
        """The inverse of `modes`."""
        return idct2(z if self.axes is None else rotate_channels(z, self.axes.mT.to(z)))

    def apply(self, x: Tensor) -> Tensor:
        """C x."""
        return self.variance * x if self.white else self.field(self.variance * self.modes(x))


def _axes(statistics: SpectralStatistics) -> Tensor | None:
    """None where the channels are the axes, as all shares 1 say."""
    return None if len(statistics.shares) == 1 else statistics.axes


def data_covariance(statistics: SpectralStatistics) -> SpectralCovariance:
    """D: the covariance of the data about their channel means."""
    return SpectralCovariance((statistics.data * statistics.shares)[None], _axes(statistics))


def posterior_covariance(statistics: SpectralStatistics, t: Tensor) -> SpectralCovariance:
    """Cov(x0 | u_t) at times ``t`` (float64 [1] or [B]) by the statistics: D N/V per mode, V = S + N.

    Exact where images are Gaussian with that spectrum and the process is linear per frequency. For `ve` and a white
    spectrum D = 1 it is σ²/(1 + σ²), r_t² of Song et al. 2023.
    """
    powers = Powers.at(statistics, *statistics.locate(t), plain_noise=False)
    return SpectralCovariance(statistics.data * statistics.shares * powers.noise / powers.power, _axes(statistics))
