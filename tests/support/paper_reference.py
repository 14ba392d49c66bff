"""The paper's discretized drift and diffusion coefficient, pixel by pixel, case by case, as the supplement prints
them, with the misprints listed in docs/notation.md corrected (each is marked below). Slow on purpose.

Indices as there: i1 = 0 … d1−1 from left to right, i2 = 0 … d2−1 from bottom to top; u[i1][i2].
"""

import math

import torch


def g(alpha: float, inv_lambda: float, p1: float, p2: float) -> float:
    return alpha / math.sqrt(1.0 + (p1 * inv_lambda) ** 2 + (p2 * inv_lambda) ** 2)


def drift_pixel(u: torch.Tensor, i1: int, i2: int, alpha: float, inv_lambda: float) -> float:
    d1, d2 = u.shape

    def v(a: int, b: int) -> float:
        return float(u[a, b])

    def g1(p1: float, p2: float) -> float:
        return g(alpha, inv_lambda, p1, p2)

    c = v(i1, i2)
    right2, left2 = min(i1 + 2, d1 - 1), max(i1 - 2, 0)
    up2, down2 = min(i2 + 2, d2 - 1), max(i2 - 2, 0)
    inside1, inside2 = 0 < i1 < d1 - 1, 0 < i2 < d2 - 1
    if inside1 and inside2:
        return (
            g1(v(right2, i2) - c, v(i1 + 1, i2 + 1) - v(i1 + 1, i2 - 1)) * (v(i1 + 1, i2) - c)
            - g1(c - v(left2, i2), v(i1 - 1, i2 + 1) - v(i1 - 1, i2 - 1)) * (c - v(i1 - 1, i2))
            + g1(v(i1 + 1, i2 + 1) - v(i1 - 1, i2 + 1), v(i1, up2) - c) * (v(i1, i2 + 1) - c)
            - g1(v(i1 + 1, i2 - 1) - v(i1 - 1, i2 - 1), c - v(i1, down2)) * (c - v(i1, i2 - 1))
        )
    if i1 == 0 and i2 == 0:  # left edge, i2 = 0
        return (g1(v(right2, i2) - c, 0) + g1(0, 0)) * (v(i1 + 1, i2) - c) + (g1(0, v(i1, up2) - c) + g1(0, 0)) * (
            v(i1, i2 + 1) - c
        )
    if i1 == 0 and inside2:  # left edge, i2 > 0
        across = v(i1 + 1, i2 + 1) - v(i1 + 1, i2 - 1)
        return (
            (g1(v(right2, i2) - c, across) + g1(0, across)) * (v(i1 + 1, i2) - c)
            + g1(0, v(i1, up2) - c) * (v(i1, i2 + 1) - c)
            - g1(0, c - v(i1, down2)) * (c - v(i1, i2 - 1))
        )
    if i1 == 0 and i2 == d2 - 1:  # top edge, i1 = 0; misprint: i2 ∨ 0 for (i2−2) ∨ 0
        return (g1(v(right2, i2) - c, 0) + g1(0, 0)) * (v(i1 + 1, i2) - c) + (g1(0, c - v(i1, down2)) + g1(0, 0)) * (
            v(i1, i2 - 1) - c
        )
    if inside1 and i2 == d2 - 1:  # top edge, i1 > 0; misprint: the first term lacks (u_{i1+1} − u_i)
        across = v(i1 + 1, i2 - 1) - v(i1 - 1, i2 - 1)
        return (
            g1(v(right2, i2) - c, 0) * (v(i1 + 1, i2) - c)
            - g1(c - v(left2, i2), 0) * (c - v(i1 - 1, i2))
            + (g1(across, 0) + g1(across, c - v(i1, down2))) * (v(i1, i2 - 1) - c)
        )
    if i1 == d1 - 1 and i2 == d2 - 1:  # right edge, i2 = d2 − 1; misprint: u_{i1−1,i2+1} for u_{i1−1,i2}
        return (g1(c - v(left2, i2), 0) + g1(0, 0)) * (v(i1 - 1, i2) - c) + (g1(0, c - v(i1, down2)) + g1(0, 0)) * (
            v(i1, i2 - 1) - c
        )
    if i1 == d1 - 1 and inside2:  # right edge, i2 < d2 − 1
        across = v(i1 - 1, i2 + 1) - v(i1 - 1, i2 - 1)
        return (
            (g1(0, across) + g1(c - v(left2, i2), across)) * (v(i1 - 1, i2) - c)
            + g1(0, v(i1, up2) - c) * (v(i1, i2 + 1) - c)
            - g1(0, c - v(i1, down2)) * (c - v(i1, i2 - 1))
        )
    if i1 == d1 - 1 and i2 == 0:  # bottom edge, i1 = d1 − 1
        return (g1(c - v(left2, i2), 0) + g1(0, 0)) * (v(i1 - 1, i2) - c) + (g1(0, v(i1, up2) - c) + g1(0, 0)) * (
            v(i1, i2 + 1) - c
        )
    assert inside1  # bottom edge, i1 < d1 − 1
    assert i2 == 0
    across = v(i1 + 1, i2 + 1) - v(i1 - 1, i2 + 1)
    return (
        g1(v(right2, i2) - c, 0) * (v(i1 + 1, i2) - c)
        - g1(c - v(left2, i2), 0) * (c - v(i1 - 1, i2))
        + (g1(across, v(i1, up2) - c) + g1(across, 0)) * (v(i1, i2 + 1) - c)
    )


def noise_pixel(u: torch.Tensor, i1: int, i2: int, alpha: float, inv_lambda: float) -> float:
    d1, d2 = u.shape
    p1 = float(u[i1 + 1, i2] - u[i1 - 1, i2]) if 0 < i1 < d1 - 1 else 0.0
    p2 = float(u[i1, i2 + 1] - u[i1, i2 - 1]) if 0 < i2 < d2 - 1 else 0.0
    return g(alpha, inv_lambda, p1, p2)


def field(pixel, image: torch.Tensor, alpha: float, inv_lambda: float) -> torch.Tensor:
    """``pixel`` at every place of one channel [H, W] (row 0 on top, so i2 = H−1−row)."""
    u = image.flip(0).mT
    out = torch.tensor(
        [[pixel(u, i1, i2, alpha, inv_lambda) for i2 in range(u.shape[1])] for i1 in range(u.shape[0])],
        dtype=torch.float64,
    )
    return out.mT.flip(0)
