"""Inverse heat dissipation backward (Rissanen et al. 2023), one level at a time:

    u_{k−1} = u_k + n(u_k, k) + δ ξ,      k = K … 1;      the mean alone at the end

δ is a little larger than the noise σ of training (theirs 1.25 to 1.3 times). The network knows single steps along the
levels only, so the NFE is the number of levels: fewer are refused.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from anisodiff.models.deblurring import DeblurringModel
from anisodiff.noise import Randomness, white
from anisodiff.samplers.base import Memory, OwnTimes, levels_down, option


@dataclass(frozen=True, kw_only=True)
class Deblurring(OwnTimes):
    """``deblurring(delta=0.0125)``: NFE K from T, less from lower levels."""

    name: ClassVar[str] = "deblurring"
    cost: ClassVar[int] = 1
    requires: ClassVar[frozenset[str]] = frozenset({"deblurring_step", "levels"})

    delta: float = 0.0125
    """δ, for images in [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "delta", option(self.delta, "delta", 0.0, 1.0))

    def min_nfe(self, model: DeblurringModel, t_min: float, t_max: float) -> int:
        """The number of levels passed."""
        return max(1, round(t_max * model.process.levels))

    def descending_times(self, model: DeblurringModel, nfe: int, top: float, t_min: float) -> Tensor:
        """All levels from the one nearest to ``top`` to 0."""
        return levels_down(model.process.levels, top, model.process.levels)

    def step(
        self, model: DeblurringModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        """One level down."""
        mean = z + model.predict(z, t)
        noise = self.delta * (t_next > 0).to(z.dtype)  # without waiting for the device
        return mean + noise * white(z, rng)
