"""Sampling of flow matching with adaptive steps: the Runge–Kutta pair 5(4) of Dormand and Prince (1980).

    k_i = w(z − h Σ_j a_ij k_j, t − c_i h),    z' = z − h Σ b_i k_i,    e = h Σ (b_i − b̂_i) k_i

A step is accepted if ‖e/(atol + rtol·max(|z|, |z'|))‖ ≤ 1 in the root mean square over an image; the next step is
0.9·‖·‖^{−1/5} times as long. Every sample has its own time and step, so it does not depend on the rest of the batch.
NFE 6 per step, accepted or rejected, and one at the start.
"""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.models.base import Model
from anisodiff.models.velocity import VelocityModel
from anisodiff.noise import Randomness
from anisodiff.samplers.base import Memory, OwnTimes
from anisodiff.tensors import to_float64, to_highest_precision

_C = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
_A = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_ERROR = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
_FIRST, _MOST = 0.05, 100_000


@dataclass
class Path:
    """The state of the solver for every sample."""

    length: Tensor
    """Length of the next step, float64 [B]."""
    velocity: Tensor
    """Velocity at the current state, [B, C, H, W]: k_7 of one step is k_1 of the next."""
    made: Tensor
    """Evaluations so far, int64 [B]."""
    state: Tensor
    """The current state, [B, C, H, W]."""


def begin(model: VelocityModel, z: Tensor, t: Tensor) -> Path:
    """The solver at ``t`` [1]; NFE 1."""
    t = t.expand(len(z))
    return Path(torch.full_like(t, _FIRST), model.velocity(z, t), model.evaluations(t), z)


def _sum(weights: tuple[float, ...], terms: list[Tensor]) -> Tensor:
    return sum((w * k for w, k in zip(weights, terms) if w), torch.zeros_like(terms[0]))


def dopri5(
    model: VelocityModel, z: Tensor, t: Tensor, t_next: Tensor, way: Path, *, rtol: float, atol: float, most: int
) -> Tensor:
    """z at ``t_next`` from z at ``t`` (both [1]); updates ``way``. A ValueError if the NFE exceeds ``most``."""
    now = t.expand(len(z)).clone()
    if z is not way.state:  # the state was changed since the last step, for example by an edit
        way.velocity, way.made = model.velocity(z, now), way.made + model.evaluations(now)
    while bool((going := now > t_next).any()):
        if int(way.made[going].max()) + 6 > most:  # twice as many where the velocity is guided
            raise ValueError(
                f"dopri5 was not done after {most} evaluations at tolerance {rtol:g}: allow more steps, or a larger "
                "tolerance"
            )
        h = torch.where(going, torch.minimum(way.length, now - t_next), 0.0)
        reach = h.to(z.dtype)[:, None, None, None]
        slopes, there, cost = [way.velocity], z, torch.zeros_like(way.made)
        for weights, c in zip(_A, _C):
            there = z - reach * _sum(weights, slopes)
            slopes.append(model.velocity(there, now - c * h))
            cost = cost + model.evaluations(now - c * h)
        wrong = reach * _sum(_ERROR, slopes) / (atol + rtol * torch.maximum(z.abs(), there.abs()))
        size = to_highest_precision(wrong.square().mean((-3, -2, -1)).sqrt())
        good = going & (size <= 1)
        factor = (0.9 * size.clamp(min=1e-10) ** -0.2).clamp(0.2, 5.0)
        # do not shorten the next step after one that was cut at ``t_next``
        length = torch.where(good & (h < way.length), torch.maximum(way.length, h * factor), h * factor)
        way.length = torch.where(going, length, way.length)
        way.made = way.made + cost * going
        moved = good[:, None, None, None]
        z = torch.where(moved, there, z)
        way.velocity = torch.where(moved, slopes[-1], way.velocity)
        now = torch.where(good, torch.where(h >= now - t_next, t_next, now - h), now)
    way.state = z
    return z


@dataclass(frozen=True, kw_only=True)
class Dopri5(OwnTimes):
    """``dopri5(tolerance=1e-5)``: the NFE follows from the tolerance, up to a limit."""

    name: ClassVar[str] = "dopri5"
    cost: ClassVar[int] = 6
    requires: ClassVar[frozenset[str]] = frozenset({"velocity"})

    tolerance: float = 1e-5
    """Relative and absolute tolerance, for images in [−1, 1]."""
    most: int = 0
    """Maximal evaluations per sample; 0: the NFE that is asked for (`--steps`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        notation.check_number(self, "tolerance", 1e-14, 1.0)
        notation.check_number(self, "most", 0, _MOST, whole=True)

    def within(self, nfe: int) -> Self:
        return self if self.most else dataclasses.replace(self, most=nfe)

    def min_nfe(self, model: VelocityModel, t_min: float, t_max: float) -> int:
        return self.cost + 1

    def nfe(self, times: Tensor) -> int:
        """The limit; `SampleResult.nfe` has the actual number."""
        return self.most or _MOST

    def descending_times(self, model: VelocityModel, nfe: int, top: float, t_min: float) -> Tensor:
        """At most ten intermediate times for callbacks; the solver chooses its steps between them."""
        return torch.linspace(top, 0, min(10, max(1, nfe // 30)) + 1, dtype=torch.float64)

    def step(
        self, model: VelocityModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        way = memory.get("path") or memory.setdefault("path", begin(model, z, t))
        return dopri5(model, z, t, t_next, way, rtol=self.tolerance, atol=self.tolerance, most=self.most or _MOST)

    def evaluations(self, model: Model, times: Tensor) -> int:
        return self.nfe(times)

    def nfe_used(self, model: Model, times: Tensor, memory: Memory) -> float:
        return float(to_float64(memory["path"].made).mean()) if "path" in memory else 0.0
