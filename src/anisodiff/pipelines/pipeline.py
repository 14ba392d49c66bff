"""`AnisoDiffPipeline`: a model as a pipeline of diffusers, with its arguments, callbacks and progress bar.

Saved, it is the folder of `Generator.save_pretrained` with a model_index.json: `anisodiff.load` reads it, too. What
model_index.json says is not followed: no class that a file names is imported.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anisodiff.extras import need
from anisodiff.generation import Generator, SamplingStep
from anisodiff.generation.classes import ClassChoice
from anisodiff.generation.reverse import ReverseProcess, seeds_of

_diffusers: Any = need("diffusers", "AnisoDiffPipeline", "diffusers")
_DTYPES = {None: "auto", torch.float32: "fp32", torch.bfloat16: "bf16"}
TENSORS = ("latents",)
OUTPUTS = ("pil", "np", "pt")
OnStepEnd = Callable[[Any, int, float, dict[str, Tensor]], dict[str, Tensor] | None]


class PipelineModel(nn.Module):
    """The one component of the pipeline: a `Generator` that moves as modules do."""

    def __init__(self, generator: Generator) -> None:
        super().__init__()
        self.generator, self.inner = generator, generator.model

    @property
    def device(self) -> torch.device:
        return self.generator.device

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.generator.half else self.generator.plan.dtype

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "PipelineModel":  # type: ignore[override]  # what pipelines call
        """Move the model; ``dtype``: float32, or bfloat16 inside of the network."""
        self.generator.to(device or self.device, None if dtype is None else _precision(dtype))
        return self


class _InOrder(ClassChoice):
    """The first image has the first class, the second the second: pipelines count images, and not seeds."""

    def labels(self, seeds: Sequence[int]) -> Tensor:
        """One for each image of the only batch."""
        return torch.tensor(self.turn[: len(seeds)], dtype=torch.int64)


class _Interrupted(Exception):
    """Sampling was stopped by a callback."""

    def __init__(self, state: Tensor) -> None:
        super().__init__()
        self.state = state


class AnisoDiffPipeline(_diffusers.DiffusionPipeline):  # type: ignore[misc]  # diffusers has no types
    """Generation with a trained model: ``AnisoDiffPipeline(anisodiff.load("run"))``."""

    model_cpu_offload_seq = "model"

    def __init__(self, model: Generator | PipelineModel) -> None:
        super().__init__()
        self.register_modules(model=PipelineModel(model) if isinstance(model, Generator) else model)
        self._interrupt = False

    @classmethod
    def from_pretrained(
        cls, name: str | Path, *, torch_dtype: torch.dtype | None = None, revision: str | None = None,
        trust_code: bool = False, latent: str | Path | None = None,
    ) -> "AnisoDiffPipeline":  # fmt: skip
        """From a folder, a run, or OWNER/NAME on the Hub; on the CPU, as pipelines are, until `to` moves it."""
        generator = Generator.from_pretrained(
            name, "cpu", revision=revision, precision=_precision(torch_dtype), trust_code=trust_code, latent=latent
        )
        return cls(generator)

    def save_pretrained(self, save_directory: str | Path, *, numbers: str = "", samples: int = 16) -> None:
        """Write the folder of `Generator.save_pretrained`, and model_index.json."""
        self.save_config(str(self.generator.save_pretrained(save_directory, numbers=numbers, samples=samples)))

    def push_to_hub(self, name: str, *, private: bool | None = None, token: str | None = None) -> str:
        """As `Generator.push_to_hub`."""
        return self.generator.push_to_hub(name, private=private, token=token)

    @property
    def generator(self) -> Generator:
        """The model as `anisodiff.load` gives it."""
        generator: Generator = self.model.generator
        return generator

    @property
    def interrupt(self) -> bool:
        """Whether a callback has set ``_interrupt``: sampling stops after this step."""
        return self._interrupt

    @torch.no_grad()
    def __call__(
        self,
        batch_size: int | None = None,
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
        num_inference_steps: int = 50,
        output_type: str = "pil",
        return_dict: bool = True,
        class_labels: str | int | Sequence[str | int] | Tensor | None = None,
        guidance_scale: float = 1.0,
        sampler: str = "auto",
        callback_on_step_end: OnStepEnd | None = None,
        callback_on_step_end_tensor_inputs: Sequence[str] = TENSORS,
    ) -> Any:
        """``batch_size`` images (one, or one for each of ``class_labels``); ``num_inference_steps``: NFE for each.

        class_labels          one for each image, or one for all: names or numbers; None: as `Generator.sample`
        guidance_scale        the weight w of classifier-free guidance; 1: none
        generator             draws the seed of the first image; a list draws one for each; None: torch's default
        sampler               as for `Generator.sample`
        output_type           pil, np ([B, H, W, C] in [0, 1]) or pt ([B, C, H, W])
        callback_on_step_end  gets (pipeline, step, t, {"latents": states}); it may set ``pipeline._interrupt``, but
                              not change the states
        """
        if output_type not in OUTPUTS:
            raise ValueError(f"output_type: got {output_type!r}, expected {', '.join(OUTPUTS)}")
        if unknown := [name for name in callback_on_step_end_tensor_inputs if name not in TENSORS]:
            raise ValueError(f"callback_on_step_end_tensor_inputs: got {unknown[0]!r}, expected 'latents'")
        labels: Any = class_labels.tolist() if isinstance(class_labels, Tensor) else class_labels
        each = isinstance(labels, Sequence) and not isinstance(labels, str)
        count = batch_size if batch_size is not None else len(labels) if each else 1
        if each and len(labels) != count:
            raise ValueError(f"class_labels: got {len(labels)} of them, expected {count}, one for each image")
        model, seeds = self.generator, _seeds(generator, count)
        reverse = model.reverse_process(
            steps=num_inference_steps, sampler=sampler, classes=labels, guidance=guidance_scale
        )
        reverse, done = _in_order(reverse) if each else reverse, 0
        self._interrupt = False
        with self.progress_bar(total=reverse.nfe) as bar:

            def watch(step: SamplingStep) -> None:
                nonlocal done
                now = reverse.nfe * step.number // step.of
                bar.update(now - done)
                done = now
                if callback_on_step_end is None or not step.number:
                    return
                tensors = dict.fromkeys(callback_on_step_end_tensor_inputs, step.state)
                answer = callback_on_step_end(self, step.number - 1, step.t, tensors) or {}
                if any(answer.get(name, value) is not value for name, value in tensors.items()):
                    raise ValueError("callback_on_step_end: it returned other latents; the steps cannot be changed")
                if self._interrupt:
                    raise _Interrupted(model.decode_step(step).clamp(0, 1))

            try:
                images = model.sample_with(reverse, seeds, model.prior(), batch=count, callback=watch).images
            except _Interrupted as stopped:
                images = stopped.state.float().cpu()
        output: Any = images
        if output_type != "pt":
            output = images.permute(0, 2, 3, 1).numpy()
        if output_type == "pil":
            output = self.numpy_to_pil(output)
        return _diffusers.ImagePipelineOutput(images=output) if return_dict else (output,)


def _in_order(reverse: ReverseProcess) -> ReverseProcess:
    choice = reverse.classes
    assert choice is not None, "a list of labels is a choice"
    return replace(reverse, classes=_InOrder(**{f.name: getattr(choice, f.name) for f in fields(choice)}))


def _precision(dtype: torch.dtype | None) -> str:
    if dtype not in _DTYPES:
        raise ValueError(f"torch_dtype: got {dtype}, expected torch.float32 or torch.bfloat16")
    return _DTYPES[dtype]


def _seeds(generator: torch.Generator | Sequence[torch.Generator] | None, count: int) -> tuple[int, ...]:
    """One seed for each image, from generators as diffusers takes them."""
    if generator is None or isinstance(generator, torch.Generator):
        return seeds_of(torch.default_generator if generator is None else generator, count)
    if len(generator) != count:
        raise ValueError(f"generator: got {len(generator)} of them, expected {count}, one for each image")
    return tuple(seeds_of(one, 1)[0] for one in generator)
