"""Flow matching (Lipman et al. 2023): the network is the velocity.

    w(z, t) ≈ E[dZ_t/dt | Z_t = z],     z = 2u − 1,     loss |w − ((1 − σmin)ξ − z0)|², mean over an image's numbers

Its best linear predictor per frequency is known: with ẑ_k about its mean, V_k = E|ẑ_k|² and D_k the data's power,
V_k = (1 − t)²D_k + (t + σmin(1 − t))² and E[ẑ_k ŵ_k] = ½ dV_k/dt. The rest must not lean on ẑ_k (see `balance`).

Since Z_t = (1 − t)z0 + (t + σmin(1 − t))ξ, the image expected at the end is (1 − σmin)z − (t + σmin(1 − t))w.
"""

from typing import ClassVar

from torch import Tensor

from anisodiff.dct import dct2, idct2
from anisodiff.models.conditional import Signed
from anisodiff.processes.flow_matching import FlowMatching


class VelocityModel(Signed[FlowMatching]):
    """A velocity field, in our time: from the image towards the noise."""

    usual: ClassVar[str] = "heun"
    leans: ClassVar[bool] = True

    def answer(self, z: Tensor, t: Tensor, dropout_key: Tensor | None = None) -> Tensor:
        """The velocity; without its lean, where a `balance` is set."""
        found = super().answer(z, t, dropout_key)
        if self.balance is None:
            return found
        power, growth = self._spectrum(t.to(z.dtype)[:, None, None, None])
        mean = self.centred(self.moments_mean)[:, None, None]
        left = (1 - t).to(z.dtype)[:, None, None, None]
        state = dct2(z - left * mean)
        residual = dct2(found + mean) - 0.5 * growth / power * state  # the mean moves by −mean in unit time
        kept, _ = self.balance(state / power.sqrt(), t, residual, None)
        return found + idct2(kept - residual)

    def _spectrum(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """V_k and dV_k/dt, [B, 1, H, W] for ``t`` [B, 1, 1, 1]; a signed image has four times the power."""
        data, least = 4 * self.moments.data.clamp(min=1e-12), self.process.sigma_min
        noise = t + least * (1 - t)
        return (1 - t) ** 2 * data + noise**2, 2 * (noise * (1 - least) - (1 - t) * data)

    def denoised(self, z: Tensor, t: Tensor) -> Tensor:
        """E[x0 | u]."""
        noise = self.process.noise(t).to(z.dtype)[:, None, None, None]
        return self.uncentred((1 - self.process.sigma_min) * z - noise * self.answer(z, t))
