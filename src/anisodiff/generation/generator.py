"""A checkpoint that generates images:

    u_T ~ prior;    u_T → u_{t_min} by a sampler;    x = E[x_0 | u_{t_min}]

Every sample has a seed. Its terminal state and its noise are functions of that seed alone: not of the batch, the
device, or the number of processes. Only rounding differs: kernels may sum in another order for another batch size.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, Self, SupportsIndex

import torch
from torch import Tensor, nn

from anisodiff.generation.classes import DATA, NONE, Chosen, ClassChoice, choose
from anisodiff.generation.images import Images
from anisodiff.generation.inversion import flow_of, spherical, upward
from anisodiff.generation.priors import NamedPrior, PriorImages, PriorInputs, build_prior
from anisodiff.generation.reverse import (
    PATH,
    START,
    Callback,
    Route,
    SamplingStep,
    Seeds,
    batches,
    check_seeds,
    keys_of,
    prepared,
    run_reverse,
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
from anisodiff.tensors import highest_precision, move_module
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
        move_module(self.model, where)
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

    def route(
        self,
        sampler: str | Sampler = "auto",
        steps: int = 50,
        t: float | None = None,
        *,
        classes: Chosen | None = None,
        guidance: float | Guidance = 1.0,
    ) -> Route:
        """The sampler and its time grid from ``t`` (default: T) down to t_min, for ``steps`` NFE.

        A sampler may need a few more, to stop where the drift jumps, and guidance twice as many: see `Route.nfe`.
        ``auto`` is the default of the model. ``classes``: see `generation.classes`; unless given, those of the data
        as often as there, and from a time ``t`` on the null label.
        """
        chosen_classes, guided = self._conditions(classes, guidance, DATA if t is None else NONE)
        t_min, T = self.plan.config.t_min, self.process.T
        if steps < 1:
            raise ValueError(f"steps: got {steps}, expected 1 NFE or more")
        if t is not None and not t_min < t <= T:
            raise ValueError(f"t: got {t:g}, expected a time in (t_min, T] = ({t_min:g}, {T:g}]")
        if sampler == "auto":
            given = default_sampler(self.plan.kind, self.process, self.plan.provided)
        elif isinstance(sampler, str):
            given = build_sampler(sampler, self.process, self.plan.provided)
        else:
            given = fit_sampler(sampler, self.process, self.plan.provided)
        chosen = given.within(steps)
        times = chosen.times(self.model, steps, t_min=t_min, t_max=t)
        labels = None if chosen_classes is None else chosen_classes.labels([0]).to(self.device)
        nfe = chosen.evaluations(self.model.given(labels, guided), times)
        return Route(sampler=chosen, times=times, nfe=nfe, classes=chosen_classes, guidance=guided)

    def _conditions(
        self, given: Chosen | None, guidance: float | Guidance, default: str
    ) -> tuple[ClassChoice | None, Guidance]:
        """Classes and guidance, checked against what the model has learned."""
        counts = self.meta.get("data", {}).get("class_counts") or ()
        chosen = choose(given, self.classes, counts, default)
        guided = guidance if isinstance(guidance, Guidance) else Guidance(weight=guidance)
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
        return self.sample_seeds(
            seeds_of(seed, n), steps=steps, sampler=sampler, prior=prior, classes=classes, guidance=guidance,
            batch=batch, callback=callback, progress=progress,
        )  # fmt: skip

    def sample_seeds(
        self,
        seeds: Iterable[SupportsIndex],
        *,
        steps: int = 50,
        sampler: str | Sampler = "auto",
        prior: str | Prior = "auto",
        classes: Chosen | None = None,
        guidance: float | Guidance = 1.0,
        condition: Tensor | None = None,
        batch: int | None = None,
        callback: Callback | None = None,
        progress: bool | None = False,
    ) -> Images:
        """One image for every seed, [len(seeds), C, H, W] in [0, 1], on the CPU; as `sample`, but silent by default.

        ``condition``: for a model trained with one, an image [C, H, W] for every seed. ``batch``: images at a time;
        on CUDA the last batch is padded, so that all run through the same kernels.
        """
        chosen, done = check_seeds(seeds), 0
        with bar(f"{len(chosen)} images, network evaluations", progress) as tick:
            law = self.prior(prior) if isinstance(prior, str) else prior
            route = self.route(sampler, steps, classes=classes, guidance=guidance)
            tick(0, len(chosen) * route.nfe)

            def watch(step: SamplingStep) -> None:
                nonlocal done
                tick(done * route.nfe + len(step.seeds) * route.nfe * step.number // step.of, len(chosen) * route.nfe)
                done += len(step.seeds) if step.number == step.of else 0
                if callback is not None:
                    callback(step)

            found = self.sample_along(route, chosen, law, condition=condition, batch=batch, callback=watch)
            return found.images.as_subclass(Images)

    def sample_along(
        self,
        route: Route,
        seeds: Sequence[int],
        prior: Prior,
        *,
        condition: Tensor | None = None,
        batch: int | None = None,
        callback: Callback | None = None,
    ) -> SampleResult:
        """As `sample_seeds`, with a prior and a `route` built before, and the NFE that was spent on each image."""
        chosen = check_seeds(seeds)
        keys = keys_of(chosen, START, self.device)

        def begin(rows: Tensor) -> Tensor:
            return prior.draw(len(rows), KeyedNoise(keys[rows]))

        return self._run(begin, chosen, route, batch, callback, condition)

    def reverse(
        self,
        states: Tensor,
        t: float,
        *,
        seeds: Seeds,
        steps: int = 50,
        sampler: str | Sampler = "auto",
        classes: Chosen | None = None,
        guidance: float | Guidance = 1.0,
        condition: Tensor | None = None,
        batch: int | None = None,
        callback: Callback | None = None,
    ) -> Images:
        """Images [B, C, H, W] in [0, 1] from ``states`` at time ``t`` ∈ (t_min, T]: to denoise, deblur, edit.

        ``seeds``: one for every state, the first of them, or a `torch.Generator` that draws the first. ``classes``
        and ``guidance`` as in `sample`, but the null label unless classes are given. ``condition`` as in
        `sample_seeds`.
        """
        chosen = seeds_of(seeds, len(states))
        route = self.route(sampler, steps, t, classes=classes, guidance=guidance)
        expected = (len(chosen), *self.state_shape)
        if tuple(states.shape) != expected:
            raise ValueError(f"states: got {list(states.shape)}, expected {list(expected)}, one for every seed")
        if not bool(states.isfinite().all()):
            raise ValueError("states: they hold NaN or infinite values; expected numbers")
        begin = states.as_subclass(Tensor)
        found = self._run(
            lambda rows: begin[rows.to(begin.device)].to(self.device), chosen, route, batch, callback, condition
        )
        return found.images.as_subclass(Images)

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
        route = self.route(flow_of(self.plan.provided) if sampler == "auto" else sampler, steps, self.process.T)
        parts = torch.split(images.as_subclass(Tensor), self.batch if batch is None else batch)
        found = [
            upward(self.model, route.sampler, self.encode(part.to(self.device, self.plan.dtype)), route.times.flip(0))
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
        places = torch.linspace(0, 1, count, dtype=highest_precision(self.device), device=self.device)
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
        begin: Callable[[Tensor], Tensor],
        seeds: tuple[int, ...],
        route: Route,
        batch: int | None,
        callback: Callback | None,
        condition: Tensor | None = None,
    ) -> SampleResult:
        """Batch by batch; ``begin`` returns the states of some rows."""
        self.check_condition(condition, len(seeds))
        size = self.batch if batch is None else batch
        fill = self.device.type == "cuda" and (batch is not None or len(seeds) > size)
        keys, done, spent = keys_of(seeds, PATH, self.device), [], 0.0
        for few, rows in batches(len(seeds), size, self.device, fill=fill):
            here = tuple(seeds[i] for i in rows[:few].tolist())
            start = begin(rows).to(self.plan.dtype)
            model = self.model.conditioned(
                None if condition is None else condition[rows.to(condition.device)].to(start)
            )
            found = run_reverse(model, start, here, keys[rows], route, callback, self.codec)
            done.append(found.images.to("cpu", torch.float32))
            spent += found.nfe * few
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
