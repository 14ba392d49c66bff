"""The model of a checkpoint on a device: with its codec, its priors, its classes, and its reverse process."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn

from anisodiff import notation
from anisodiff.generation.classes import DATA, ClassChoice, choose_classes
from anisodiff.generation.config import SamplingConfig, SamplingKeys
from anisodiff.generation.priors import (
    FITTED_TO,
    PAIRS,
    PRIORS,
    NamedPrior,
    Pool,
    PriorImages,
    conditional_prior,
    open_pool,
)  # fmt: skip
from anisodiff.generation.reverse import ReverseProcess, SamplingStep, check_batch
from anisodiff.latent.codec import Codec, codec_of
from anisodiff.models.base import Model
from anisodiff.models.guidance import Guidance
from anisodiff.priors import Encoded, GaussianPrior, Prior, SimulatedPrior
from anisodiff.processes import Process
from anisodiff.registry import build_sampler, default_sampler, fit_sampler
from anisodiff.runtime.cuda_graphs import Replayed
from anisodiff.runtime.devices import pick_device
from anisodiff.tensors import move_module
from anisodiff.training.model import Execution, Plan, Trained


@dataclass(frozen=True, kw_only=True)
class CheckpointOrigin:
    """Which checkpoint: its path as given, and the sha256 of model and prior."""

    path: str
    model: str
    prior: str | None


class LoadedModel:
    """A trained model, ready to run on a device."""

    def __init__(
        self,
        trained: Trained,
        origin: CheckpointOrigin,
        *,
        device: torch.device,
        images: PriorImages | None = None,
        own: tuple[Path | None, Path | None] = (None, None),
        compile: bool = False,
        precision: str = "auto",
        latent: str | Path | None = None,
    ) -> None:
        _precision(precision)
        self.plan: Plan = trained.plan
        keys = self.plan.config.latent
        if latent is not None and not keys:
            raise ValueError(f"latent: got {latent}, but this model makes pixels; leave it out")
        self.codec: Codec | None = None
        """Decodes the states of a model that was trained on latents."""
        if keys:
            where = None if latent is None else str(latent)
            self.codec = codec_of(keys, self.plan.config.channels, device, where)
        self.process: Process = trained.plan.process
        self.model: Model = trained.model.requires_grad_(False)
        self.meta: dict[str, Any] = trained.meta
        self.origin = origin
        self.channels, self.size = self.plan.config.channels, self.plan.config.size
        self.parameters = sum(weight.numel() for weight in self.model.network.parameters())
        self._stored, self._images, self._own = trained.prior, images, own
        self._named_priors: dict[str, NamedPrior] = {}
        self._network = self.model.network
        self.model.wrap_network(self._keep)
        self._place(device, compile=compile, precision=precision)

    def _keep(self, network: nn.Module) -> nn.Module:
        """Keep the network itself, before `for_inference` wraps it."""
        self._network = network
        return network

    def _place(self, device: torch.device, *, compile: bool, precision: str) -> None:
        cuda, single = device.type == "cuda", self.plan.dtype == torch.float32
        self.device, self._compile, self._precision = device, compile, precision
        self.half = single and (precision == "bf16" or (precision == "auto" and cuda))
        if cuda or self.half:
            self.model.wrap_network(lambda n: for_inference(n, cuda=cuda, half=self.half, compile=compile and cuda))

    def to(self, device: torch.device | str, precision: str | None = None) -> Self:
        """Move the model to another device; ``precision`` as in `load`, where it is to change."""
        where = pick_device(device)
        self.model.wrap_network(lambda _: self._network)
        move_module(self.model, where)
        if self.codec is not None:
            self.codec.to(where)
        self._named_priors.clear()
        self._place(where, compile=self._compile, precision=_precision(precision or self._precision))
        return self

    def __repr__(self) -> str:
        preset = self.plan.config.process.get("preset", type(self.process).__name__)
        shape = "×".join(map(str, (self.channels, *self.size)))
        extra = f", {len(self.classes)} classes" if self.classes else ""
        if self.codec is not None:
            extra += f", latents {'×'.join(map(str, self.state_shape))}"
        return (
            f"Generator({self.origin.path}: process {preset}, images {shape}{extra}, "
            f"{self.parameters:,} parameters, on {self.device})"
        )

    @property
    def batch(self) -> int:
        """Default batch: as many pixels as keep a device busy."""
        pixels = (256 if self.device.type == "cuda" else 16) * 32 * 32
        return max(1, min(1024, pixels // math.prod(self.state_shape[1:])))

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of a state: those of an image, or of its latent."""
        return self.plan.config.state_shape

    def encode(self, images: Tensor) -> Tensor:
        """The states U_0 of ``images`` [B, C, H, W] in [0, 1]: the images themselves, or their latents."""
        return images if self.codec is None else self.codec.encode(images)

    def decode(self, states: Tensor) -> Tensor:
        """The images that states show: the inverse of `encode`."""
        return states if self.codec is None else self.codec.decode(states)

    def decode_step(self, step: SamplingStep) -> Tensor:
        """The images of a step, for a callback: its states, decoded; the last step has images already."""
        return step.state if step.number == step.of else self.decode(step.state)

    def named_prior(self, name: str = "auto", images: PriorImages | None = None) -> NamedPrior:
        """The prior of that name with its description; ``images`` in place of those given to `load`."""
        if images is None and name in self._named_priors:
            return self._named_priors[name]
        prior = self._build_prior(name, self._images if images is None else images)
        if images is None:
            self._named_priors[name] = prior
        return prior

    def prior(self, name: str = "auto", images: PriorImages | None = None) -> Prior:
        """The distribution that sampling starts from: auto, gaussian, simulate, conditional or heldout."""
        return self.named_prior(name, images).prior

    def _build_prior(self, name: str, source: PriorImages | None) -> NamedPrior:
        """The prior of that name; an unknown name is refused with the nearest one."""
        notation.check_choice(name, PRIORS, "prior")
        process = self.process
        name = process.own_prior if name == "auto" else name
        if name == "gaussian" and self._stored is not None:
            missing = [key for key in ("mean", "root") if key not in self._stored]
            if missing:
                raise ValueError(
                    f"the checkpoint's prior has no {missing[0]!r}: it is of another version; train it again"
                )
            mean, root = (self._stored[key].to(self.device).float() for key in ("mean", "root"))
            text = "a Gaussian whose mean and covariance are stored in the checkpoint"
            return NamedPrior(name=name, prior=GaussianPrior(mean, root), description=text, process=process)
        fit = "the checkpoint holds no fitted prior, images are needed to fit one"
        starts = f"prior {name!r}{', that of this method,' * (name == process.own_prior)} starts from images"
        source = self._own[name == "heldout"] if source is None else source
        pool = self._pool(source, fit if name == "gaussian" else starts)
        same, heldout = pool.fingerprint == self.meta.get("data", {}).get("fingerprint"), name == "heldout"
        if heldout and same:
            raise ValueError(
                f"prior 'heldout' needs images outside the training set, but {pool.name} have its fingerprint "
                f"({pool.fingerprint[:12]}); give others, or use prior 'simulate'"
            )
        images = f"{pool.name} ({'the training set' if same else 'not the training set as such'})"
        if name == "gaussian":
            prior: Prior = process.prior(pool.some(FITTED_TO, self.device))
            text = f"a Gaussian fitted just now to terminal states of {images}"
        elif name == "conditional":
            exact = "closed_form" in process.capabilities
            how = (
                "exact: this process is linear"
                if exact
                else f"an approximation, regressed on {PAIRS} simulated pairs"
            )
            prior = conditional_prior(process, pool, self.device)
            text = f"the Gaussian of the terminal state given one of {images}; {how}"
        else:
            own = source == self._own[1]
            apart = "which the run kept aside" if own else "not compared with the training images one by one"
            prior = SimulatedPrior(process, pool.images)
            text = f"the forward process run from {f'{pool.name}, {apart}' if heldout else images}"
        return NamedPrior(name=name, prior=prior, description=text, process=process, pool=pool, heldout=heldout)

    def _pool(self, source: PriorImages | None, reason: str) -> Pool:
        """The images; where none were given, an error with the ``reason`` why they are needed."""
        if source is None:
            known = self.meta.get("data", {}).get("source") or "unknown"
            raise ValueError(
                f"{reason}: give them with --images, or to anisodiff.load as images (trained on: {known})"
            )
        found = open_pool(source, self.channels, self.size)
        if self.codec is None:
            return found
        assert not isinstance(found.images, Encoded)
        return replace(found, images=Encoded(found.images, self.codec.encode))

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes that the model has learned; none where it was trained without."""
        return self.plan.config.classes

    def reverse_process(
        self, config: SamplingConfig = SamplingConfig(), t: float | None = None, **keys: Unpack[SamplingKeys]
    ) -> ReverseProcess:
        """The reverse process from ``t`` (default: T) down to t_min.

        Its classes, where none are given: those of the data, and from a time ``t`` on the null label.
        """
        config = replace(config, **keys)
        t_min, T = self.plan.config.t_min, self.process.T
        if t is not None:
            config = config.from_state()
            if not t_min < t <= T:
                raise ValueError(f"t: got {t:g}, expected a time in (t_min, T] = ({t_min:g}, {T:g}]")
        classes, guidance = self._conditions(config)
        if config.sampler == "auto":
            sampler = default_sampler(self.plan.kind, self.process, self.plan.provided)
        elif isinstance(config.sampler, str):
            sampler = build_sampler(config.sampler, self.process, self.plan.provided)
        else:
            sampler = fit_sampler(config.sampler, self.process, self.plan.provided)
        sampler = sampler.within(config.steps)
        times = sampler.times(self.model, config.steps, t_min=t_min, t_max=t)
        labels = None if classes is None else classes.labels([0]).to(self.device)
        nfe = sampler.evaluations(self.model.given(labels, guidance), times)
        return ReverseProcess(
            sampler=sampler, times=times, nfe=nfe, steps=config.steps, classes=classes, guidance=guidance
        )

    def _conditions(self, config: SamplingConfig) -> tuple[ClassChoice | None, Guidance]:
        """Classes and guidance, checked against what the model has learned."""
        counts = self.meta.get("data", {}).get("class_counts") or ()
        classes, guidance = choose_classes(config.classes, self.classes, counts, DATA), config.guided
        dropped = self.plan.config.label_dropout > 0
        if classes is None and guidance != Guidance():
            why = "it needs a class, and 'none' is unconditional" if self.classes else "this model has no classes"
            raise ValueError(f"guidance: got {guidance.weight:g}, but {why}; leave it out, or name a class")
        if self.classes and not dropped and (classes is None or guidance.acts):
            what = "guidance" if guidance.acts else "no class"
            raise ValueError(
                f"{what}: the model was trained with label_dropout=0 and does not know the null label; "
                "name a class, without guidance"
            )
        return classes, guidance

    def check_condition(self, condition: Tensor | None, count: int) -> None:
        """Refuse a conditional model without a condition, and one that is not an image for each of ``count``."""
        if self.model.conditional and condition is None:
            raise ValueError(
                "this model makes images from cartoons: anisodiff edit MODEL CARTOON.png --cartoon, or condition=…"
            )
        if condition is not None:
            check_batch("condition", condition, (count, self.channels, *self.size))


def _precision(name: str) -> str:
    if name not in ("auto", "bf16", "fp32"):
        raise ValueError(f"precision: got {name!r}, expected auto, bf16 or fp32")
    return name


def for_inference(network: nn.Module, *, cuda: bool, half: bool, compile: bool) -> nn.Module:
    """The network as training runs it: half precision inside, channels last; on CUDA as a graph."""
    if cuda:
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if compile:
        compiled = torch.compile(network, dynamic=False)
        assert isinstance(compiled, nn.Module)
        network = compiled
    execution = Execution(network, half=half, channels_last=cuda)
    return Replayed(execution) if cuda else execution
