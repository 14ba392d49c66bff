"""What a time step is.

All our time steps freeze something at the nodes of a fixed time grid and then move *exactly* until the next node:
tamed Euler–Maruyama freezes drift and noise scale, the exponential step the edge weights, `signal` the image. So one
contract serves all, and the piece between two nodes is a Gaussian kernel.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from anisodiff.equation import Equation
from anisodiff.noise import Randomness
from anisodiff.statistics import window_phases
from anisodiff.stencils import Drift
from anisodiff.tensors import made_once, moved


class LocalKernel(NamedTuple):
    """A draw from the Gaussian kernel N(m, C) of the piece s → t, with what can be learned from it; [B, C, H, W]."""

    state: Tensor
    """u_t = m + C^{1/2} ξ."""
    score: Tensor
    """−C^{−1/2} ξ = ∇ log p(u_t | u_s); its mean given u_t alone is the score ∇ log p_t(u_t)."""
    drift: Tensor
    """The frozen drift at u_t; its mean given u_t alone is the projected drift of the process."""


class Frozen(ABC):
    """What was frozen at a node, and the Gaussian kernel that follows from it until the next node."""

    @abstractmethod
    def advance(self, u: Tensor, xi: Tensor | None, s: Tensor, t: Tensor) -> Tensor:
        """A draw of U_t given U_s = u [B, C, H, W] from white noise ``xi`` (None: the mean); s ≤ t, [B] or [1]."""

    @abstractmethod
    def across(self, u: Tensor, xi: Tensor | None) -> Tensor:
        """The same from the node to the next one; for what was frozen at one node for all samples."""

    @abstractmethod
    def kernel(self, u: Tensor, xi: Tensor, s: Tensor, t: Tensor) -> LocalKernel:
        """The same draw with its conditional score and the frozen drift; s < t."""

    @abstractmethod
    def log_determinant(self, probe: Tensor, s: Tensor, t: Tensor) -> Tensor:
        """ln det C of the kernel, float64 [B]; s < t.

        ``probe`` [B, C, H, W] are independent signs: where the determinant is estimated, its mean over them is right.
        """


class TimeStep(ABC):
    """Discretization in time; subclasses are frozen dataclasses, part of a process's identity."""

    plain_noise: ClassVar[bool] = False
    """Whether nothing smooths the noise: a state is Gaussian about a function of its image, its covariance q ∫α2²."""

    @abstractmethod
    def check(self, equation: Equation, stencil: str) -> None:
        """Refuse a combination this step cannot integrate, naming what to change."""

    @abstractmethod
    def nodes(self, equation: Equation) -> tuple[float, ...]:
        """The time grid 0 = t_0 < … < t_K = T."""

    def jumps(self, equation: Equation) -> tuple[float, ...]:
        """Times between which the drift of a path is smooth, 0 and T among them."""
        return self.nodes(equation)

    def noise(self, equation: Equation, t: Tensor, like: Tensor) -> Tensor | None:
        """Variance of the modes of a state at ``t`` [1] given its image, [H, W]; None where it has to be measured."""
        return None

    @property
    def taming(self) -> Any:
        """The step itself where it tames its drift (`TamedEuler`), else None."""
        return None

    def snap_to_grid(self, equation: Equation, t: Tensor) -> Tensor:
        """The times that are learned in place of ``t``: those at which the target has low variance."""
        return t

    def cells(self, equation: Equation) -> tuple[tuple[float, ...], Tensor]:
        """Times 0 … T across which the drift may jump, and the phases of a cell at which statistics are estimated."""
        edges = self.jumps(equation)
        return edges, window_phases(len(edges) - 1)

    def compiled(self) -> "TimeStep":
        """The same law, compiled."""
        return self

    @abstractmethod
    def freeze(self, equation: Equation, drift: Drift, u: Tensor, node: int | Tensor) -> Frozen:
        """Freeze the equation at state ``u`` of node number ``node`` (one for all, or one per sample, int64 [B])."""

    def walk(
        self, equation: Equation, stencil: str, u: Tensor, t: Tensor, steps: int, rng: Randomness
    ) -> Tensor | None:
        """All ``steps`` steps at once: states ``u`` of time 0 at the samples' own times ``t``, float64 [B].

        None where there is no fused form for these, and one freezes node after node. Each step takes a draw of
        ``rng``, as node after node.
        """
        return None


def node_of(nodes: Tensor, t: Tensor) -> Tensor:
    """The node k with t ∈ (t_k, t_{k+1}] for times ``t`` [B], int64; −1 for t = 0.

    A node that was missed by rounding is still that node.
    """
    return torch.searchsorted(nodes + 1e-9 * nodes[-1], t.contiguous()) - 1


@made_once
def node_times(equation: Equation, step: TimeStep, device: torch.device) -> Tensor:
    """The time grid of ``step``, float64 [K+1], on a device."""
    return moved(torch.tensor(step.nodes(equation), dtype=torch.float64), device)
