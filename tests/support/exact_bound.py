"""Models whose reverse equation is known exactly at every time of a batch: Gaussian images, and a mixture."""

import torch
from torch import Tensor

from anisodiff.dct import dct2, frequencies, idct2
from anisodiff.gaussian_kernel import grid_decay, grid_variance, quadrature
from anisodiff.models.base import ModelOptions
from anisodiff.models.score import ScoreModel
from anisodiff.priors import GaussianPrior
from anisodiff.processes.base import EquationProcess
from tests.support.oracles import F64, gaussian_images, spectrum

SIZE = 3


def kernel(process: EquationProcess, t: Tensor, plain: bool) -> tuple[Tensor, Tensor]:
    """Decay and noise variance of the modes at ``t`` [B], [B, 1, H, W]; ``plain``: the drift spares the noise."""
    like, begin = torch.zeros(len(t), 1, SIZE, SIZE, dtype=F64), torch.zeros_like(t)
    kept = grid_decay(process.equation, begin, t, like)
    if plain:
        mass = quadrature(process.equation, begin, t)[0].sum(1)[:, None, None, None]
        return kept, mass.expand(-1, 1, SIZE, SIZE)
    return kept, grid_variance(process.equation, begin, t, like)


class ExactModel(ScoreModel):
    """Images ½ + N(0, ``spectrum``) under a process with an isotropic drift; ``gain`` makes the score wrong."""

    def __init__(self, process: EquationProcess, gain: float = 1.0) -> None:
        statistics = process.estimate_statistics(gaussian_images(200, SIZE))
        tables = {name: value.double() for name, value in vars(statistics).items()}
        options = ModelOptions()
        super().__init__(
            torch.nn.Identity(), process.equation, type(statistics)(**tables), drift=process.learns_drift,
            plain_noise=process.plain_noise, options=options,
        )  # fmt: skip
        self.process, self.gain = process, gain
        self.statistics_mean.fill_(0.5)

    def powers(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """S and N of the modes, [B, 1, H, W]."""
        kept, noise = kernel(self.process, t, self.plain_noise)
        return kept.square() * spectrum(SIZE), noise

    def score_and_drift(self, z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        signal, noise = self.powers(t)
        rate = self.equation.alpha1(t)[:, None, None, None] * frequencies(SIZE, SIZE, F64, z.device)
        known = signal / (signal + noise) if self.plain_noise else 1.0
        return -self.gain * z / (signal + noise), -rate * known * z

    def denoised(self, z: Tensor, t: Tensor) -> Tensor:
        signal, noise = self.powers(t)
        kept, _ = kernel(self.process, t, self.plain_noise)
        return self.from_coordinates(kept * spectrum(SIZE) / (signal + noise) * z)


class MixtureModel(ExactModel):
    """Images whose one mode (0, 1) is a mixture of normals, all others ½, under `ve`."""

    shares, centers, widths = (torch.tensor(x, dtype=F64) for x in ([0.3, 0.7], [-0.8, 0.5], [0.05, 0.2]))

    def log_density(self, y: Tensor, noise: Tensor) -> Tensor:
        """Of the mode with noise of that variance added, [...]."""
        spread = (self.widths.square() + noise[..., None]).sqrt()
        off = (y[..., None] - self.centers) / spread
        return (self.shares.log() - 0.5 * off.square() - (spread * (2 * torch.pi) ** 0.5).log()).logsumexp(-1)

    def score_and_drift(self, z: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        _, noise = self.powers(t)
        score = -z / noise
        with torch.enable_grad():
            y = z[:, 0, 0, 1].detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.log_density(y, noise[:, 0, 0, 1]).sum(), y)
        score[:, 0, 0, 1] = slope
        return score, torch.zeros_like(z)


def exact_prior(model: ExactModel) -> GaussianPrior:
    """The law of U_T of Gaussian images."""
    signal, noise = model.powers(torch.tensor([model.T], dtype=F64))
    mean = dct2(torch.full((1, SIZE, SIZE), 0.5, dtype=F64))
    return GaussianPrior(mean, (signal + noise)[0, 0].sqrt()[:, :, None, None])


def bytes_of(modes: Tensor, levels: int) -> Tensor:
    """Images ½ + modes, rounded to ``levels`` values in [0, 1]."""
    return ((0.5 + idct2(modes)).clamp(0, 1) * (levels - 1)).round() / (levels - 1)
