"""A nonlinear toy small enough for quadrature: two pixels, one edge.

Their difference mode m = (u2 − u1)/√2 obeys dm = −2 α1 w(m) m dt + α2 dW, w(m) = 1/√(1 + 8 m²/λ²), the flux weight
with p = 2(u2 − u1). Frozen at a node it is the mode of eigenvalue z = 2w, so `gaussian_kernel.decay` and `variance`
apply to it. Densities are carried from node to node by Chapman–Kolmogorov sums on a grid; score and projected drift
of the chain are compared with what the density itself says.
"""

import math

import torch
from torch import Tensor

from anisodiff import Equation, gaussian_kernel
from tests.support.oracles import F64, at

LAMBDA, T = 0.4, 1.0
EQUATION = Equation(diffusivity="geometric(0.5, 3)", intensity="geometric(0.3, 1)", drift_anisotropy=LAMBDA, T=T)
GRID = torch.linspace(-4.5, 4.5, 601, dtype=F64)
STEP = float(GRID[1] - GRID[0])


def data_density() -> Tensor:
    """Two kinds of images: an edge up, or an edge down."""
    p = sum(torch.exp(-0.5 * ((GRID - c) / 0.15) ** 2) for c in (-0.8, 0.8))
    return p / (p.sum() * STEP)


def weight(m: Tensor) -> Tensor:
    return 1.0 / torch.sqrt(1.0 + 8.0 * m**2 / LAMBDA**2)


class Window:
    """Frozen operator: exact Gaussian within a window, the drift follows w at its start."""

    def kernel(self, s: float, t: float) -> tuple[Tensor, Tensor]:
        """Mean and variance of m_t for every m_s on the grid."""
        z = 2.0 * weight(GRID)
        return gaussian_kernel.decay(EQUATION, at(s), at(t), z)[0] * GRID, gaussian_kernel.variance(
            EQUATION, at(s), at(t), z
        )[0]

    def drift(self, s: float, t: float) -> Tensor:
        """Frozen drift at m_t (columns) given m_s (rows)."""
        return -2.0 * EQUATION.alpha1(at(t)) * weight(GRID)[:, None] * GRID[None, :]


class OneStep:
    """Euler–Maruyama with its drift and noise frozen at the node."""

    def kernel(self, s: float, t: float) -> tuple[Tensor, Tensor]:
        b = -2.0 * EQUATION.alpha1(at(s)) * weight(GRID) * GRID
        return GRID + (t - s) * b, ((t - s) * EQUATION.alpha2(at(s)) ** 2).expand_as(GRID)

    def drift(self, s: float, t: float) -> Tensor:
        b = -2.0 * EQUATION.alpha1(at(s)) * weight(GRID) * GRID
        return b[:, None].expand(len(GRID), len(GRID))


def transition(chain, s: float, t: float) -> Tensor:
    """p(m_t | m_s): rows m_s, columns m_t."""
    mean, variance = chain.kernel(s, t)
    gap = GRID[None, :] - mean[:, None]
    return torch.exp(-0.5 * gap**2 / variance[:, None]) / torch.sqrt(2 * math.pi * variance[:, None])


def density(chain, nodes: int, t: float) -> tuple[Tensor, float]:
    """The density at the last node s before t, and s."""
    p, k = data_density(), 0
    while (k + 1) * T / nodes < t - 1e-12:
        p = STEP * p @ transition(chain, k * T / nodes, (k + 1) * T / nodes)
        k += 1
    return p, k * T / nodes


def marginal(chain, nodes: int, t: float) -> Tensor:
    p, s = density(chain, nodes, t)
    return STEP * p @ transition(chain, s, t)


def targets(chain, nodes: int, t: float) -> tuple[Tensor, Tensor, Tensor]:
    """p_t, and the conditional means of the score target and of the frozen drift given m_t."""
    p, s = density(chain, nodes, t)
    joint = STEP * p[:, None] * transition(chain, s, t)
    mean, variance = chain.kernel(s, t)
    total = joint.sum(0)
    score = (joint * (-(GRID[None, :] - mean[:, None]) / variance[:, None])).sum(0) / total
    return total, score, (joint * chain.drift(s, t)).sum(0) / total


def derivative(f: Tensor) -> Tensor:
    """Fourth-order central difference on the grid (two points lost at each end)."""
    return (8 * (f[3:-1] - f[1:-3]) - (f[4:] - f[:-4])) / (12 * STEP)
