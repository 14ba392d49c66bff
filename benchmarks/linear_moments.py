"""Second moments of reverse processes with affine predictors, propagated exactly, and tables measured along paths.

With affine predictors the reverse process is linear and diagonal in the DCT: v' = a² v + r per frequency, with a and
r read from the sampler's own step: a is what it makes of 1 without noise, √r what it makes of 0 with noise 1.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from anisodiff.dct import dct2, frequencies, radial_bands
from anisodiff.integrators import LocalKernel, TamedEuler
from anisodiff.models.score import ScoreModel
from anisodiff.noise import KeyedNoise, combine, white
from anisodiff.priors import GaussianPrior
from anisodiff.processes import SPDE, ClosedForm, Process
from anisodiff.samplers import Sampler
from anisodiff.samplers.exponential import Exponential
from anisodiff.samplers.reference import reference
from anisodiff.statistics import SpectralStatistics, channel_axes, window_phases
from anisodiff.stencils import STENCILS

F64 = torch.float64
Sums = dict[str, Tensor]


class Nothing(torch.nn.Module):
    """A network that knows no more than the best linear predictors."""

    def forward(self, x, c, dropout_key=None):
        return torch.zeros_like(x).repeat(1, 2, 1, 1)


class Impulse(KeyedNoise):
    """In draw number j the row j is 1 at all frequencies, and the others are 0."""

    def __init__(self, rows: int) -> None:
        super().__init__(torch.arange(rows))

    def normal(self, like: Tensor) -> Tensor:
        self.drawn += 1
        out = torch.zeros_like(like)
        out[self.drawn] = 1
        return out


def linear_model(process: Process, statistics: SpectralStatistics) -> ScoreModel:
    """Score and drift are their best linear predictors."""
    objective = process
    return ScoreModel(Nothing(), objective.equation, statistics, drift=objective.learns_drift)


def gains(sampler: Sampler, model: ScoreModel, times: Tensor) -> list[tuple[Tensor, Tensor]]:
    """a and r of every step, both [H, W], float64; for samplers whose steps remember nothing."""
    found = []
    for t, after in pairwise(times.split(1)):
        z = torch.zeros(2, 1, *model.statistics.data.shape, dtype=F64)
        z[0] = 1
        z = sampler.step(model, z, t, after, Impulse(2), {})[:, 0]
        found.append((z[0], z[1].square()))
    return found


def propagate(steps: Sequence[tuple[Tensor, Tensor]], power: Tensor) -> Tensor:
    """The power [H, W] after ``steps``."""
    for a, r in steps:
        power = a.square() * power + r
    return power


def impulses(sampler: Sampler, model: ScoreModel, times: Tensor, power: Tensor) -> Tensor:
    """The same for any linear sampler: the sum of squares of its responses to the start and to every step's noise."""
    z = torch.zeros(len(times), 1, *power.shape, dtype=F64)
    z[0] = power.sqrt()
    noise, memory = Impulse(len(times)), {}
    for t, after in pairwise(times.split(1)):
        z = sampler.step(model, z, t, after, noise, memory)
    return z.square().sum((0, 1))


