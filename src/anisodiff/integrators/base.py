"""The contract of a time step.

Every time step freezes a part of the equation at the nodes of a fixed time grid and solves the rest *exactly* up to
the next node: tamed Euler–Maruyama freezes the drift and the noise scale, the exponential step the edge weights,
`signal` the image. So the transition kernel between two nodes is Gaussian.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from anisodiff.equation import Equation
from anisodiff.noise import Randomness
from anisodiff.statistics import window_phases
from anisodiff.stencils import Drift
from anisodiff.tensors import cached, to_device


class LocalKernel(NamedTuple):
    """A draw from the Gaussian kernel N(m, C) of U_t given U_s, with its regression targets; [B, C, H, W] each."""

    state: Tensor
    """u_t = m + C^{1/2} ξ."""
    score: Tensor
    """−C^{−1/2} ξ = ∇ log p(u_t | u_s); its mean given u_t is the score ∇ log p_t(u_t)."""
    drift: Tensor
    """The frozen drift at u_t; its mean given u_t is the projected drift of the process."""


class Frozen(ABC):
    """The equation frozen at a node: the Gaussian kernel up to the next node."""

    @abstractmethod
    def advance(self, u: Tensor, xi: Tensor | None, s: Tensor, t: Tensor) -> Tensor:
        """U_t = m + C^{1/2}ξ given U_s = u [B, C, H, W], for white noise ``xi`` (None: m); s ≤ t, [B] or [1]."""

    @abstractmethod
    def across(self, u: Tensor, xi: Tensor | None) -> Tensor:
        """`advance` from the node to the next one, if it is the same node for all samples."""

    @abstractmethod
    def kernel(self, u: Tensor, xi: Tensor, s: Tensor, t: Tensor) -> LocalKernel:
        """`advance` with the conditional score and the frozen drift; s < t."""

    @abstractmethod
    def log_determinant(self, probe: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """ln det C, float64 [B], or an unbiased estimate from independent signs ``probe`` [B, C, H, W]; s < t."""


class TimeStep(ABC):
    """Discretization in time; subclasses are frozen dataclasses and part of the identity of a process."""

    plain_noise: ClassVar[bool] = False
    """Whether the drift acts on the image alone: given the image, a state is Gaussian with covariance q ∫α2²."""

    @abstractmethod
    def check(self, equation: Equation, stencil: str) -> None:
        """Raise a ValueError for a combination that this step cannot integrate."""

    @abstractmethod
    def nodes(self, equation: Equation) -> tuple[float, ...]:
        """The time grid 0 = t_0 < … < t_K = T."""

    def jumps(self, equation: Equation) -> tuple[float, ...]:
        """Times at which the drift of a path may jump, and 0 and T."""
        return self.nodes(equation)

    def noise(self, equation: Equation, t: Tensor, like: Tensor) -> Tensor | None:
        """Variance of the DCT modes of U_t given U_0 at ``t`` [1], [H, W]; None without a closed form."""
        return None

    @property
    def taming(self) -> Any:
        """The step itself if it is `TamedEuler`, else None."""
        return None

    def snap_to_grid(self, equation: Equation, t: Tensor) -> Tensor:
        """Training times in place of ``t``, at which the variance of the target is lower."""
        return t

    def statistics_grid(self, equation: Equation) -> tuple[tuple[float, ...], Tensor]:
        """Edges 0 … T of the intervals of `statistics`, and the phases in each."""
        edges = self.jumps(equation)
        return edges, window_phases(len(edges) - 1)

    def compiled(self) -> "TimeStep":
        """The same step with compiled functions."""
        return self

    @abstractmethod
    def freeze(self, equation: Equation, drift: Drift, u: Tensor, node: int | Tensor) -> Frozen:
        """Freeze the equation at state ``u`` and the node with index ``node`` (one, or one per sample, int64 [B])."""

    def integrate(
        self, equation: Equation, stencil: str, u: Tensor, t: Tensor, steps: int, rng: Randomness
    ) -> Tensor | None:
        """``steps`` steps in one fused kernel: from ``u`` at time 0 to the time of each sample ``t``, float64 [B].

        None if there is no such kernel: the caller then steps from node to node, with the same draws of ``rng``.
        """
        return None


def node_of(nodes: Tensor, t: Tensor) -> Tensor:
    """k with t ∈ (t_k, t_{k+1}] for times ``t`` [B], int64; −1 for t = 0. Tolerates rounding of t."""
    return torch.searchsorted(nodes + 1e-9 * nodes[-1], t.contiguous()) - 1


@cached
def node_times(equation: Equation, step: TimeStep, device: torch.device) -> Tensor:
    """The time grid of ``step``, float64 [K+1], on a device."""
    return to_device(torch.tensor(step.nodes(equation), dtype=torch.float64), device)
