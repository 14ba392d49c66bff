"""Smooth the image, not the noise: the drift is a function of the noise-free path M.

    dU = α1 L(M)M dt + α2 dW,      dM = α1 L(M)M dt,  M_0 = U_0,      so      U_t = M_t + ∫_0^t α2 dW

M is the Perona–Malik flow of the image. Edge weights depend on the image only, and the noise stays white (or keeps
the spectrum q of its correlation length); with `exponential`, the frozen operator imprints the edges of the image on
the noise. Given the image, a state is Gaussian, and the score target has the variance of `ve`. The drift depends on
the image and must be learned.

M is integrated by `exponential`: weights w(M_s; λ1 at the midpoint of the window). A window may be divided into
steps, each with its own weights. The drift jumps at each step; statistics and samplers treat it as continuous in a
window.
"""

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.dct import dct2, idct2
from anisodiff.equation import Equation
from anisodiff.gaussian_kernel import colored, quadrature
from anisodiff.integrators.base import Frozen, LocalKernel, TimeStep, node_of, node_times
from anisodiff.integrators.exponential import Exponential, require_flux, with_smoothing_end
from anisodiff.stencils import Drift
from anisodiff.stencils.flux import apply_edges
from anisodiff.tensors import to_highest_precision


def _variance(equation: Equation, s: Tensor, t: Tensor, like: Tensor) -> Tensor:
    """q ∫_s^t α2² of the modes of ``like`` [B, C, H, W], [B, 1, H, W]."""
    mass = quadrature(equation, s, t)[0].sum(1).to(like.dtype)[:, None, None, None]
    return colored(equation, mass.expand(-1, 1, *like.shape[-2:]))


@dataclass(frozen=True)
class FrozenImage(Frozen):
    """The path M of one image."""

    equation: Equation
    flow: Exponential
    drift: Drift
    image: Tensor

    @cached_property
    def _nodes(self) -> list[Tensor]:
        """M at the nodes computed so far."""
        return [self.image]

    def _at_nodes(self, last: int) -> list[Tensor]:
        while len(self._nodes) <= last:
            u, k = self._nodes[-1], len(self._nodes) - 1
            self._nodes.append(self.flow.freeze(self.equation, self.drift, u, k).across(u, None))
        return self._nodes

    def path(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """M_t and α1 L(w) M_t [B, C, H, W] at times ``t``, float64 [B] or [1]."""
        begin = self.image
        if not self.equation.smooths:
            return begin, torch.zeros_like(begin)
        t = t.expand(len(begin))
        nodes = node_times(self.equation, self.flow, t.device)
        node = node_of(nodes, t).clamp(min=0)
        # on a GPU reading node.max() would synchronize: compute all nodes
        last = int(node.max()) if t.device.type == "cpu" and len(t) else self.flow.windows - 1
        for k, u in enumerate(self._at_nodes(last)):
            begin = torch.where((node == k)[:, None, None, None], u, begin)
        frozen = self.flow.freeze(self.equation, self.drift, begin, node)
        mean = frozen.advance(begin, None, nodes[node], t)
        alpha1 = self.equation.alpha1(t).to(begin.dtype)[:, None, None, None]
        return mean, alpha1 * apply_edges(frozen.weights, mean)

    def root(self, s: Tensor, t: Tensor) -> Tensor:
        """√(q ∫_s^t α2²), [B, 1, H, W]: standard deviation of the DCT modes of the noise."""
        return _variance(self.equation, s, t, self.image).sqrt()

    def _shaped(self, xi: Tensor, factor: Tensor) -> Tensor:
        """White noise with its DCT modes multiplied by ``factor``."""
        return factor * xi if self.equation.correlation_length == 0 else idct2(factor * dct2(xi))

    def noise(self, xi: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """∫_s^t α2 dW from white ``xi``."""
        return self._shaped(xi, self.root(s, t))

    def advance(self, u: Tensor, xi: Tensor | None, s: Tensor, t: Tensor) -> Tensor:
        """U_s + M_t − M_s + noise; exactly u for t = s."""
        moved = u + (self.path(t)[0] - self.path(s)[0])
        if xi is not None and self.equation.noisy:
            moved = moved + self.noise(xi, s, t)
        return torch.where((t > s)[:, None, None, None], moved, u)

    def across(self, u: Tensor, xi: Tensor | None) -> Tensor:
        nodes = node_times(self.equation, self.flow, u.device)
        return self.advance(u, xi, nodes[:1], nodes[-1:])

    def kernel(self, u: Tensor, xi: Tensor, s: Tensor, t: Tensor) -> LocalKernel:
        mean, drift = self.path(t)
        root = self.root(s, t)
        return LocalKernel(mean + self._shaped(xi, root), self._shaped(xi, -1.0 / root), drift)

    def log_determinant(self, probe: Tensor, s: Tensor, t: Tensor) -> Tensor:
        return 2 * probe.shape[1] * to_highest_precision(self.root(s, t)).log().sum((-3, -2, -1))


@dataclass(frozen=True)
class Signal(TimeStep):
    """``signal(windows=10, tolerance=1e-06, steps=1)``: Perona–Malik on the image in windows, plus noise."""

    plain_noise: ClassVar[bool] = True

    windows: int = 10
    tolerance: float = 1e-6
    steps: int = field(default=1, metadata={"unless_default": True})
    """Steps of M in each window."""
    compile: bool = field(default=False, compare=False, metadata={"identity": False})
    blur: float = field(default=0.0, metadata={"unless_default": True})
    """As in `exponential`."""
    turned: bool = field(default=False, metadata={"unless_default": True})
    """As in `exponential`."""

    def __post_init__(self) -> None:
        notation.check_number(self, "steps", 1, 1000, whole=True, what="steps of a window")
        for name in ("windows", "tolerance", "compile", "blur", "turned"):
            object.__setattr__(self, name, getattr(self._windows(1), name))

    def _windows(self, steps: int) -> Exponential:
        return Exponential(
            windows=self.windows * steps, tolerance=self.tolerance, compile=self.compile, blur=self.blur,
            turned=self.turned,
        )  # fmt: skip

    @property
    def flow(self) -> Exponential:
        """The time step of M."""
        return self._windows(self.steps)

    def check(self, equation: Equation, stencil: str) -> None:
        require_flux(equation, stencil, "signal")
        self.flow.check_windows(equation)

    def nodes(self, equation: Equation) -> tuple[float, ...]:
        return (0.0, equation.T)

    def jumps(self, equation: Equation) -> tuple[float, ...]:
        """The window edges, and where the smoothing ends."""
        return with_smoothing_end(equation, self._windows(1).nodes(equation))

    def noise(self, equation: Equation, t: Tensor, like: Tensor) -> Tensor:
        """q ∫_0^t α2²."""
        return _variance(equation, torch.zeros_like(t), t, like)[0, 0]

    def freeze(self, equation: Equation, drift: Drift, u: Tensor, node: int | Tensor) -> FrozenImage:
        return FrozenImage(equation, self.flow, drift, u)

    def statistics_grid(self, equation: Equation) -> tuple[tuple[float, ...], Tensor]:
        """With one more phase near 0, because no target diverges there."""
        edges, phases = super().statistics_grid(equation)
        return edges, torch.cat([phases.new_tensor([1e-3]), phases])

    def compiled(self) -> "Signal":
        return dataclasses.replace(self, compile=True)

    def __str__(self) -> str:
        return notation.write("signal", self)
