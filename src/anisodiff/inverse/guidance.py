"""A model conditioned on a measurement: every sampler then draws from p(x | y) in place of p(x).

    ∇_u log p(u | y) = ∇_u log p(u) + ∇_u log p(y | u),      y = A x0 + σ n

With x̂(u) = E[x0 | u], which the model knows, and C a covariance of x0 given u,

    p(y | u) ≈ N(A x̂, A C Aᵀ + σ²),      ∇_u log p(y | u) ≈ (∂x̂/∂u)ᵀ Aᵀ (A C Aᵀ + σ²)⁻¹ (y − A x̂)

(∂x̂/∂u)ᵀ is a vector-Jacobian product: one backward pass through the network for every evaluation.

| method | C |
|---|---|
| `pigdm` | D N/V per frequency, by the statistics of the process (`posterior_covariance`; ΠGDM, Song et al. 2023) |
| `dps` | 0 (DPS, Chung et al. 2023) |

**Step.** Let Δ be what this gradient adds to x̂, by Tweedie. It is multiplied by the number in [0, 1] that brings A Δ
closest to the residual: a gradient that overshoots is cut. With an exact `pigdm` that number is 1, since
0 ≤ A C Aᵀ (A C Aᵀ + σ²)⁻¹ ≤ 1. With photographs it matters: their variance given u lies at edges, where C, a mean
over all places, is too small. Without it holes of the shipped model are filled with saturated colors.

**Exact**: A, Aᵀ and the solve (but for `inpainting`, see `operators`). With images that are Gaussian, with a spectrum
that is the statistics' own, and a process that is linear per frequency, `pigdm` is ∇ log p(y | u) itself.
**Approximate**: for any other images x0 given u is not Gaussian, and its covariance depends on u; an anisotropic
drift mixes frequencies, which D N/V does not know; x̂ of strongly smoothed modes is not raised fully
(`ScoreModel.denoised`). `dps` neglects the covariance of x0 given u altogether.

The paper of ΠGDM has one number r_t² for all frequencies, the variance of white images. That of CIFAR-10 is
300,000 times as large in the lowest frequency as in the highest. DPS as published moves a state after each of a
thousand steps of DDPM by ζ/‖y − A x̂‖ times the gradient of the squared residual. Here it is part of the score, and
its step follows from the rule above, at most 1/σ²: it means the same for every sampler and number of steps.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.inverse.covariance import posterior_covariance
from anisodiff.inverse.operators import LinearOperator
from anisodiff.models.base import Model
from anisodiff.models.scaled_noise import ScaledNoiseModel
from anisodiff.models.score import ScoreModel
from anisodiff.models.velocity import VelocityModel
from anisodiff.statistics import Coefficients, SpectralStatistics

_LEAST_SIGNAL = 0.01
"""The velocity's 1/(1 − t) is cut here: at t = 1 nothing is known of the image, and the gradient is error alone."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement:
    """y = A x + σ n."""

    operator: LinearOperator
    values: Tensor
    """y, [B, …]."""
    noise: float
    """σ from 0 to 10, in the units of images in [0, 1]; infinite: nothing is known."""

    def __post_init__(self) -> None:
        if self.noise != math.inf:
            check_noise(self.noise)


def check_noise(noise: float) -> None:
    """Refuse a σ that is not that of images in [0, 1]."""
    if not 0 <= noise < 10:
        raise ValueError(f"noise: got {noise:g}, expected a standard deviation from 0 to 10, such as 0.02")


class Method(ABC):
    """How p(y | u) is approximated; subclasses are frozen dataclasses of options."""

    name: ClassVar[str]

    @abstractmethod
    def weighted(
        self, residual: Tensor, measurement: Measurement, statistics: SpectralStatistics, t: Tensor
    ) -> Tensor:
        """(A C Aᵀ + σ²)⁻¹ of the residual y − A x̂ [B, …] at times ``t`` ([1] or [B]), up to the step."""

    def largest_step(self, measurement: Measurement) -> float:
        """A bound of the step."""
        return 1.0

    def __str__(self) -> str:
        return notation.write(self.name, self)


@dataclass(frozen=True, kw_only=True)
class PiGDM(Method):
    """``pigdm``: pseudoinverse-guided diffusion (Song et al. 2023), with a variance for every frequency."""

    name: ClassVar[str] = "pigdm"

    def weighted(
        self, residual: Tensor, measurement: Measurement, statistics: SpectralStatistics, t: Tensor
    ) -> Tensor:
        return measurement.operator.solve(residual, posterior_covariance(statistics, t), measurement.noise)


@dataclass(frozen=True, kw_only=True)
class DPS(Method):
    """``dps``: diffusion posterior sampling (Chung et al. 2023): C = 0."""

    name: ClassVar[str] = "dps"

    def weighted(
        self, residual: Tensor, measurement: Measurement, statistics: SpectralStatistics, t: Tensor
    ) -> Tensor:
        return residual

    def largest_step(self, measurement: Measurement) -> float:
        return measurement.noise**-2 if measurement.noise > 0 else math.inf


