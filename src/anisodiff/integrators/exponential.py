"""The frozen-operator exponential step.

Time is cut into fixed windows. Inside a window the edge weights stay w = w(u_s; λ1 at the window's midpoint), so
the equation is linear there and U_t given u_s is *exactly* Gaussian with mean e^{ΔA·L}u_s and covariance φ(−L)
(`gaussian_kernel`). It is unconditionally stable; the only error is the freezing, which vanishes with the windows'
length.

Two other operators, for studies: with ``blur`` ρ > 0 the gradient is that of the blurred state, w(G_ρ∗u_s) (Catté et
al. 1992), G_ρ Gaussian with a standard deviation of ρ pixels; ``turned``, it is that of the state turned by 180°,
whose edges are elsewhere.
"""

import dataclasses
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from anisodiff import gaussian_kernel, notation
from anisodiff.dct import dct2, frequencies, idct2
from anisodiff.equation import Equation
from anisodiff.integrators import chebyshev, kernels
from anisodiff.integrators.base import Frozen, LocalKernel, TimeStep
from anisodiff.stencils import Drift
from anisodiff.stencils.flux import EdgeWeights, apply_edges, edge_weights
from anisodiff.stencils.gradient import per_sample
from anisodiff.tensors import compiled, made_once, moved, widened


@made_once
def window_degree(equation: Equation, s: float, e: float, tolerance: float) -> int:
    """Degree for e^{−ΔAz}, φ^{1/2} and φ^{−1/2}, for every t in the window [s, e], to ``tolerance`` of their maxima.

    The window's full length is the stiffest; shorter pieces are looked at as well.
    """
    z = chebyshev.nodes(chebyshev.FINE - 1, torch.device("cpu"))
    begin = torch.full((4,), s, dtype=torch.float64)
    end = s + (e - s) * torch.tensor([1.0, 0.5, 0.1, 0.01], dtype=torch.float64)
    functions = [gaussian_kernel.decay(equation, begin, end, z)]
    if equation.noisy:
        root = gaussian_kernel.variance(equation, begin, end, z).sqrt()
        functions += [root, 1.0 / root.clamp(min=1e-300)]
    return chebyshev.degree_for(torch.cat(functions), tolerance)


@made_once
def _windows(equation: Equation, step: "Exponential", device: torch.device) -> tuple[Tensor, tuple[int, ...]]:
    """1/λ1 at the windows' midpoints [K] (of what is smoothed), on the device, and the degree of each window."""
    edges = step.nodes(equation)
    t = torch.tensor(edges, dtype=torch.float64).clamp(max=equation.smoothing_end or equation.T)
    inv_lambda = moved(equation.inv_lambda1(0.5 * (t[:-1] + t[1:])), device)
    return inv_lambda, tuple(window_degree(equation, s, e, step.tolerance) for s, e in pairwise(edges))


@made_once
def _whole_window(equation: Equation, s: float, e: float, degree: int, device: torch.device) -> Tensor:
    """Coefficients [n+1, 2, 1] of e^{−ΔAz} and φ^{1/2} over a whole window: the same for every batch."""
    z = chebyshev.nodes(degree, torch.device("cpu"))
    begin, end = (torch.full((1,), t, dtype=torch.float64) for t in (s, e))
    root = gaussian_kernel.variance(equation, begin, end, z).sqrt()
    return moved(_series(torch.stack([gaussian_kernel.decay(equation, begin, end, z), root])), device)


def _series(values: Tensor) -> Tensor:
    """Coefficients [n+1, F, B] from values [F, B, n+1] at the nodes; always of the same strides: one compilation."""
    return chebyshev.coefficients(values).movedim(-1, 0).contiguous()


def _weights(u: Tensor, inv_lambda: Tensor, compile: bool) -> EdgeWeights:
    if kernels.fits(u):
        from anisodiff.integrators.kernels import flux

        return EdgeWeights(*flux.edge_weights(u, inv_lambda))
    return EdgeWeights(*compiled(edge_weights, compile)(u, inv_lambda))


