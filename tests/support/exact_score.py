"""Gaussian data under a linear process, with the exact score: everything about a sampler can be known without chance.

Û_0 ~ N(μ, Σ) with correlated channels and modes; in interval k of time dU = α1 L(w_k) U dt + α2 dW with edge weights
w_k that do not depend on the state. They mix frequencies and jump from interval to interval, as those of windows do.
Then

    Û_t ~ N(B μ, B Σ Bᵀ + N)

with matrices B, N from the intervals passed. Tables know a mean per frequency only, so that the residuals F and G of
the exact score and drift are not zero. Samplers that are affine in start and noise are run on basis vectors, one
impulse a sample, which gives mean and covariance of their output exactly.
"""

import functools
import math

import torch
from torch import Tensor

from anisodiff import Equation
from anisodiff.dct import dct2, frequencies, idct2
from anisodiff.gaussian_kernel import decay, variance
from anisodiff.models.base import ModelOptions
from anisodiff.models.score import ScoreModel
from anisodiff.noise import KeyedNoise
from anisodiff.samplers import Sampler
from anisodiff.statistics import Coefficients, SpectralStatistics, channel_axes, window_phases
from anisodiff.stencils.flux import EdgeWeights, apply_edges

F64 = torch.float64


class Law:
    """The exact law of the process at every time, in the DCT; vectors are [C, H, W] flattened, D numbers."""

    def __init__(
        self, equation: Equation, edges: Tensor, operators: Tensor, mean: Tensor, covariance: Tensor
    ) -> None:
        self.equation, self.edges, self.operators = equation, edges, operators
        self.shape = mean.shape
        self.spectra = [torch.linalg.eigh(z) for z in operators]
        start = mean.flatten(), torch.eye(mean.numel(), dtype=F64), torch.zeros_like(covariance)
        self.covariance0, self.nodes = covariance, [start]
        self.kernel = functools.lru_cache(maxsize=4096)(self._kernel)
        for k in range(len(operators)):
            self.nodes.append(self._move(k, float(edges[k + 1])))

    def _move(self, k: int, t: float) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, B and N at t in interval k."""
        (values, basis), (mean, kept, noise) = self.spectra[k], self.nodes[k]
        s, e = self.edges[k : k + 1], torch.tensor([t], dtype=F64)
        b = basis * decay(self.equation, s, e, values)[0] @ basis.mT
        gained = basis * variance(self.equation, s, e, values)[0] @ basis.mT
        return b @ mean, b @ kept, b @ noise @ b + gained

    def _kernel(self, t: float) -> tuple[Tensor, Tensor, Tensor]:
        """E Û_t [D], B and N [D, D]: Û_t given the image x̂0 is N(B x̂0, N)."""
        return self._move(min(int(torch.searchsorted(self.edges, t)), len(self.operators)) - 1, t)

    def at(self, t: float) -> tuple[Tensor, Tensor]:
        """Mean [D] and covariance [D, D] of Û_t."""
        mean, kept, noise = self.kernel(t)
        return mean, kept @ self.covariance0 @ kept.mT + noise

    def images(self, t: float) -> tuple[Tensor, Tensor]:
        """Mean and covariance of E[x̂0 | Û_t]."""
        joint = self.covariance0 @ self.kernel(t)[1].mT
        return self.nodes[0][0], joint @ torch.linalg.solve(self.at(t)[1], joint.mT)


class Oracle(ScoreModel):
    """A score model whose residuals make score and drift exact, whatever its tables say."""

    def __init__(
        self, law: Law, statistics: SpectralStatistics, *, drift: bool, learns: str = "score_and_drift"
    ) -> None:
        super().__init__(
            torch.nn.Identity(), law.equation, statistics, drift=drift, options=ModelOptions(learns=learns)
        )
        self.law, self.made = law, 0

    def residuals(
        self, z: Tensor, c: Coefficients, dropout_key: Tensor | None = None, labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        self.made += 1
        edges = self.statistics_edges
        mean, covariance = self.law.at(
            float(edges[c.interval] + c.phase * (edges[c.interval + 1] - edges[c.interval]))
        )
        flat = z.flatten(1)
        score = -torch.linalg.solve(covariance, (flat - mean).mT).mT.reshape(z.shape)
        f = (score + z / c.power) / c.scale
        if not self.learns_drift:
            return f, None
        drift = -c.alpha1 * (flat @ self.law.operators[int(c.interval)]).reshape(z.shape)
        known = -c.alpha1 * c.weight * frequencies(*z.shape[-2:], F64, z.device) * z
        g = (drift - known) / c.alpha2.square() / c.residual
        if self.learns == "score_and_drift":
            return f, g
        both = (c.scale * f - c.residual * g) / (c.scale + c.residual)
        return both, -both


def data(channels: int, size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Mean [C, H, W] and covariance [D, D] of images in the DCT: a power law, all modes correlated."""
    g = torch.Generator().manual_seed(seed)
    count = channels * size * size
    power = (0.02 / (0.2 + frequencies(size, size, F64, torch.device("cpu"))) ** 1.5).flatten().repeat(channels)
    mix = torch.eye(count, dtype=F64) + 0.3 / math.sqrt(count) * torch.randn(count, count, dtype=F64, generator=g)
    root = power.sqrt()[:, None] * mix
    mean = 0.3 * torch.randn(channels, size, size, dtype=F64, generator=g)
    mean[:, 0, 0] = 0.0  # about the channel means
    return mean * power.sqrt().reshape(channels, size, size), root @ root.mT


