"""Flow matching backward with steps of adapted length: the pair of orders 5 and 4 by Dormand and Prince (1980).

    k_i = w(z − h Σ_j a_ij k_j, t − c_i h),    z' = z − h Σ b_i k_i,    e = h Σ (b_i − b̂_i) k_i

A step is made when ‖e/(atol + rtol·max(|z|, |z'|))‖ ≤ 1 in the root mean square over an image, and the next one is
0.9·‖·‖^{−1/5} times as long. **Every sample has its own time and its own steps**, so that it does not depend on its
neighbors; those that are done wait for the last of the batch. NFE 6 a step, accepted or refused, and one more.
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
from anisodiff.samplers.base import Memory, OwnTimes, option
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
    """Where every sample stands."""

    length: Tensor
    """Of the next step, float64 [B]."""
    velocity: Tensor
    """Where it stands, [B, C, H, W]: the last of one step is the first of the next."""
    made: Tensor
    """Evaluations so far, int64 [B]."""
    state: Tensor
    """The state that was left, [B, C, H, W]."""


def begin(model: VelocityModel, z: Tensor, t: Tensor) -> Path:
    """One evaluation at ``t`` [1]."""
    place = t.expand(len(z))
    return Path(torch.full_like(place, _FIRST), model.velocity(z, place), model.evaluations(place), z)


def _sum(weights: tuple[float, ...], terms: list[Tensor]) -> Tensor:
    return sum((w * k for w, k in zip(weights, terms) if w), torch.zeros_like(terms[0]))


def dopri5(
    model: VelocityModel, z: Tensor, t: Tensor, t_next: Tensor, way: Path, *, rtol: float, atol: float, most: int
) -> Tensor:
    """z at ``t_next`` from z at ``t`` (both [1]); ``way`` is moved on. More than NFE ``most`` is refused."""
    now = t.expand(len(z)).clone()
    if z is not way.state:  # somebody has moved it since: its velocity is another
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
        # a step that was cut short by ``t_next`` says little of how long the next may be
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
    """``dopri5(tolerance=1e-5)``: the NFE that the tolerance asks for, up to the limit."""

    name: ClassVar[str] = "dopri5"
    cost: ClassVar[int] = 6
    requires: ClassVar[frozenset[str]] = frozenset({"velocity"})

    tolerance: float = 1e-5
    """Relative and absolute, for images in [−1, 1]."""
    most: int = 0
    """Evaluations allowed for each sample; 0: those of the route (`--steps`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "tolerance", option(self.tolerance, "tolerance", 1e-14, 1.0))
        most = notation.number(self.most, "most")
        if not 0 <= most <= _MOST or most != int(most):
            raise ValueError(f"most must be a whole number from 0 to {_MOST}, got {most:g}")
        object.__setattr__(self, "most", int(most))

    def within(self, nfe: int) -> Self:
        """With the limit, where none is set."""
        return self if self.most else dataclasses.replace(self, most=nfe)

    def min_nfe(self, model: VelocityModel, t_min: float, t_max: float) -> int:
        """One step."""
        return self.cost + 1

    def nfe(self, times: Tensor) -> int:
        """What is allowed; `SampleResult.nfe` says what was needed."""
        return self.most or _MOST

    def descending_times(self, model: VelocityModel, nfe: int, top: float, t_min: float) -> Tensor:
        """Ten stops at most, where a path can be seen, or held; the steps between are the solver's."""
        return torch.linspace(top, 0, min(10, max(1, nfe // 30)) + 1, dtype=torch.float64)

    def step(
        self, model: VelocityModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        way = memory.get("path") or memory.setdefault("path", begin(model, z, t))
        return dopri5(model, z, t, t_next, way, rtol=self.tolerance, atol=self.tolerance, most=self.most or _MOST)

    def evaluations(self, model: Model, times: Tensor) -> int:
        """What is allowed, guidance included."""
        return self.nfe(times)

    def nfe_used(self, model: Model, times: Tensor, memory: Memory) -> float:
        """Every sample has its own."""
        return float(to_float64(memory["path"].made).mean()) if "path" in memory else 0.0
