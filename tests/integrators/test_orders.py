"""Orders of convergence of the time steps, measured: a table (step, noise, strong order, weak order).

All levels of one case are driven by the same Brownian paths, so differences between levels are the
discretization error and not Monte-Carlo noise. 4×4 images; the finest level is the reference.
"""

import math

import pytest
import torch

from anisodiff import SPDE, Equation, Exponential, TamedEuler
from anisodiff.dct import dct2
from anisodiff.stencils import STENCILS
from tests.support.oracles import F64, slope

T = 0.5
FINE = 1024
"""Steps of the finest level."""


def equation(noise_anisotropy: float) -> Equation:
    # with anisotropic noise a gentle drift: its error of order 1 would hide the noise's of order 1/2 otherwise
    return Equation(
        diffusivity="geometric(0.5, 4)" if noise_anisotropy == math.inf else "geometric(0.1, 0.4)",
        intensity="geometric(0.3, 1)",
        drift_anisotropy="exponential(0.3, k=0.5)",
        noise_anisotropy=noise_anisotropy,
        T=T,
    )


def start(batch: int) -> torch.Tensor:
    one = torch.rand((1, 1, 4, 4), dtype=F64, generator=torch.Generator().manual_seed(7))
    return one.expand(batch, 1, 4, 4)


def brownian(batch: int, seed: int) -> torch.Tensor:
    """Increments of the finest level, [FINE, B, 1, 4, 4]."""
    shape = (FINE, batch, 1, 4, 4)
    noise = torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))
    return noise * math.sqrt(T / FINE)


def times(batch: int, t: float) -> torch.Tensor:
    return torch.full((batch,), t, dtype=F64)


def euler_path(eq: Equation, steps: int, dw: torch.Tensor) -> torch.Tensor:
    """Tamed Euler with ``steps`` steps, its increments summed from the fine ones."""
    step, group, u = TamedEuler(T / steps), FINE // steps, start(dw.shape[1])
    for k in range(steps):
        increment = dw[k * group : (k + 1) * group].sum(0)
        s = times(len(u), k * T / steps)
        frozen = step.freeze(eq, STENCILS["flux"], u, k)
        u = frozen.advance(u, increment / math.sqrt(T / steps), s, s + T / steps)
    return u


def exponential_path(eq: Equation, windows: int, dw: torch.Tensor) -> torch.Tensor:
    """The exponential step with the stochastic convolution ∫e^{(A(e)−A(r))L}α2 dW taken along the fine path.

    The step itself draws that integral from its exact distribution; here it must follow the given Brownian path, so
    the frozen operator of a window takes the state and every α2 dW in it to the window's end, and they are summed
    there.
    """
    step, group, u = Exponential(windows, 1e-8), FINE // windows, start(dw.shape[1])
    h, intensity = T / FINE, eq.alpha2((torch.arange(FINE, dtype=F64) + 0.5) * T / FINE)
    for k in range(windows):
        inside = slice(k * group, (k + 1) * group)
        parts = torch.cat([u[None], intensity[inside, None, None, None, None] * dw[inside]])
        begins = (torch.arange(group + 1, dtype=F64) + k * group) * h  # of the state, then the ends of increments
        frozen = step.freeze(eq, STENCILS["flux"], u.repeat(group, 1, 1, 1), k)
        moved = frozen.advance(
            parts[:-1].flatten(0, 1),
            None,
            begins[:-1].repeat_interleave(len(u)),
            times(group * len(u), float(begins[-1])),
        )
        u = moved.unflatten(0, (group, len(u))).sum(0) + parts[-1]
    return u


TABLE = [
    # step          λ2         strong  weak   paths
    ("tamed", math.inf, 1.0, 1.0, 200),
    ("tamed", 0.3, 0.5, 1.0, 1500),
    ("exponential", math.inf, 1.0, 1.0, 80),
]


@pytest.mark.parametrize(("step", "noise_anisotropy", "strong", "weak", "batch"), TABLE)
def test_measured_orders(step, noise_anisotropy, strong, weak, batch):
    """Strong: E|u_n − u_ref|. Weak: |E u_n − E u_ref|, the mean image. The tamed step with its norm `image`."""
    eq = equation(noise_anisotropy)
    dw = brownian(batch, seed=3)
    levels = [8, 16, 32, 64]
    path = euler_path if step == "tamed" else exponential_path
    reference = euler_path(eq, FINE, dw) if step == "tamed" else exponential_path(eq, 512, dw)
    errors = [path(eq, n, dw) for n in levels]
    strong_errors = [float((u - reference).flatten(1).norm(dim=1).mean()) for u in errors]
    weak_errors = [float((u - reference).mean(0).norm()) for u in errors]
    assert slope(levels, strong_errors) == pytest.approx(strong, abs=0.2)
    assert slope(levels, weak_errors) == pytest.approx(weak, abs=0.2)


def test_both_steps_converge_to_the_same_distribution_where_explicit_steps_are_stable():
    """α1 up to 4, 8² images: variance per DCT mode and mean image of the exponential step approach those of plain
    Euler–Maruyama (untamed, fine), the variance at first order in the windows' length; extrapolated to windows of no
    length, 2·(64 windows) − (32 windows), both are equal to them. Standard errors: of a gap in ln variance, averaged
    over 64 modes, √(4/(64·2000)) = 0.006, a tenth of the last one's; of the extrapolated gap 0.010.
    """
    eq = Equation(diffusivity="geometric(0.5, 4)", intensity="geometric(0.05, 1)", drift_anisotropy=0.2, T=1.0)
    image = torch.rand((1, 1, 8, 8), dtype=F64, generator=torch.Generator().manual_seed(1))
    batch = 2000
    x0 = image.expand(batch, 1, 8, 8)

    def statistics(step: TamedEuler | Exponential, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        u = SPDE(equation=eq, step=step).draw(x0, 1.0, torch.Generator().manual_seed(seed))
        modes = dct2(u)[:, 0]
        return modes.mean(0), modes.var(0).log()

    mean, log_variance = statistics(TamedEuler(1 / 400, norm="none"), 1)
    levels = [16, 32, 64]
    means, variances = zip(*(statistics(Exponential(n), n) for n in levels))
    gaps = [abs(float((found - log_variance).mean())) for found in variances]
    assert slope(levels, gaps) == pytest.approx(1.0, abs=0.2)
    assert abs(float((2 * variances[2] - variances[1] - log_variance).mean())) < 0.03
    deviation = (2 * means[2] - means[1] - mean) / torch.sqrt((4 + 1 + 1) * torch.exp(log_variance) / batch)
    assert float(deviation.square().mean()) < 1.7  # 1 is pure Monte-Carlo noise, 99.9% quantile 1.64