def operator(size: int, channels: int, weights: EdgeWeights | None) -> Tensor:
    """−L(w) in the DCT, [D, D]; the Laplacian's where no weights are given."""
    pixels = torch.eye(size * size, dtype=F64).reshape(-1, size, size)
    ones = EdgeWeights(torch.ones(size - 1, size, dtype=F64), torch.ones(size, size - 1, dtype=F64))
    modes = dct2(apply_edges(weights or ones, idct2(pixels))).flatten(1)
    return torch.block_diag(*[-modes] * channels)


def oracle(
    equation: Equation,
    *,
    channels: int = 1,
    size: int = 3,
    intervals: int = 40,
    phases: Tensor | None = None,
    drift: bool = False,
    flat: bool = False,
    learns: str = "score_and_drift",
) -> Oracle:
    """``drift``: every interval has edge weights of its own; else L is the Laplacian.

    The tables are what infinitely many images would give; ``flat``: as if all frequencies had the same power.
    """
    mean, covariance = data(channels, size)
    edges = torch.linspace(0, equation.T, intervals + 1, dtype=F64)
    place = window_phases(intervals) if phases is None else phases
    g = torch.Generator().manual_seed(1)
    w = [
        EdgeWeights(*(torch.rand(s, dtype=F64, generator=g) for s in ((size - 1, size), (size, size - 1))))
        for _ in range(intervals)
    ]
    law = Law(
        equation, edges, torch.stack([operator(size, channels, x if drift else None) for x in w]), mean, covariance
    )
    z, square = frequencies(size, size, F64, torch.device("cpu")), (channels, size, size)
    noise, signal, weight = (torch.ones(intervals, len(place), size, size, dtype=F64) for _ in range(3))
    raw = covariance + mean.flatten().outer(mean.flatten())
    spectrum = raw.diagonal().reshape(square).mean(0)
    for k in range(intervals):
        for j, p in enumerate(place):
            _, kept, spread = law.kernel(float(edges[k] + p * (edges[k + 1] - edges[k])))
            known = kept @ raw @ kept.mT
            pulled = law.operators[k] @ (known + spread)
            noise[k, j], signal[k, j], pull = (x.diagonal().reshape(square).mean(0) for x in (spread, known, pulled))
            weight[k, j] = torch.where(z > 0, pull / (z * (noise[k, j] + signal[k, j])), 1.0)
    if flat:
        assert not drift
        signal = signal * (spectrum.mean() / spectrum)
    signal = torch.maximum(signal, (1e-4 if drift else 1e-8) * noise)  # as `measure` has it
    if flat:
        spectrum = spectrum.mean().expand(size, size).contiguous()
    statistics = SpectralStatistics(
        edges=edges, phases=place, mean=torch.full((channels,), 0.5, dtype=F64), data=spectrum,
        **channel_axes(channels, spectrum), log_noise=noise.log(), log_signal=signal.log(), weight=weight,
        log_target=torch.zeros_like(noise), log_residual=torch.zeros_like(noise),
    )  # fmt: skip
    return Oracle(law, statistics, drift=drift, learns=learns)


class Impulses(KeyedNoise):
    """Sample number first + d·D + j of draw d has a 1 in element j; all other noise is zero."""

    def __init__(self, batch: int, first: int) -> None:
        super().__init__(torch.zeros(batch, dtype=torch.int64))
        self.first = first

    def normal(self, like: Tensor) -> Tensor:
        count = like[0].numel()
        noise = torch.zeros_like(like).reshape(len(like), count)
        begin = self.first + self.drawn * count
        noise[begin : begin + count] = torch.eye(count, dtype=like.dtype)[: max(0, len(like) - begin)]
        self.drawn += 1
        return noise.reshape(like.shape)


def propagated(
    model: Oracle, sampler: Sampler, times: Tensor, draws: int | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Exact mean and covariance (DCT) of (the state at the last time, the image), started in the exact law.

    Only for samplers that are affine in start and noise; ``draws`` is the number of noises they draw.
    """
    mean, covariance = model.law.at(float(times[0]))
    count = len(mean)
    draws = len(times) - 1 if draws is None else draws
    root = torch.linalg.cholesky(covariance)
    start = mean + torch.cat(
        [torch.zeros(1, count, dtype=F64), root.mT, torch.zeros(draws * count, count, dtype=F64)]
    )
    states: list[Tensor] = []
    first = idct2(start.reshape(-1, *model.law.shape)) + 0.5
    image = sampler.run(
        model, first, times, Impulses(len(start), count + 1), callback=lambda i, u: states.append(u)
    ).images
    found = []
    for u in (states[-1], image):
        modes = dct2(u - 0.5).flatten(1)
        rows = modes[1:] - modes[0]
        found.append((modes[0], rows.mT @ rows))
    return found


def gaps(found: tuple[Tensor, Tensor], exact: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Errors of mean and covariance in units of the exact covariance: every direction counts alike."""
    root = torch.linalg.cholesky(exact[1])
    mean = torch.linalg.solve_triangular(root, (found[0] - exact[0])[:, None], upper=False)
    half = torch.linalg.solve_triangular(root, found[1], upper=False)
    white = torch.linalg.solve_triangular(root, half.mT, upper=False)
    scale = math.sqrt(len(root))
    return float(mean.norm()) / scale, float((white - torch.eye(len(root), dtype=F64)).norm()) / scale