METHODS: Mapping[str, type[Method]] = MappingProxyType({kind.name: kind for kind in (PiGDM, DPS)})
"""The table of names."""


ToImage = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Likelihood:
    """∇ log p(y | u) for the states of one batch."""

    measurement: Measurement
    method: Method
    statistics: SpectralStatistics

    def gradient(self, image: Tensor, z: Tensor, t: Tensor, to_image: ToImage) -> Tensor:
        """With respect to ``z``, which ``image`` [B, C, H, W] = x̂(z) was computed from with its graph.

        ``to_image`` maps it to what it adds to x̂.
        """
        operator = self.measurement.operator
        predicted = operator.apply(image)
        residual = self.measurement.values.to(predicted) - predicted.detach()
        weights = self.method.weighted(residual, self.measurement, self.statistics, t).to(predicted)
        (gradient,) = torch.autograd.grad(predicted, z, weights)
        with torch.no_grad():
            moved = operator.apply(to_image(gradient))
            along, square = ((x * moved).sum((1, 2, 3), keepdim=True) for x in (residual, moved))
            step = (along / square.clamp(min=torch.finfo(square.dtype).tiny)).clamp(
                0, self.method.largest_step(self.measurement)
            )
            return step * gradient


Guided = Callable[..., Any]


def _score(model: ScoreModel, likelihood: Likelihood) -> Guided:
    """F + ∇ log p(y | u)/c, since the score is −û/V + c F; x̂ gains N/√(S/D) times the gradient."""

    def residuals(
        z: Tensor, c: Coefficients, dropout_key: Tensor | None = None, labels: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        with torch.enable_grad():
            z = z.detach().requires_grad_(True)
            f, g = model.residuals(z, c, dropout_key, labels)
            image = model.image(z, c, f)
            gradient = likelihood.gradient(
                image, z, c.t, lambda p: model.image(0 * z, c, p / c.scale) - model.from_coordinates(0 * z)
            )
        return f.detach() + gradient / c.scale, None if g is None else g.detach()

    return residuals


def _velocity(model: VelocityModel, likelihood: Likelihood) -> Guided:
    """w − s/(1 − t)·∇ log p(y | z), since the score is −(z + (1 − t)w)/s, s = t + σmin(1 − t)."""

    def predict(z: Tensor, t: Tensor, dropout_key: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        noise = model.process.noise(t).to(z.dtype)[:, None, None, None]
        ratio = noise / (1 - t).clamp(min=_LEAST_SIGNAL).to(z.dtype)[:, None, None, None]
        with torch.enable_grad():
            z = z.detach().requires_grad_(True)
            w = model.predict(z, t, dropout_key, labels)
            gradient = likelihood.gradient(model.image(z, t, w), z, t, lambda p: 0.5 * noise * ratio * p)
        return w.detach() - ratio * gradient

    return predict


def _noise(model: ScaledNoiseModel, likelihood: Likelihood) -> Guided:
    """n − s²·∇ log p(y | z), since the score is −n/s²; with the spread s of the predicted image."""

    def predict(z: Tensor, t: Tensor, dropout_key: Tensor | None = None, labels: Tensor | None = None) -> Tensor:
        kept = model.process.signal_power(t).sqrt().to(z.dtype)[:, None, None, None]
        with torch.enable_grad():
            z = z.detach().requires_grad_(True)
            n = model.predict(z, t, dropout_key, labels)
            image = model.image_from(z, t, n)
            square = model.process.signed_spread(image.detach(), t).square()
            gradient = likelihood.gradient(model.from_coordinates(image), z, t, lambda p: 0.5 * square / kept * p)
        return n.detach() - square * gradient

    return predict


GUIDED: tuple[tuple[type[Model], str, Callable[..., Guided]], ...] = (
    (ScoreModel, "residuals", _score),
    (VelocityModel, "predict", _velocity),
    (ScaledNoiseModel, "predict", _noise),
)
"""For every kind of model that has a score: the method that its samplers call, and the one that knows y."""


def condition_on_measurement(model: Model, measurement: Measurement, method: Method) -> Model:
    """``model`` conditioned on a measurement of every state of a batch; weights and statistics are shared.

    Labels come first: `Model.given` of what is returned here would change nothing.
    """
    name, make = check_model(model)
    view = copy.copy(model)  # shallow: parameters, buffers and modules are those of the model
    setattr(view, name, make(model, Likelihood(measurement=measurement, method=method, statistics=model.statistics)))
    return view


def check_model(model: Model) -> tuple[str, Callable[..., Guided]]:
    """The method of ``model`` that is guided, and what makes the guided one; a model without a score is refused."""
    for kind, name, make in GUIDED:
        if isinstance(model, kind):
            return name, make
    raise ValueError(f"inverse problems need a score or a velocity, and {type(model).__name__} has learned neither")