@dataclass(frozen=True)
class FrozenOperator(Frozen):
    """Edge weights of one window, and the polynomials in them."""

    equation: Equation
    weights: EdgeWeights
    degree: int
    compile: bool
    window: tuple[float, float] | None
    """[s, e], where it is one for all samples."""

    def polynomial(self, c: Tensor, v: Tensor) -> Tensor:
        """Σ_j c_j T_j v for ``v`` [F, B, C, H, W] and coefficients ``c`` [n+1, F, B or 1] (float64)."""
        c = c.to(v.dtype)
        if kernels.fits(v, *self.weights):
            from anisodiff.integrators.kernels import flux

            return flux.polynomial(*self.weights, v, c)
        c = c[(...,) + (None,) * 3]
        recur, bunch = compiled(chebyshev.recur, self.compile), compiled(chebyshev.recur_bunch, self.compile)
        total: Tensor
        before, now, total = compiled(chebyshev.start, self.compile)(self.weights, v, c[:2])
        j = 2
        while j + chebyshev.BUNCH <= self.degree + 1:
            before, now, total = bunch(self.weights, before, now, total, c[j : j + chebyshev.BUNCH])
            j += chebyshev.BUNCH
        for k in range(j, self.degree + 1):
            following, total = recur(self.weights, before, now, total, c[k])
            before, now = now, following
        return total

    def advance(self, u: Tensor, xi: Tensor | None, s: Tensor, t: Tensor) -> Tensor:
        """e^{ΔA·L}u + φ^{1/2}(−L)ξ, both through one recurrence; where t = s, u to the last bit."""
        z = chebyshev.nodes(self.degree, u.device)
        mean = gaussian_kernel.decay(self.equation, s, t, z)
        if xi is None or not self.equation.noisy:
            moved = self.polynomial(_series(mean[None]), u[None])[0]
        else:
            root = gaussian_kernel.variance(self.equation, s, t, z).sqrt()
            moved = self.polynomial(_series(torch.stack([mean, root])), torch.stack([u, xi])).sum(0)
        return torch.where((t > s)[:, None, None, None], moved, u)

    def across(self, u: Tensor, xi: Tensor | None) -> Tensor:
        """The same over the whole window, with coefficients that were made once."""
        assert self.window is not None
        c = _whole_window(self.equation, *self.window, self.degree, u.device)
        if xi is None or not self.equation.noisy:
            return self.polynomial(c[:, :1], u[None])[0]
        return self.polynomial(c, torch.stack([u, xi])).sum(0)

    def kernel(self, u: Tensor, xi: Tensor, s: Tensor, t: Tensor) -> LocalKernel:
        """C = φ(−L): the score is −φ^{−1/2}(−L)ξ, the drift α1(t)·L u_t with the frozen L."""
        z = chebyshev.nodes(self.degree, u.device)
        root = gaussian_kernel.variance(self.equation, s, t, z).sqrt()
        functions = torch.stack([gaussian_kernel.decay(self.equation, s, t, z), root, -1.0 / root])
        mean, spread, score = self.polynomial(_series(functions), torch.stack([u, xi, xi]))
        state = mean + spread
        drift = per_sample(self.equation.alpha1(t), u) * apply_edges(self.weights, state)
        return LocalKernel(state, score, drift)

    def log_determinant(self, probe: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """tr ln φ(−L): exactly for the line through ln φ at both ends of the spectrum, what is left by ξᵀf(−L)ξ."""
        z = chebyshev.nodes(self.degree, probe.device)
        f = gaussian_kernel.variance(self.equation, s, t, z).log()
        low, slope = f[:, -1:], (f[:, :1] - f[:, -1:]) / chebyshev.SPECTRUM  # nodes descend from 8 to 0
        rest = self.polynomial(_series((f - low - slope * z)[None]), probe[None])[0]
        trace = 2 * sum(widened(w).sum((-3, -2, -1)) for w in self.weights)
        count = probe[0].numel()
        return count * low[:, 0] + slope[:, 0] * trace + widened(probe * rest).sum((-3, -2, -1))


def require_flux(equation: Equation, stencil: str, step: str) -> None:
    """What ``step`` needs for its polynomials: the symmetric stencil, and noise that does not depend on the state."""
    if stencil != "flux":
        raise ValueError(f"the {step} step needs stencil='flux' (symmetric), got {stencil!r}; or step='tamed'")
    if not equation.additive:
        raise ValueError(
            f"the {step} step needs isotropic noise, got noise_anisotropy={equation.noise_anisotropy}; "
            "set noise_anisotropy='infinite' or step='tamed'"
        )


def with_smoothing_end(equation: Equation, edges: tuple[float, ...]) -> tuple[float, ...]:
    """Window ``edges`` with the time at which the smoothing ends, inside the last window, among them."""
    end = equation.smoothing_end
    return edges if end is None else (*edges[:-1], end, edges[-1])


@dataclass(frozen=True)
class Exponential(TimeStep):
    """``exponential(windows=10, tolerance=1e-06)``: equal windows; Chebyshev error at most ``tolerance``."""

    windows: int = 10
    tolerance: float = 1e-6
    compile: bool = field(default=False, compare=False, metadata={"law": False})
    blur: float = field(default=0.0, metadata={"unless_default": True})
    """ρ, in pixels, before gradients are measured."""
    turned: bool = field(default=False, metadata={"unless_default": True})
    """Edge weights of the state turned by 180°: a control."""

    def __post_init__(self) -> None:
        blur = notation.number(self.blur, "blur of a step")
        if not 0 <= blur <= 1e4:
            raise ValueError(f"blur of a step must lie from 0 to 10,000 pixels, got {blur:g}")
        object.__setattr__(self, "blur", blur)
        object.__setattr__(self, "turned", notation.switch(self.turned, "turned"))
        windows = notation.number(self.windows, "windows of a step")
        if not 1 <= windows <= 100_000 or windows != int(windows):
            raise ValueError(f"windows must be a whole number from 1 to 100,000, got {windows:g}")
        tolerance = notation.number(self.tolerance, "tolerance of a step")
        if not 1e-11 <= tolerance <= 0.1:
            raise ValueError(f"tolerance of a step must lie in [1e-11, 0.1], got {tolerance:g}")
        object.__setattr__(self, "windows", int(windows))
        object.__setattr__(self, "compile", notation.switch(self.compile, "compile"))
        object.__setattr__(self, "tolerance", tolerance)

    def check(self, equation: Equation, stencil: str) -> None:
        """Needs the symmetric stencil and white, isotropic noise."""
        require_flux(equation, stencil, "exponential")
        if equation.correlation_length > 0 and equation.noisy:
            raise ValueError(
                f"the exponential step needs white noise, got correlation_length={equation.correlation_length:g}; "
                "set correlation_length=0, or step='signal' or 'tamed'"
            )
        self.check_windows(equation)

    def check_windows(self, equation: Equation) -> None:
        """Refuse windows too stiff for polynomials."""
        for s, e in pairwise(self.nodes(equation)):
            window_degree(equation, s, e, self.tolerance)

    def nodes(self, equation: Equation) -> tuple[float, ...]:
        """The window edges. Where the smoothing ends before T, the windows are even until then; the last goes on."""
        end = equation.smoothing_end or equation.T
        return (*(end * k / self.windows for k in range(self.windows)), equation.T)

    def jumps(self, equation: Equation) -> tuple[float, ...]:
        """The window edges, and where the smoothing ends."""
        return with_smoothing_end(equation, self.nodes(equation))

    def freeze(self, equation: Equation, drift: Drift, u: Tensor, node: int | Tensor) -> FrozenOperator:
        """Edge weights of ``u`` with λ1 at the window's midpoint, which does not depend on t."""
        inv_lambda, degrees = _windows(equation, self, u.device)
        weights = _weights(self._seen(u), inv_lambda[node], self.compile)
        if not isinstance(node, int):
            return FrozenOperator(equation, weights, max(degrees), self.compile, None)
        edges = self.nodes(equation)
        return FrozenOperator(equation, weights, degrees[node], self.compile, (edges[node], edges[node + 1]))

    def _seen(self, u: Tensor) -> Tensor:
        """What the gradients are measured on."""
        if self.blur > 0:
            z = frequencies(u.shape[-2], u.shape[-1], u.dtype, u.device)
            u = idct2(torch.exp(-0.5 * self.blur**2 * z) * dct2(u))
        return u.flip(-2, -1).contiguous() if self.turned else u

    def compiled(self) -> "Exponential":
        return dataclasses.replace(self, compile=True)

    def __str__(self) -> str:
        return notation.write("exponential", self)
