"""A checkpoint that generates images:

    u_T ~ prior;    u_T → u_{t_min} by a sampler;    x = E[x_0 | u_{t_min}]

Every sample has a seed. Its terminal state and its noise are functions of that seed alone: not of the batch, the
device, or the number of processes. Only rounding differs: kernels may sum in another order for another batch size.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Self, SupportsIndex, Unpack

import torch
from torch import Tensor, nn

from anisodiff.generation.classes import DATA, Chosen, ClassChoice, choose
from anisodiff.generation.config import SamplingConfig, SamplingKeys
from anisodiff.generation.images import Images
from anisodiff.generation.inversion import flow_of, spherical, upward
from anisodiff.generation.priors import NamedPrior, PriorImages, PriorInputs, build_prior
from anisodiff.generation.reverse import (
    PATH,
    START,
    Callback,
    ReverseProcess,
    SamplingStep,
    Seeds,
    batches,
    check_seeds,
    keys_of,
    prepared,
    seeds_of,
)  # fmt: skip
from anisodiff.generation.sharing import Shareable
from anisodiff.io import hub
from anisodiff.io.checkpoint import Checkpoint, find
from anisodiff.latent.codec import Codec, codec_of
from anisodiff.models.base import Model
from anisodiff.models.guidance import Guidance
from anisodiff.networks import own
from anisodiff.noise import KeyedNoise
from anisodiff.pretrained import shipped
from anisodiff.priors import GaussianPrior, Prior
from anisodiff.processes import Process
from anisodiff.registry import build_sampler, default_sampler, fit_sampler
from anisodiff.runtime.devices import pick_device
from anisodiff.runtime.progress import bar
from anisodiff.samplers import Sampler, SampleResult
from anisodiff.tensors import place, wide
from anisodiff.training.hooks import TrainingOutcome
from anisodiff.training.model import Plan, Trained, load_model
from anisodiff.training.run_folder import data_of


@dataclass(frozen=True, kw_only=True)
class CheckpointOrigin:
    """Which checkpoint: its path as given, and the sha256 of model and prior."""

    path: str
    model: str
    prior: str | None


class Generator(Shareable):
    """Samples from a checkpoint; returned by `anisodiff.load` and `anisodiff.train`."""

    outcome: TrainingOutcome | None = None
    """How the run ended that `anisodiff.train` has made or continued."""

    def __init__(
        self,
        trained: Trained,
        origin: CheckpointOrigin,
        *,
        device: torch.device,
        images: PriorImages | None = None,
        own: Path | None = None,
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
        self._starts: dict[str, NamedPrior] = {}
        self._network = self.model.network
        self.model.wrap_network(self._keep)
        self._place(device, compile=compile, precision=precision)

    def _keep(self, network: nn.Module) -> nn.Module:
        """Remember the network as it is, before it is prepared for a device."""
        self._network = network
        return network

    def _place(self, device: torch.device, *, compile: bool, precision: str) -> None:
        cuda, single = device.type == "cuda", self.plan.dtype == torch.float32
        self.device, self._compile, self._precision = device, compile, precision
        self.half = single and (precision == "bf16" or (precision == "auto" and cuda))
        if cuda or self.half:
            self.model.wrap_network(lambda n: prepared(n, cuda=cuda, half=self.half, compile=compile and cuda))

    def to(self, device: torch.device | str, precision: str | None = None) -> Self:
        """Move the model to another device; ``precision`` as in `load`, where it is to change."""
        where = pick_device(device)
        self.model.wrap_network(lambda _: self._network)
        place(self.model, where)
        if self.codec is not None:
            self.codec.to(where)
        self._starts.clear()
        self._place(where, compile=self._compile, precision=_precision(precision or self._precision))
        return self

    def __repr__(self) -> str:
        preset = self.plan.config.process.get("preset", type(self.process).__name__)
        shape = "×".join(map(str, (self.channels, *self.size)))
        known = f", {len(self.classes)} classes" if self.classes else ""
        if self.codec is not None:
            known += f", latents {'×'.join(map(str, self.state_shape))}"
        return (
            f"Generator({self.origin.path}: process {preset}, images {shape}{known}, "
            f"{self.parameters:,} parameters, on {self.device})"
        )

    @classmethod
    def from_pretrained(
        cls, name: str | Path, device: torch.device | str = "auto", *, revision: str | None = None,
        precision: str = "auto", trust_code: bool = False, latent: str | Path | None = None,
    ) -> "Generator":  # fmt: skip
        """As `load`: a folder, where there is one of this name, else OWNER/NAME on the Hub."""
        text = str(name)
        if hub.is_repository(text.partition("@")[0]) and not (Path(text).exists() or shipped(text)):
            text = f"{hub.PREFIX}{text}"
        if revision is not None:
            if not hub.is_hub(text):
                raise ValueError(f"revision: got {revision!r}, but {text} is not on the Hub; leave the revision out")
            text = f"{text}@{revision}"
        return load(text, device, precision=precision, trust_code=trust_code, latent=latent)

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

    def shown(self, step: SamplingStep) -> Tensor:
        """The picture of a step, for a callback: its states, decoded; the last step has images already."""
        return step.state if step.number == step.of else self.decode(step.state)

    def start(self, name: str = "auto", images: PriorImages | None = None) -> NamedPrior:
        """The prior of that name with its description; ``images`` in place of those given to `load`."""
        if images is None and name in self._starts:
            return self._starts[name]
        inputs = PriorInputs(
            process=self.process,
            stored=self._stored,
            source=self._images if images is None else images,
            channels=self.channels,
            size=self.size,
            data=self.meta.get("data", {}),
            device=self.device,
            own=self._own,
            codec=self.codec,
        )
        found = build_prior(name, inputs)
        if images is None:
            self._starts[name] = found
        return found

    def prior(self, name: str = "auto", images: PriorImages | None = None) -> Prior:
        """The distribution that sampling starts from: auto, gaussian, simulate, conditional or heldout."""
        return self.start(name, images).prior

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
        return ReverseProcess(sampler=sampler, times=times, nfe=nfe, classes=classes, guidance=guidance)

    def _conditions(self, config: SamplingConfig) -> tuple[ClassChoice | None, Guidance]:
        """Classes and guidance, checked against what the model has learned."""
        counts = self.meta.get("data", {}).get("class_counts") or ()
        chosen, guided = choose(config.classes, self.classes, counts, DATA), config.guided
        dropped = self.plan.config.label_dropout > 0
        if chosen is None and guided != Guidance():
            why = "the null label has nothing to be guided to" if self.classes else "this model has no classes"
            raise ValueError(f"guidance: got {guided.weight:g}, but {why}; leave it out, or name a class")
        if self.classes and not dropped and (chosen is None or guided.acts):
            what = "guidance" if guided.acts else "no class"
            raise ValueError(
                f"{what}: the model was trained with label_dropout=0 and does not know the null label; "
                "name a class, without guidance"
            )
        return chosen, guided

    def sample(
        self,
        n: int,
        *,
        seed: int | torch.Generator = 0,
        steps: int = 50,
        sampler: str | Sampler = "auto",
        prior: str | Prior = "auto",
        classes: Chosen | None = None,
        guidance: float | Guidance = 1.0,
        batch: int | None = None,
        callback: Callback | None = None,
        progress: bool | None = None,
    ) -> Images:
        """``n`` images [n, C, H, W] in [0, 1] on the CPU, of the seeds ``seed``, ``seed`` + 1, …; ``steps``: NFE.

        A `torch.Generator` as ``seed`` draws the first of them: equal states give equal images, and it moves on.
        ``classes``: a name, ``"all"`` in turn, ``"data"`` as often as in the data (the default of a model that has
        learned classes), ``"none"``, or a list: seed s has the class ``classes[s % len(classes)]``. ``guidance``: the
        weight w, or a `Guidance` with an interval of noise levels; each guided answer costs two NFE.
        ``progress``: a bar on a terminal, unless False; True shows lines elsewhere.
        """
        if isinstance(seed, bool) or not isinstance(seed, Integral | torch.Generator):
            what = type(seed).__name__
            raise ValueError(
                f"seed: got {what}, expected a whole number or torch.Generator; sample_seeds takes several"
            )
        config = SamplingConfig(
            steps=steps, sampler=sampler, prior=prior, classes=classes, guidance=guidance, batch=batch
        )
        return self.sample_seeds(seeds_of(seed, n), config, callback=callback, progress=progress)

    def sample_seeds(
        self,
        seeds: Iterable[SupportsIndex],
        config: SamplingConfig = SamplingConfig(),
        *,
        condition: Tensor | None = None,
        callback: Callback | None = None,
        progress: bool | None = False,
        **keys: Unpack[SamplingKeys],
    ) -> Images:
        """One image for every seed, [len(seeds), C, H, W] in [0, 1], on the CPU; as `sample`, but silent by default.

        ``condition``: for a model trained with one, an image [C, H, W] for every seed. ``keys``: of the config. On
        CUDA the last batch is padded, so that all run through the same kernels.
        """
        config, checked, done = replace(config, **keys), check_seeds(seeds), 0
        with bar(f"{len(checked)} images, network evaluations", progress) as tick:
            prior = self.prior(config.prior) if isinstance(config.prior, str) else config.prior
            reverse = self.reverse_process(config)
            total = len(checked) * reverse.nfe
            tick(0, total)

            def watch(step: SamplingStep) -> None:
                nonlocal done
                tick(done * reverse.nfe + len(step.seeds) * reverse.nfe * step.number // step.of, total)
                done += len(step.seeds) if step.number == step.of else 0
                if callback is not None:
                    callback(step)

            found = self.sample_with(reverse, checked, prior, condition=condition, batch=config.batch, callback=watch)
            return found.images.as_subclass(Images)

    def sample_with(
        self,
        reverse: ReverseProcess,
        seeds: Sequence[int],
        prior: Prior,
        *,
        condition: Tensor | None = None,
        batch: int | None = None,
        callback: Callback | None = None,
    ) -> SampleResult:
        """As `sample_seeds`, by a prior and a reverse process built before; with the NFE spent on each image."""
        checked = check_seeds(seeds)
        keys = keys_of(checked, START, self.device)

        def start(rows: Tensor) -> Tensor:
            return prior.draw(len(rows), KeyedNoise(keys[rows]))

        return self._run(start, checked, reverse, batch, callback, condition)

    def reverse(
        self,
        states: Tensor,
        t: float,
        config: SamplingConfig = SamplingConfig(),
        *,
        seeds: Seeds,
        condition: Tensor | None = None,
        callback: Callback | None = None,
        **keys: Unpack[SamplingKeys],
    ) -> Images:
        """Images [B, C, H, W] in [0, 1] from ``states`` at time ``t`` ∈ (t_min, T]: to denoise, deblur, edit.

        ``seeds``: one for every state, the first of them, or a `torch.Generator` that draws the first. ``keys``: of
        the config; the null label unless classes are given. ``condition`` as in `sample_seeds`.
        """
        config, checked = replace(config, **keys), seeds_of(seeds, len(states))
        reverse = self.reverse_process(config, t)
        expected = (len(checked), *self.state_shape)
        if tuple(states.shape) != expected:
            raise ValueError(f"states: got {list(states.shape)}, expected {list(expected)}, one for every seed")
        if not bool(states.isfinite().all()):
            raise ValueError("states: they hold NaN or infinite values; expected numbers")
        plain = states.as_subclass(Tensor)

        def start(rows: Tensor) -> Tensor:
            return plain[rows.to(plain.device)].to(self.device)

        return self._run(start, checked, reverse, config.batch, callback, condition).images.as_subclass(Images)

    def invert(
        self, images: Tensor, *, steps: int = 50, sampler: str | Sampler = "auto", batch: int | None = None
    ) -> Tensor:
        """The terminal states, on the CPU, that the probability flow turns into ``images`` in [0, 1].

        ``steps``: NFE. Back: ``reverse(states, process.T, seeds=0, steps=…, sampler="ode")``; of flow matching
        ``heun``.
        """
        if tuple(images.shape[1:]) != (self.channels, *self.size) or not len(images):
            expected = ["B", self.channels, *self.size]
            raise ValueError(f"images: got {list(images.shape)}, expected [{', '.join(map(str, expected))}]")
        if not bool(((images >= 0) & (images <= 1)).all()):
            raise ValueError("images: expected numbers in [0, 1]; divide bytes by 255")
        self.check_condition(None, len(images))
        flow = flow_of(self.plan.provided) if sampler == "auto" else sampler
        reverse = self.reverse_process(t=self.process.T, steps=steps, sampler=flow)
        parts = torch.split(images.as_subclass(Tensor), self.batch if batch is None else batch)
        found = [
            upward(
                self.model, reverse.sampler, self.encode(part.to(self.device, self.plan.dtype)), reverse.times.flip(0)
            )
            for part in parts
        ]
        return torch.cat([states.to("cpu", torch.float32) for states in found])

    def interpolate(
        self, first: Tensor, second: Tensor, count: int = 8, *, steps: int = 50, batch: int | None = None
    ) -> Images:
        """``count`` images [count, C, H, W] from the image ``first`` [C, H, W] to ``second``, both included.

        Both are inverted; the way between is spherical in whitened coordinates of the Gaussian prior; ``steps``: NFE,
        each way.
        """
        if count < 2:
            raise ValueError(f"count: got {count}, expected 2 or more: both ends are among them")
        law, flow = self.prior("gaussian"), flow_of(self.plan.provided)
        assert isinstance(law, GaussianPrior)
        ends = self.invert(torch.stack([first, second]), steps=steps, batch=batch).to(self.device)
        places = torch.linspace(0, 1, count, dtype=wide(self.device), device=self.device)
        start, end = law.whitened(ends)
        way = spherical(start, end, places)
        states = law.colored(way.to(law.mean.dtype))
        return self.reverse(states, self.process.T, seeds=0, steps=steps, sampler=flow, batch=batch)

    def check_condition(self, condition: Tensor | None, count: int) -> None:
        """Refuse a conditional model without a condition, and one that is not an image for each of ``count``."""
        if self.model.conditional and condition is None:
            raise ValueError(
                "this model makes images from cartoons: anisodiff edit MODEL CARTOON.png --cartoon, or condition=…"
            )
        expected = (count, self.channels, *self.size)
        if condition is not None and tuple(condition.shape) != expected:
            raise ValueError(f"condition: got {list(condition.shape)}, expected {list(expected)}, one for every seed")

    @torch.no_grad()
    def _run(
        self,
        start: Callable[[Tensor], Tensor],
        seeds: tuple[int, ...],
        reverse: ReverseProcess,
        batch: int | None,
        callback: Callback | None,
        condition: Tensor | None = None,
    ) -> SampleResult:
        """Batch by batch; ``start`` returns the states of some rows."""
        self.check_condition(condition, len(seeds))
        size = self.batch if batch is None else batch
        fill = self.device.type == "cuda" and (batch is not None or len(seeds) > size)
        keys, done, spent = keys_of(seeds, PATH, self.device), [], 0.0
        for count, rows in batches(len(seeds), size, self.device, fill=fill):
            here = tuple(seeds[i] for i in rows[:count].tolist())
            states = start(rows).to(self.plan.dtype)
            model = self.model.conditioned(
                None if condition is None else condition[rows.to(condition.device)].to(states)
            )
            found = reverse.run(model, states, here, keys[rows], callback, self.codec)
            done.append(found.images.to("cpu", torch.float32))
            spent += found.nfe * count
        return SampleResult(torch.cat(done), spent / len(seeds))


def load(
    path: str | Path,
    device: torch.device | str = "auto",
    images: PriorImages | None = None,
    *,
    compile: bool = False,
    precision: str = "auto",
    trust_code: bool = False,
    latent: str | Path | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Generator:
    """A generator with the EMA weights of a checkpoint: a run's folder, a checkpoint's, a shipped name, or
    ``hub:OWNER/NAME`` on the Hugging Face Hub.

    ``images``: what priors other than `gaussian` start from; the method's own finds those of a run by itself.
    ``precision``: bf16 or fp32 inside the network; auto is bf16 on CUDA. ``compile``: torch.compile the network, on
    CUDA: for networks of your own and thousands of samples. ``trust_code``: import the class of a network that
    is not ours, which the checkpoint only names; one that you gave to `anisodiff.train` needs no such word.
    ``latent``: for a model of latents, where its autoencoder lies now: a folder, or OWNER/NAME to download it.
    """
    where = pick_device(device)
    saved = find(path, say)
    if trust_code:
        own.trust(saved.meta["config"])
    codes = saved.codes
    origin = CheckpointOrigin(path=str(path), model=codes["model.safetensors"], prior=codes.get("prior.safetensors"))
    found = Generator(
        _trained(saved, where), origin, device=where, images=images, own=data_of(Path(path)), compile=compile,
        precision=precision, latent=latent,
    )  # fmt: skip
    found.saved = saved
    return found


def _precision(given: str) -> str:
    if given not in ("auto", "bf16", "fp32"):
        raise ValueError(f"precision: got {given!r}, expected auto, bf16 or fp32")
    return given


def _trained(saved: Checkpoint, device: torch.device) -> Trained:
    try:
        return load_model(saved, device)
    except (KeyError, RuntimeError) as error:
        if "memory" in str(error):
            raise
        what = " ".join(str(error).split())[:200]
        raise ValueError(f"{saved.path}: this anisodiff cannot read its model ({what})") from None
