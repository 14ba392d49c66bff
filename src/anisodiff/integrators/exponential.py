"""The frozen-operator exponential step.

    U_t | U_s = u ~ N( e^{ΔA·L(w)} u,  φ(−L(w)) ),      w = w(u; λ1 at the midpoint of the window)

[0, T] is divided into fixed windows, s is the start of the window of t, and w is constant in a window. So the
equation is linear there and its kernel exact (`gaussian_kernel`). The step is stable for any α1. Its only error is
that of the frozen weights, of first order in the length of the windows.

Two other operators, for studies: with ``blur`` ρ > 0 the weights are w(G_ρ∗u) (Catté et al. 1992), G_ρ a Gaussian
with a standard deviation of ρ pixels; with ``turned`` they are those of the state rotated by 180°, a control.
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
from anisodiff.tensors import cached, compiled, to_device, to_highest_precision


@cached
def window_degree(equation: Equation, s: float, e: float, tolerance: float) -> int:
    """Degree for e^{−ΔAz}, φ^{1/2} and φ^{−1/2} at four times of the window [s, e]; error relative to the maxima."""
    z = chebyshev.nodes(chebyshev.FINE - 1, torch.device("cpu"))
    begin = torch.full((4,), s, dtype=torch.float64)
    end = s + (e - s) * torch.tensor([1.0, 0.5, 0.1, 0.01], dtype=torch.float64)
    functions = [gaussian_kernel.decay(equation, begin, end, z)]
    if equation.noisy:
        root = gaussian_kernel.variance(equation, begin, end, z).sqrt()
        functions += [root, 1.0 / root.clamp(min=1e-300)]
    return chebyshev.degree_for(torch.cat(functions), tolerance)


@cached
def _windows(equation: Equation, step: "Exponential", device: torch.device) -> tuple[Tensor, tuple[int, ...]]:
    """1/λ1 at the midpoints of the windows [K] (up to `smoothing_end`), and the degree of each window."""
    edges = step.nodes(equation)
    t = torch.tensor(edges, dtype=torch.float64).clamp(max=equation.smoothing_end or equation.T)
    inv_lambda = to_device(equation.inv_lambda1(0.5 * (t[:-1] + t[1:])), device)
    return inv_lambda, tuple(window_degree(equation, s, e, step.tolerance) for s, e in pairwise(edges))


@cached
def _whole_window(equation: Equation, s: float, e: float, degree: int, device: torch.device) -> Tensor:
    """Coefficients [n+1, 2, 1] of e^{−ΔAz} and φ^{1/2} for a whole window."""
    z = chebyshev.nodes(degree, torch.device("cpu"))
    begin, end = (torch.full((1,), t, dtype=torch.float64) for t in (s, e))
    root = gaussian_kernel.variance(equation, begin, end, z).sqrt()
    return to_device(_series(torch.stack([gaussian_kernel.decay(equation, begin, end, z), root])), device)


def _series(values: Tensor) -> Tensor:
    """Coefficients [n+1, F, B] from values [F, B, n+1] at the nodes; contiguous, to be compiled once."""
    return chebyshev.coefficients(values).movedim(-1, 0).contiguous()


def _weights(u: Tensor, inv_lambda: Tensor, compile: bool) -> EdgeWeights:
    if kernels.fits(u):
        from anisodiff.integrators.kernels import flux

        return EdgeWeights(*flux.edge_weights(u, inv_lambda))
    return EdgeWeights(*compiled(edge_weights, compile)(u, inv_lambda))


@dataclass(frozen=True)
class FrozenOperator(Frozen):
    """L(w) of one window."""

    equation: Equation
    weights: EdgeWeights
    degree: int
    compile: bool
    window: tuple[float, float] | None
    """[s, e], if it is the same for all samples."""

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
        """e^{ΔA·L}u + φ^{1/2}(−L)ξ by one recurrence; exactly u for t = s."""
        z = chebyshev.nodes(self.degree, u.device)
        mean = gaussian_kernel.decay(self.equation, s, t, z)
        if xi is None or not self.equation.noisy:
            moved = self.polynomial(_series(mean[None]), u[None])[0]
        else:
            root = gaussian_kernel.variance(self.equation, s, t, z).sqrt()
            moved = self.polynomial(_series(torch.stack([mean, root])), torch.stack([u, xi])).sum(0)
        return torch.where((t > s)[:, None, None, None], moved, u)

    def across(self, u: Tensor, xi: Tensor | None) -> Tensor:
        assert self.window is not None
        c = _whole_window(self.equation, *self.window, self.degree, u.device)
        if xi is None or not self.equation.noisy:
            return self.polynomial(c[:, :1], u[None])[0]
        return self.polynomial(c, torch.stack([u, xi])).sum(0)

    def kernel(self, u: Tensor, xi: Tensor, s: Tensor, t: Tensor) -> LocalKernel:
        """The score −φ^{−1/2}(−L)ξ and the drift α1(t)·L u_t."""
        z = chebyshev.nodes(self.degree, u.device)
        root = gaussian_kernel.variance(self.equation, s, t, z).sqrt()
        functions = torch.stack([gaussian_kernel.decay(self.equation, s, t, z), root, -1.0 / root])
        mean, spread, score = self.polynomial(_series(functions), torch.stack([u, xi, xi]))
        state = mean + spread
        drift = per_sample(self.equation.alpha1(t), u) * apply_edges(self.weights, state)
        return LocalKernel(state, score, drift)

    def log_determinant(self, probe: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """tr ln φ(−L): exact for the line through ln φ at z = 0 and 8, the rest f by Hutchinson's ξᵀf(−L)ξ."""
        z = chebyshev.nodes(self.degree, probe.device)
        f = gaussian_kernel.variance(self.equation, s, t, z).log()
        low, slope = f[:, -1:], (f[:, :1] - f[:, -1:]) / chebyshev.SPECTRUM  # nodes descend from 8 to 0
        rest = self.polynomial(_series((f - low - slope * z)[None]), probe[None])[0]
        trace = 2 * sum(to_highest_precision(w).sum((-3, -2, -1)) for w in self.weights)
        count = probe[0].numel()
        return count * low[:, 0] + slope[:, 0] * trace + to_highest_precision(probe * rest).sum((-3, -2, -1))


