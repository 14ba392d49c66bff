"""Sampling of inverse heat dissipation (Rissanen et al. 2023):

    u_{k−1} = u_k + n(u_k, k) + δ ξ,      k = K … 1;      no noise in the last step

δ is slightly larger than the training noise σ (1.25 to 1.3 times in the paper). The network predicts single levels,
so the NFE is the number of levels.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from anisodiff import notation
from anisodiff.models.deblurring import DeblurringModel
from anisodiff.noise import Randomness, white
from anisodiff.samplers.base import Memory, OwnTimes, levels_down


@dataclass(frozen=True, kw_only=True)
class Deblurring(OwnTimes):
    """``deblurring(delta=0.0125)``: NFE K from T, fewer from lower levels."""

    name: ClassVar[str] = "deblurring"
    cost: ClassVar[int] = 1
    requires: ClassVar[frozenset[str]] = frozenset({"deblurring_step", "levels"})

    delta: float = 0.0125
    """δ, for images in [0, 1]."""

    def __post_init__(self) -> None:
        super().__post_init__()
        notation.check_number(self, "delta", 0.0, 1.0)

    def min_nfe(self, model: DeblurringModel, t_min: float, t_max: float) -> int:
        return max(1, round(t_max * model.process.levels))

    def descending_times(self, model: DeblurringModel, nfe: int, top: float, t_min: float) -> Tensor:
        """All levels from the one nearest to ``top`` to 0."""
        return levels_down(model.process.levels, top, model.process.levels)

    def step(
        self, model: DeblurringModel, z: Tensor, t: Tensor, t_next: Tensor, rng: Randomness, memory: Memory
    ) -> Tensor:
        mean = z + model.predict(z, t)
        noise = self.delta * (t_next > 0).to(z.dtype)  # a branch would synchronize with the device
        return mean + noise * white(z, rng)
