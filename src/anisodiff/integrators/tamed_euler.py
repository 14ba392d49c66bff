"""Tamed Euler–Maruyama (paper, supplement, temporal discretization; Hutzenthaler et al. 2012).

    u_{k+1} = u_k + Δt·b/(1 + Δt‖b‖^γ) + g2·ΔW,      b = b(t_k, u_k)

The formula in the paper lacks the Δt before the drift. Between two nodes the drift and g2 keep their values at the
node (the usual continuous-time interpolation), so a state exists at any t. Where Δt does not divide T, the last step
is shorter, with the same taming. The paper does not define the norm, though the distribution depends on it: it is an
option and part of the identity.
"""

import dataclasses
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.equation import Equation
from anisodiff.integrators import kernels
from anisodiff.integrators.base import Frozen, LocalKernel, TimeStep
from anisodiff.noise import KeyedNoise, Randomness, correlate
from anisodiff.statistics import step_phases
from anisodiff.stencils import Drift
from anisodiff.stencils.gradient import noise_scale, per_sample
from anisodiff.tensors import cached, compiled, to_device, to_highest_precision

_INTERVALS = 20
NORMS = ("image", "rms", "element", "none")


def tame(b: Tensor, dt: float, gamma: float, norm: str) -> Tensor:
    """b̃ = b/(1 + Δt‖b‖^γ); for γ = 1, Δt‖b̃‖ < 1.

    Norms for each sample [C, H, W]: ``image`` ℓ2 over all elements, ``rms`` that divided by √(C·H·W), ``element`` the
    absolute value of each element, ``none`` no taming (plain Euler–Maruyama).
    """
    if norm == "none":
        return b
    if norm == "element":
        size = b.abs()
    else:
        size = b.square().sum(dim=(-3, -2, -1), keepdim=True).sqrt()
        if norm == "rms":
            size = size / math.sqrt(b[0].numel())
    return b / (1.0 + dt * size**gamma)


def tamed_drift(
    drift: Drift, u: Tensor, alpha1: Tensor, inv_lambda1: Tensor, dt: float, gamma: float, norm: str
) -> Tensor:
    """b̃ of the state ``u``."""
    return tame(drift(u, alpha1, inv_lambda1), dt, gamma, norm)


def euler_update(
    u: Tensor, b: Tensor | None, scale: Tensor | None, xi: Tensor | None, s: Tensor, t: Tensor
) -> Tensor:
    """u + (t−s)·b̃ + √(t−s)·g2·ξ."""
    h = per_sample(t - s, u)
    if b is not None:
        u = u + h * b
    if scale is not None and xi is not None:
        u = u + h.sqrt() * scale * xi
    return u


@cached
def _coefficients(equation: Equation, step: "TamedEuler", device: torch.device) -> tuple[Tensor, ...]:
    """α1, 1/λ1, α2, 1/λ2 at the nodes, and the nodes, [K + 1] each."""
    t = torch.tensor(step.nodes(equation), dtype=torch.float64)
    values = equation.alpha1(t), equation.inv_lambda1(t), equation.alpha2(t), equation.inv_lambda2(t), t
    return tuple(to_device(x, device) for x in values)