def require_flux(equation: Equation, stencil: str, step: str) -> None:
    """Refuse what polynomials in L cannot integrate: an asymmetric stencil, or noise that depends on the state."""
    if stencil != "flux":
        raise ValueError(f"the {step} step needs stencil='flux' (symmetric), got {stencil!r}; or step='tamed'")
    if not equation.additive:
        raise ValueError(
            f"the {step} step needs isotropic noise, got noise_anisotropy={equation.noise_anisotropy}; "
            "set noise_anisotropy='infinite' or step='tamed'"
        )


def with_smoothing_end(equation: Equation, edges: tuple[float, ...]) -> tuple[float, ...]:
    """Window ``edges`` and the time at which the smoothing ends, which lies in the last window."""
    end = equation.smoothing_end
    return edges if end is None else (*edges[:-1], end, edges[-1])


@dataclass(frozen=True)
class Exponential(TimeStep):
    """``exponential(windows=10, tolerance=1e-06)``: equal windows; relative Chebyshev error at most ``tolerance``."""

    windows: int = 10
    tolerance: float = 1e-6
    compile: bool = field(default=False, compare=False, metadata={"identity": False})
    blur: float = field(default=0.0, metadata={"unless_default": True})
    """ρ in pixels."""
    turned: bool = field(default=False, metadata={"unless_default": True})
    """Take the edge weights of the state rotated by 180°."""

    def __post_init__(self) -> None:
        notation.check_number(self, "windows", 1, 100_000, whole=True)
        notation.check_number(self, "tolerance", 1e-11, 0.1, what="tolerance of a step")
        notation.check_number(self, "blur", 0, 1e4, what="blur of a step in pixels")
        for name in ("turned", "compile"):
            object.__setattr__(self, name, notation.switch(getattr(self, name), name))

    def check(self, equation: Equation, stencil: str) -> None:
        require_flux(equation, stencil, "exponential")
        if equation.correlation_length > 0 and equation.noisy:
            raise ValueError(
                f"the exponential step needs white noise, got correlation_length={equation.correlation_length:g}; "
                "set correlation_length=0, or step='signal' or 'tamed'"
            )
        self.check_windows(equation)

    def check_windows(self, equation: Equation) -> None:
        """Raise a ValueError if a window is too stiff for polynomials."""
        for s, e in pairwise(self.nodes(equation)):
            window_degree(equation, s, e, self.tolerance)

    def nodes(self, equation: Equation) -> tuple[float, ...]:
        """The window edges: equidistant up to T, or to `smoothing_end`; the last window then extends to T."""
        end = equation.smoothing_end or equation.T
        return (*(end * k / self.windows for k in range(self.windows)), equation.T)

    def jumps(self, equation: Equation) -> tuple[float, ...]:
        return with_smoothing_end(equation, self.nodes(equation))

    def freeze(self, equation: Equation, drift: Drift, u: Tensor, node: int | Tensor) -> FrozenOperator:
        inv_lambda, degrees = _windows(equation, self, u.device)
        weights = _weights(self._guide(u), inv_lambda[node], self.compile)
        if not isinstance(node, int):
            return FrozenOperator(equation, weights, max(degrees), self.compile, None)
        edges = self.nodes(equation)
        return FrozenOperator(equation, weights, degrees[node], self.compile, (edges[node], edges[node + 1]))

    def _guide(self, u: Tensor) -> Tensor:
        """The image whose gradients determine the edge weights."""
        if self.blur > 0:
            z = frequencies(u.shape[-2], u.shape[-1], u.dtype, u.device)
            u = idct2(torch.exp(-0.5 * self.blur**2 * z) * dct2(u))
        return u.flip(-2, -1).contiguous() if self.turned else u

    def compiled(self) -> "Exponential":
        return dataclasses.replace(self, compile=True)

    def __str__(self) -> str:
        return notation.write("exponential", self)