def origins(model: ScoreModel, start: Tensor, times: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of the last power that come from the prior, and from before a frequency's last stiff step, where the
    sampler takes the power from the tables; [H, W] each.
    """
    power, prior, stiff = start, start, torch.zeros_like(start)
    steps = gains(Exponential(order=1, wiener=1), model, times)
    for (a, r), (t, after) in zip(steps, pairwise(times.split(1))):
        c = model.coefficients(t)
        power, prior = a.square() * power + r, a.square() * prior
        taken = reference(model, c, after, t).gained[0] >= 0.5 * c.power[0, 0]
        stiff = torch.where(taken, power, a.square() * stiff)
    return prior / power, stiff / power


def prior_power(prior: GaussianPrior, mean: Tensor) -> Tensor:
    """E|û|² of the prior about the channel means ``mean`` [C], pooled over channels, [H, W]."""
    root, center = prior.root.double(), prior.mean.double()
    level = dct2(mean.double()[:, None, None].expand_as(center))
    return root.square().sum(-1).mean(-1) + (center - level).square().mean(0)


def symmetric(x: Tensor) -> Tensor:
    """Tables take rows and columns as alike; so must a ratio per frequency."""
    return 0.5 * (x + x.mT)


def ratio_of_sums(a: Tensor, b: Tensor, bands: int) -> Tensor:
    """Power in a band over power in the band, [bands]."""
    band = radial_bands(*a.shape, bands)
    return torch.stack([a[band == k].sum() / b[band == k].sum() for k in range(bands)])


def mean_of_ratios(a: Tensor, b: Tensor, bands: int) -> Tensor:
    """Mean over the frequencies of a band, each counting the same, [bands]."""
    band = radial_bands(*a.shape, bands)
    return torch.stack([(a / b)[band == k].mean() for k in range(bands)])


def image_error(power: Tensor, bands: int) -> Tensor:
    """Relative standard error of the mean power in the bands over images [N, H, W], [bands]."""
    band = radial_bands(*power.shape[1:], bands)
    each = torch.stack([power[:, band == k].sum(1) for k in range(bands)])
    return each.std(1) / each.mean(1) / len(power) ** 0.5


def forward_power(process: Process, images: Tensor, mean: Tensor, t: float, *, draws: int = 2) -> Tensor:
    """|û_k|² at ``t`` of every image about ``mean``, pooled over channels and ``draws`` of the noise, [N, H, W].

    Linear processes: its expectation given the image, in closed form.
    """
    level = mean.double()[:, None, None]
    if isinstance(process, ClosedForm):
        x = images.double()
        return dct2(process.mean(x, 0.0, t) - level).square().mean(1) + process.variance(x[:1], 0.0, t)[:, 0]
    sources = [KeyedNoise(combine(4, draw, torch.arange(len(images)))) for draw in range(draws)]
    seen = [process.draw(images, t, source).double() for source in sources]
    return torch.stack([dct2(u - level).square().mean(1) for u in seen]).mean(0)


def along(process: SPDE, images: Tensor, mean: Tensor, seed: int) -> Sums:
    """Sums of moments along two paths for each image, [K·P, H, W]; with counts under "n".

    V = |û|², S = û û' of the two paths, C = b̂ û, E = |b̂|², Y = |score target|², and for windows U = b̂(u_t) û with
    the drift at the state itself in place of the frozen one. They stand at the ends of single steps, or at the phases
    that tables have in every window. All pieces branch off the same two paths: every node is simulated once.
    """
    equation, nodes = process.equation, process.step.nodes(process.equation)
    single = isinstance(process.step, TamedEuler)
    phases = [1.0] if single else window_phases(len(nodes) - 1).tolist()
    stencil = STENCILS[process.stencil]
    rows: dict[str, list[Tensor]] = {name: [] for name in ("V", "S", "C", "E", "Y", "U")}
    sources = [KeyedNoise(combine(seed, run, torch.arange(len(images)))) for run in (1, 2)]
    states = [images, images]

    def add(name: str, pairs: list[tuple[Tensor, Tensor]]) -> None:
        rows[name].append(symmetric(sum((x * y).double().sum((0, 1)) for x, y in pairs) / len(pairs)))

    for node, (s, e) in enumerate(pairwise(nodes)):
        frozen = [process.step.freeze(equation, stencil, u, node) for u in states]
        begin, middle = (torch.tensor([x], dtype=F64) for x in (s, 0.5 * (s + e)))
        drawn: list[LocalKernel] = []
        for phase in phases:
            t = begin + phase * (e - s)
            drawn = [f.kernel(u, white(u, source), begin, t) for f, u, source in zip(frozen, states, sources)]
            z = [dct2(d.state - mean[:, None, None]) for d in drawn]
            b, score = [dct2(d.drift) for d in drawn], [dct2(d.score) for d in drawn]
            add("V", list(zip(z, z)))
            add("S", [(z[0], z[1])])
            add("C", list(zip(b, z)))
            add("E", list(zip(b, b)))
            add("Y", list(zip(score, score)))
            if not single:
                own = [dct2(stencil(d.state, equation.alpha1(t), equation.inv_lambda1(middle))) for d in drawn]
                add("U", list(zip(own, z)))
        moved = [f.across(u, white(u, source)) for f, u, source in zip(frozen, states, sources)] if not single else []
        states = moved or [d.state for d in drawn]
    total = {name: torch.stack(row) for name, row in rows.items() if row}
    return {**total, "n": torch.tensor(float(images.shape[0] * images.shape[1]))}


def pooled(parts: Sequence[Sums]) -> Sums:
    """Means over all images from the sums of groups of them."""
    count = torch.stack([part["n"] for part in parts]).sum()
    means = {name: torch.stack([part[name] for part in parts]).sum(0) / count for name in parts[0] if name != "n"}
    return {**means, "n": count}


def places(process: SPDE) -> tuple[Tensor, Tensor]:
    """Edges [K+1] and phases [P] of tables from `along`; single steps stand in cells of a twentieth of T."""
    nodes = torch.tensor(process.step.nodes(process.equation), dtype=F64)
    if not isinstance(process.step, TamedEuler):
        return nodes, window_phases(len(nodes) - 1)
    steps = round(process.T / 20 / process.step.dt)
    return nodes[::steps].contiguous(), torch.arange(1, steps + 1, dtype=F64) / steps


def path_tables(process: SPDE, means: Sums, mean: Tensor, data: Tensor, *, drift: str = "C") -> SpectralStatistics:
    """The tables from pooled moments, V kept as measured; ``drift``: "U" leaves the projection out."""
    edges, phases = places(process)
    t = (edges[:-1, None] + phases * edges.diff()[:, None]).flatten()
    alpha1, alpha2 = (x[:, None, None] for x in (process.equation.alpha1(t), process.equation.alpha2(t)))
    power, cross = means["V"], means[drift]
    signal = means["S"].clamp(min=0)
    signal = torch.where(signal > 2.5 * power / means["n"].sqrt(), signal, 1e-4 * power)
    z = frequencies(*data.shape, F64, data.device)
    weight = torch.where(z > 0, -cross / (alpha1 * z * power).clamp(min=1e-300), 1.0)
    residual = (means["E"] - cross.square() / power).clamp(min=1e-30) / alpha2**4

    def table(x: Tensor) -> Tensor:
        return x.reshape(len(edges) - 1, len(phases), *data.shape).float()

    return SpectralStatistics(
        edges=edges, phases=phases, mean=mean, data=data.float(), **channel_axes(len(mean), data.float()),
        log_noise=table((power - signal).log()), log_signal=table(signal.log()), weight=table(weight),
        log_target=table(means["Y"].log()), log_residual=table(residual.log()),
    )  # fmt: skip


def chain_steps(process: SPDE, means: Sums, t_min: float) -> list[tuple[Tensor, Tensor]]:
    """a and r of the tamed chain's own best linear reverse steps down to ``t_min``, from moments at their ends.

    u_{k+1} = u_k + Δt b + √q ξ with q = Δt α2(t_k)² gives Cov(û_k, û_{k+1}) = V − Δt C − q and
    V_k = V − 2Δt C + Δt² E − q.
    """
    assert isinstance(process.step, TamedEuler)
    dt, found = process.step.dt, []
    for k in range(len(means["V"]) - 1, round(t_min / dt) - 1, -1):
        q = dt * float(process.equation.alpha2(torch.tensor(k * dt, dtype=F64))) ** 2
        power, cross, square = (means[name][k] for name in ("V", "C", "E"))
        a = 1 - (dt * cross + q) / power
        found.append((a, power - 2 * dt * cross + dt**2 * square - q - a.square() * power))
    return found
