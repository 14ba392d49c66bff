"""A trained model for the schedulers of diffusers, where the process is one of theirs.

A scheduler of diffusers steps states x = a·x0 + s·ξ with white ξ and numbers a and s for a whole image. So it fits

    ve             x0 + σ·ξ           EDMEulerScheduler, EDMDPMSolverMultistepScheduler
    flow-matching  (1 − σ)x0 + σ·ξ    FlowMatchEulerDiscreteScheduler, FlowMatchHeunDiscreteScheduler

and no other process here: the heat equation and Perona–Malik smooth each frequency, or each edge, in its own way, and
edge-preserving noise differs from pixel to pixel. For these there are our samplers, in `AnisoDiffPipeline`.
States are images scaled to [−1, 1], as diffusers has them.
"""

from typing import Any

import torch
from torch import Tensor, nn

from anisodiff.extras import need
from anisodiff.generation import Generator
from anisodiff.models.velocity import VelocityModel
from anisodiff.processes import ClosedForm, FlowMatching
from anisodiff.tensors import interpolate

_DATA = 0.5
"""σ_data of the EDM schedulers; any value will do, since what they apply is taken back."""
_FLOW = 1000.0
"""Timesteps of the flow-matching schedulers per unit of time."""


class Denoiser(nn.Module):
    """The call of `UNet2DModel`: ``denoiser(sample, timestep, class_labels).sample``, NFE 1.

    ``class_labels``: numbers of classes, [B] or one for all; their number, or None, is the null label.
    """

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator, self.model, self.process = generator, generator.model, generator.process
        self.dtype = generator.plan.dtype

    def answer(self, model: Any, sample: Tensor, timestep: Tensor) -> Tensor:
        raise NotImplementedError

    @torch.no_grad()
    def forward(
        self,
        sample: Tensor,
        timestep: Tensor | float,
        class_labels: Tensor | int | None = None,
        return_dict: bool = True,
    ) -> Any:
        model = self.model.given(self._labels(class_labels, sample))
        answer = self.answer(model, sample, torch.as_tensor(timestep).double().cpu().reshape(1))
        output = need("diffusers.models.unets.unet_2d", "a Denoiser", "diffusers").UNet2DOutput
        return output(sample=answer) if return_dict else (answer,)

    def _labels(self, class_labels: Tensor | int | None, sample: Tensor) -> Tensor | None:
        """Labels of the samples, int64 [B], refused where the model has not learned them."""
        count = len(self.generator.classes)
        if class_labels is not None and not count:
            raise ValueError(
                "class_labels: the model has learned no classes; leave them out, or train with --classes"
            )
        labels = torch.full((1,), count) if class_labels is None else torch.as_tensor(class_labels).reshape(-1)
        if labels.is_floating_point() or not bool(((labels >= 0) & (labels <= count)).all()):
            raise ValueError(
                f"class_labels: got {class_labels}, expected whole numbers from 0 to {count}, the null label"
            )
        if count and not self.generator.plan.config.label_dropout and bool((labels == count).any()):
            raise ValueError("class_labels: the model was trained with label_dropout=0; give a class for each sample")
        if len(labels) not in (1, len(sample)):
            raise ValueError(f"class_labels: got {len(labels)} of them, expected {len(sample)}, one for each sample")
        return None if class_labels is None else labels.to(sample.device, torch.int64).expand(len(sample))


class VelocityDenoiser(Denoiser):
    """The velocity dz/dt at t = timestep/1000."""

    def answer(self, model: Any, sample: Tensor, timestep: Tensor) -> Tensor:
        assert isinstance(model, VelocityModel)
        return model.velocity(sample, (timestep / _FLOW).to(sample.device))


class EDMDenoiser(Denoiser):
    """F of D = c_skip·x + c_out·F, where D is the model's image, for states c_in·x and timesteps ¼ ln σ."""

    def __init__(self, generator: Generator) -> None:
        super().__init__(generator)
        assert isinstance(self.process, ClosedForm)
        self._times = torch.linspace(0, self.process.T, 8193, dtype=torch.float64)
        like = torch.zeros(len(self._times), 1, 3, 3, dtype=torch.float64)
        self._sigma = 2 * self.process.variance(like, 0.0, self._times)[:, 0, 0, 0].sqrt()  # images are [−1, 1] here

    def range(self) -> tuple[float, float]:
        """σ at t_min and at T."""
        first = int(torch.searchsorted(self._times, self.generator.plan.config.t_min))
        return float(self._sigma[first]), float(self._sigma[-1])

    def time_of(self, sigma: Tensor) -> Tensor:
        """t with that σ, float64 [1]: linear in between."""
        return interpolate(sigma, self._sigma, self._times)

    def image(self, model: Any, x: Tensor, sigma: Tensor) -> Tensor:
        """E[x0 | x] for x = x0 + σξ."""
        states = model.to_coordinates(0.5 * (x + 1))
        image: Tensor = model.denoised(states, self.time_of(sigma).to(x.device))
        return 2 * image - 1

    def answer(self, model: Any, sample: Tensor, timestep: Tensor) -> Tensor:
        sigma = (4 * timestep).exp()
        total, scale = float((sigma.square() + _DATA**2).sqrt()), float(sigma)
        x = sample * total
        return (self.image(model, x, sigma) - (_DATA / total) ** 2 * x) * (total / (scale * _DATA))


def for_schedulers(generator: Generator) -> tuple[Denoiser, Any]:
    """The model as a UNet of diffusers, and the scheduler that fits it; others of its kind take its config."""
    schedulers, process = need("diffusers", "for_schedulers", "diffusers"), generator.process
    if isinstance(process, FlowMatching):
        return VelocityDenoiser(generator), schedulers.FlowMatchEulerDiscreteScheduler()
    if isinstance(process, ClosedForm) and {"no_drift", "white_noise"} <= process.capabilities:
        denoiser = EDMDenoiser(generator)
        low, high = denoiser.range()
        return denoiser, schedulers.EDMEulerScheduler(sigma_min=low, sigma_max=high, sigma_data=_DATA)
    name = generator.plan.config.process["preset"]
    raise ValueError(
        f"process {name}: no scheduler of diffusers fits, its states are not a·x0 + s·ξ with white noise ξ; "
        "use AnisoDiffPipeline"
    )
