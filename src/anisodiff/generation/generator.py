"""A checkpoint that generates images:

    u_T ~ prior;    u_T → u_{t_min} by a sampler;    x = E[x_0 | u_{t_min}]

Every sample has a seed. Its terminal state and its noise are functions of that seed alone: not of the batch, the
device, or the number of processes. Only rounding differs: kernels may sum in another order for another batch size.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from anisodiff.generation.images import Images
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
from anisodiff.io.checkpoint import Checkpoint, find
from anisodiff.models.base import Model
from anisodiff.noise import KeyedNoise
from anisodiff.priors import Prior
from anisodiff.processes import Process
from anisodiff.registry import build_sampler, default_sampler, fit_sampler
from anisodiff.runtime.devices import pick_device
from anisodiff.runtime.progress import bar
from anisodiff.samplers import Sampler, SampleResult
from anisodiff.training.hooks import TrainingOutcome
from anisodiff.training.model import Plan, Trained, load_model
from anisodiff.training.run_folder import data_of


@dataclass(frozen=True, kw_only=True)
class CheckpointOrigin:
    """Which checkpoint: its path as given, and the sha256 of model and prior."""

    path: str
    model: str
    prior: str | None


class Generator:
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
    ) -> None:
        if precision not in ("auto", "bf16", "fp32"):
            raise ValueError(f"precision: got {precision!r}, expected auto, bf16 or fp32")
        self.plan: Plan = trained.plan
        self.process: Process = trained.plan.process
        self.model: Model = trained.model.requires_grad_(False)
        self.meta: dict[str, Any] = trained.meta
        self.origin, self.device = origin, device
        self.channels, self.size = self.plan.config.channels, self.plan.config.size
        cuda, single = device.type == "cuda", self.plan.dtype == torch.float32
        self.half = single and (precision == "bf16" or (precision == "auto" and cuda))
        self._parameters = sum(weight.numel() for weight in self.model.network.parameters())
        if cuda or self.half:
            self.model.wrap_network(lambda n: prepared(n, cuda=cuda, half=self.half, compile=compile and cuda))
        self._stored, self._images, self._own = trained.prior, images, own
        self._starts: dict[str, NamedPrior] = {}

    def __repr__(self) -> str:
        preset = self.plan.config.process.get("preset", type(self.process).__name__)
        shape = "×".join(map(str, (self.channels, *self.size)))
        return (
            f"Generator({self.origin.path}: process {preset}, images {shape}, {self._parameters:,} parameters, "
            f"on {self.device})"
        )

    @property
    def batch(self) -> int:
        """Default batch: as many pixels as keep a device busy."""
        pixels = (256 if self.device.type == "cuda" else 16) * 32 * 32
        return max(1, min(1024, pixels // (self.size[0] * self.size[1])))

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
        )
        found = build_prior(name, inputs)
        if images is None:
            self._starts[name] = found
        return found

    def prior(self, name: str = "auto", images: PriorImages | None = None) -> Prior:
        """The distribution that sampling starts from: auto, gaussian, simulate, conditional or heldout."""
        return self.start(name, images).prior

    def route(self, sampler: str | Sampler = "auto", steps: int = 50, t: float | None = None) -> Route:
        """The sampler and its time grid from ``t`` (default: T) down to t_min, for ``steps`` NFE.

        A sampler may need a few more, to stop where the drift jumps: see `Route.nfe`. ``auto`` is the default of the
        model.
        """
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
        return Route(sampler=chosen, times=times, nfe=chosen.nfe(times))

    def sample(
        self,
        n: int,
        *,
        seed: int | torch.Generator = 0,
        steps: int = 50,
        sampler: str | Sampler = "auto",
        prior: str | Prior = "auto",
        batch: int | None = None,
        callback: Callback | None = None,
        progress: bool | None = None,
    ) -> Images:
        """``n`` images [n, C, H, W] in [0, 1] on the CPU, of the seeds ``seed``, ``seed`` + 1, …; ``steps``: NFE.

        A `torch.Generator` as ``seed`` draws the first of them: equal states give equal images, and it moves on.
        ``progress``: a bar on a terminal, unless False; True shows lines elsewhere.
        """
        if isinstance(seed, bool) or not isinstance(seed, Integral | torch.Generator):
            what = type(seed).__name__
            raise ValueError(
                f"seed: got {what}, expected a whole number or torch.Generator; sample_seeds takes several"
            )
        return self.sample_seeds(
            seeds_of(seed, n), steps=steps, sampler=sampler, prior=prior, batch=batch, callback=callback,
            progress=progress,
        )  # fmt: skip

    def sample_seeds(
        self,
        seeds: Iterable[SupportsIndex],
        *,
        steps: int = 50,
        sampler: str | Sampler = "auto",
        prior: str | Prior = "auto",
        batch: int | None = None,
        callback: Callback | None = None,
        progress: bool | None = False,
    ) -> Images:
        """One image for every seed, [len(seeds), C, H, W] in [0, 1], on the CPU; as `sample`, but silent by default.

        ``batch``: images at a time; on CUDA the last batch is padded, so that all run through the same kernels.
        """
        chosen, done = check_seeds(seeds), 0
        with bar(f"{len(chosen)} images, network evaluations", progress) as tick:
            law = self.prior(prior) if isinstance(prior, str) else prior
            route = self.route(sampler, steps)
            tick(0, len(chosen) * route.nfe)

            def watch(step: SamplingStep) -> None:
                nonlocal done
                tick(done * route.nfe + len(step.seeds) * route.nfe * step.number // step.of, len(chosen) * route.nfe)
                done += len(step.seeds) if step.number == step.of else 0
                if callback is not None:
                    callback(step)

            return self.sample_along(route, chosen, law, batch=batch, callback=watch).images.as_subclass(Images)

    def sample_along(
        self,
        route: Route,
        seeds: Sequence[int],
        prior: Prior,
        *,
        batch: int | None = None,
        callback: Callback | None = None,
    ) -> SampleResult:
        """As `sample_seeds`, with a prior and a `route` built before, and the NFE that was spent on each image."""
        chosen = check_seeds(seeds)
        keys = keys_of(chosen, START, self.device)
        return self._run(lambda rows: prior.draw(len(rows), KeyedNoise(keys[rows])), chosen, route, batch, callback)

    def reverse(
        self,
        states: Tensor,
        t: float,
        *,
        seeds: Seeds,
        steps: int = 50,
        sampler: str | Sampler = "auto",
        batch: int | None = None,
        callback: Callback | None = None,
    ) -> Images:
        """Images [B, C, H, W] in [0, 1] from ``states`` at time ``t`` ∈ (t_min, T]: to denoise, deblur, edit.

        ``seeds``: one for every state, the first of them, or a `torch.Generator` that draws the first.
        """
        chosen, route = seeds_of(seeds, len(states)), self.route(sampler, steps, t)
        expected = (len(chosen), self.channels, *self.size)
        if tuple(states.shape) != expected:
            raise ValueError(f"states: got {list(states.shape)}, expected {list(expected)}, one for every seed")
        if not bool(states.isfinite().all()):
            raise ValueError("states: they hold NaN or infinite values; expected numbers")
        begin = states.as_subclass(Tensor)
        found = self._run(lambda rows: begin[rows.to(begin.device)].to(self.device), chosen, route, batch, callback)
        return found.images.as_subclass(Images)

    @torch.no_grad()
    def _run(
        self,
        begin: Callable[[Tensor], Tensor],
        seeds: tuple[int, ...],
        route: Route,
        batch: int | None,
        callback: Callback | None,
    ) -> SampleResult:
        """Batch by batch; ``begin`` returns the states of some rows."""
        size = self.batch if batch is None else batch
        fill = self.device.type == "cuda" and (batch is not None or len(seeds) > size)
        keys, done, spent = keys_of(seeds, PATH, self.device), [], 0.0
        for few, rows in batches(len(seeds), size, self.device, fill=fill):
            here = tuple(seeds[i] for i in rows[:few].tolist())
            start = begin(rows).to(self.plan.dtype)
            found = run_reverse(self.model, start, here, keys[rows], route, callback)
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
    say: Callable[[str], None] = lambda _: None,
) -> Generator:
    """A generator with the EMA weights of a checkpoint: a run's folder, a checkpoint's, or a shipped name.

    ``images``: what priors other than `gaussian` start from; the method's own finds those of a run by itself.
    ``precision``: bf16 or fp32 inside the network; auto is bf16 on CUDA. ``compile``: torch.compile the network, on
    CUDA: for networks of your own and thousands of samples.
    """
    where = pick_device(device)
    saved = find(path, say)
    codes = saved.codes
    origin = CheckpointOrigin(path=str(path), model=codes["model.safetensors"], prior=codes.get("prior.safetensors"))
    return Generator(
        _trained(saved, where), origin, device=where, images=images, own=data_of(Path(path)), compile=compile,
        precision=precision,
    )  # fmt: skip


def _trained(saved: Checkpoint, device: torch.device) -> Trained:
    try:
        return load_model(saved, device)
    except (KeyError, RuntimeError) as error:
        if "memory" in str(error):
            raise
        what = " ".join(str(error).split())[:200]
        raise ValueError(f"{saved.path}: this anisodiff cannot read its model ({what})") from None