@dataclass(frozen=True)
class FrozenEuler(Frozen):
    """Tamed drift and noise scale at one node."""

    drift: Tensor | None
    """b̃."""
    scale: Tensor | None
    """g2."""
    length: float
    """ℓ."""
    compile: bool = False
    span: Tensor | None = None
    """The node and the next one, [2], if they are the same for all samples."""

    def advance(self, u: Tensor, xi: Tensor | None, s: Tensor, t: Tensor) -> Tensor:
        """u + (t−s)·b̃ + √(t−s)·g2·Q^{1/2}ξ."""
        if xi is not None:
            xi = correlate(xi, self.length)
        moved: Tensor = compiled(euler_update, self.compile)(u, self.drift, self.scale, xi, s, t)
        return moved

    def across(self, u: Tensor, xi: Tensor | None) -> Tensor:
        assert self.span is not None
        return self.advance(u, xi, self.span[:1], self.span[1:])

    def kernel(self, u: Tensor, xi: Tensor, s: Tensor, t: Tensor) -> LocalKernel:
        """C = (t−s)·g2²: the score is −ξ/(√(t−s)·g2)."""
        if self.scale is None or self.length > 0:
            raise ValueError("a score needs white noise: set intensity > 0 and correlation_length = 0")
        drift = torch.zeros_like(u) if self.drift is None else self.drift
        score = -xi / (per_sample(t - s, u).sqrt() * self.scale)
        return LocalKernel(self.advance(u, xi, s, t), score, drift)

    def log_determinant(self, probe: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """Σ ln((t−s)·g2²)."""
        if self.scale is None or self.length > 0:
            raise ValueError("a density needs white noise: set intensity > 0 and correlation_length = 0")
        variance = per_sample(t - s, probe) * self.scale.square()
        return to_highest_precision(variance.expand(probe.shape)).log().sum((-3, -2, -1))


@dataclass(frozen=True)
class TamedEuler(TimeStep):
    """``tamed(dt=0.01, gamma=1, norm=image)``."""

    dt: float = 0.01
    gamma: float = 1.0
    norm: str = "image"
    compile: bool = field(default=False, compare=False, metadata={"identity": False})

    def __post_init__(self) -> None:
        object.__setattr__(self, "compile", notation.switch(self.compile, "compile"))
        for name in ("dt", "gamma"):
            value = notation.number(getattr(self, name), f"{name} of the tamed step")
            if not math.isfinite(value) or value <= 0:
                raise ValueError(f"{name} of the tamed step must be finite and > 0, got {value:g}")
            object.__setattr__(self, name, value)
        notation.check_choice(self.norm, NORMS, "taming norm")

    def check(self, equation: Equation, stencil: str) -> None:
        if equation.smoothing_end is not None:
            raise ValueError(
                f"the tamed step cannot stop smoothing between its steps, got diffusivity={equation.diffusivity}; "
                "set step='signal', 'exponential' or 'exact'"
            )
        if self.dt > equation.T:
            raise ValueError(f"dt = {self.dt:g} is longer than T = {equation.T:g}; make dt smaller")
        if equation.T / self.dt > 1e6:
            raise ValueError(f"dt = {self.dt:g} needs {equation.T / self.dt:.0f} steps; at most 1,000,000: raise dt")

    def nodes(self, equation: Equation) -> tuple[float, ...]:
        """0, Δt, 2Δt, …, T; the last step is shorter where Δt does not divide T."""
        count = math.ceil(equation.T / self.dt - 1e-9)
        return (*(k * self.dt for k in range(count)), equation.T)

    @property
    def taming(self) -> "TamedEuler":
        return self

    def snap_to_grid(self, equation: Equation, t: Tensor) -> Tensor:
        """The end of the step that contains t, where the variance of the target is lowest."""
        return (torch.ceil(t / self.dt - 1e-6) * self.dt).clamp(min=self.dt, max=equation.T)

    def statistics_grid(self, equation: Equation) -> tuple[tuple[float, ...], Tensor]:
        """Twenty intervals of whole steps: the jump of the drift from step to step is small."""
        nodes = self.nodes(equation)
        together = max(2, -(-(len(nodes) - 1) // _INTERVALS))  # two at least, to interpolate between
        return (*nodes[:-1:together], nodes[-1]), step_phases(together)

    def compiled(self) -> "TamedEuler":
        return dataclasses.replace(self, compile=True)

    def freeze(self, equation: Equation, drift: Drift, u: Tensor, node: int | Tensor) -> FrozenEuler:
        *tables, nodes = _coefficients(equation, self, u.device)
        alpha1, inv_lambda1, alpha2, inv_lambda2 = (x[node] for x in tables)
        b = scale = None
        if equation.smooths:
            make = compiled(tamed_drift, self.compile)
            b = make(drift, u, alpha1, inv_lambda1, self.dt, self.gamma, self.norm)
        if equation.noisy and equation.additive:
            scale = per_sample(alpha2, u)
        elif equation.noisy:
            scale = noise_scale(u, alpha2, inv_lambda2)
        span = nodes[node : node + 2] if isinstance(node, int) else None
        return FrozenEuler(b, scale, equation.correlation_length, self.compile, span)

    def integrate(
        self, equation: Equation, stencil: str, u: Tensor, t: Tensor, steps: int, rng: Randomness
    ) -> Tensor | None:
        """By `kernels.chain` or `kernels.tiles`: on CUDA, for white keyed noise or none."""
        if equation.noisy and (type(rng) is not KeyedNoise or equation.correlation_length > 0):
            return None
        noise = rng if isinstance(rng, KeyedNoise) and equation.noisy else None
        if not kernels.usable(u) or stencil not in kernels.CHAINED or (noise and len(noise.keys) != len(u)):
            return None
        from anisodiff.integrators.kernels import chain, tiles

        rule = chain.Rule(
            stencil=stencil, smooths=equation.smooths, noisy=equation.noisy, additive=equation.additive,
            dt=self.dt, gamma=self.gamma, norm=self.norm,
        )  # fmt: skip
        integrate = chain.integrate if u[:1].numel() <= kernels.LARGEST_IMAGE else tiles.integrate
        return integrate(u, t, steps, _coefficients(equation, self, u.device), noise, rule)

    def __str__(self) -> str:
        return notation.write("tamed", self)
