"""The transition kernel of the linear SDE (paper, Eq. 12 for L = Δ)

    dU = α1(t) L U dt + α2(t) dW,      L ≤ 0 symmetric and fixed.

With z the eigenvalues of −L and A(t) = ∫α1, U_t given U_s is Gaussian; for each eigenvalue

    mean factor   e^{−ΔA z},                ΔA = A(t) − A(s)
    variance      φ(z) = ∫_s^t α2(r)² e^{−2(A(t)−A(r)) z} dr,

times q_k for correlated noise (only if L is the Laplacian, so that L and Q are both diagonal in the DCT).

The integral is computed by tanh–sinh quadrature. Its fixed nodes resolve both the boundary layer of a stiff drift
at r = t and a schedule ∝ t^r at r = 0: φ(z) = Σ_q m_q e^{−c_q z}. In the DCT z is a sum over the two axes, so the
sum over q is a product of two small matrices.
"""

import math

import torch
from torch import Tensor

from anisodiff.dct import axis_frequencies
from anisodiff.equation import Equation
from anisodiff.noise import spectrum
from anisodiff.tensors import cached, to_device

_STEP, _REACH = 0.05, 3.5
"""Spacing and range of the quadrature: 141 nodes; relative error below 1e-8 for ΔA·z up to 8·10³ (tested)."""


@cached
def _tanh_sinh(device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the quadrature on [0, 1]."""
    count = int(_REACH / _STEP)
    tau = _STEP * torch.arange(-count, count + 1, dtype=torch.float64)
    y = math.pi * torch.sinh(tau)
    left, right = torch.sigmoid(y), torch.sigmoid(-y)
    return to_device(left, device), to_device(_STEP * math.pi * torch.cosh(tau) * left * right, device)


def quadrature(equation: Equation, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Masses m and rates c, both [B, Q or 2Q] float64, with φ(z) = Σ_q m_q e^{−c_q z}, for times s ≤ t, both [B]."""
    end = equation.smoothing_end
    if end is None:
        return _piece(equation, s, t, t)
    between = torch.minimum(torch.maximum(s, torch.full_like(s, end)), t)  # the integrand has a kink where α1 jumps
    pieces = _piece(equation, s, between, t), _piece(equation, between, t, t)
    return torch.cat([mass for mass, _ in pieces], 1), torch.cat([rate for _, rate in pieces], 1)


def _piece(equation: Equation, s: Tensor, e: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """The contribution of the noise between ``s`` and ``e`` ≤ ``t``."""
    fraction, weight = _tanh_sinh(t.device)
    length = (e - s)[:, None]
    r = torch.minimum(s[:, None] + length * fraction, e[:, None])
    mass = weight * length * equation.alpha2(r) ** 2
    return mass, 2.0 * equation.smoothing(r, t[:, None].expand_as(r))


def decay(equation: Equation, s: Tensor, t: Tensor, z: Tensor) -> Tensor:
    """e^{−ΔA z}, [B, M], for a vector ``z`` [M] of eigenvalues."""
    return torch.exp(-equation.smoothing(s, t)[:, None] * z)


def variance(equation: Equation, s: Tensor, t: Tensor, z: Tensor) -> Tensor:
    """φ(z), [B, M], for a vector ``z`` [M] of eigenvalues."""
    mass, rate = quadrature(equation, s, t)
    return torch.einsum("bq,bqm->bm", mass, torch.exp(-rate[:, :, None] * z))


def grid_decay(equation: Equation, s: Tensor, t: Tensor, u: Tensor) -> Tensor:
    """e^{−ΔA z} on the DCT grid of ``u`` [B, C, H, W]: [B, 1, H, W]."""
    z1 = axis_frequencies(u.shape[-2], u.dtype, u.device)
    z2 = axis_frequencies(u.shape[-1], u.dtype, u.device)
    amount = equation.smoothing(s, t).to(u.dtype)[:, None]
    return (torch.exp(-amount * z1)[:, :, None] * torch.exp(-amount * z2)[:, None, :])[:, None]


def grid_variance(equation: Equation, s: Tensor, t: Tensor, u: Tensor) -> Tensor:
    """q φ(z) on the DCT grid of ``u`` [B, C, H, W]: [B, 1, H, W]."""
    z1 = axis_frequencies(u.shape[-2], u.dtype, u.device)
    z2 = axis_frequencies(u.shape[-1], u.dtype, u.device)
    mass, rate = (x.to(u.dtype) for x in quadrature(equation, s, t))
    rows = mass[:, :, None] * torch.exp(-rate[:, :, None] * z1)
    columns = torch.exp(-rate[:, :, None] * z2)
    return colored(equation, torch.einsum("bqi,bqj->bij", rows, columns)[:, None])


def colored(equation: Equation, x: Tensor) -> Tensor:
    """``x`` [..., H, W] times the spectrum q of the noise, which is 1 for white noise."""
    length = equation.correlation_length
    return x if length == 0 else x * spectrum(x.shape[-2], x.shape[-1], length, x.dtype, x.device)
