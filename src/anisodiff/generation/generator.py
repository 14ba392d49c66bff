"""A model that makes images:

    u_T ~ prior;    u_T → u_{t_min} by a sampler;    x = E[x_0 | u_{t_min}]

Every sample has a seed. Its terminal state and its noise are functions of that seed alone: not of the batch, the
device, or the number of processes. What is left is rounding: kernels may sum in another order for another batch size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anisodiff.generation.pool import Pictures
from anisodiff.generation.running import PATH, START, Callback, Route, cut, keys_of, prepared, run_back
from anisodiff.generation.seeds import check_seeds
from anisodiff.generation.starts import Ground, Start, start_of
from anisodiff.models.base import Model
from anisodiff.noise import KeyedNoise
from anisodiff.priors import Prior
from anisodiff.processes import Process
from anisodiff.registry import build_sampler, default_sampler, fit_sampler
from anisodiff.samplers import Sampler
from anisodiff.training.model import Plan, Trained


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Which checkpoint: its path as given, and the sha256 of model and prior."""

    path: str
    model: str
    prior: str | None


class Generator:
    """Samples from a checkpoint; made by `anisodiff.load`."""

    def __init__(
        self,
        trained: Trained,
        origin: Origin,
        *,
        device: torch.device,
        images: Pictures | None = None,
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
        if cuda or self.half:
            self.model.wrap_network(lambda n: prepared(n, cuda=cuda, half=self.half, compile=compile and cuda))
        self._stored, self._images = trained.prior, images
        self._starts: dict[str, Start] = {}

    @property
    def batch(self) -> int:
        """Samples at a time, where nothing is said: as many pixels as keep a device busy."""
        pixels = (256 if self.device.type == "cuda" else 16) * 32 * 32
        return max(1, min(1024, pixels // (self.size[0] * self.size[1])))

    def start(self, name: str = "gaussian", images: Pictures | None = None) -> Start:
        """The prior of that name with what is to be said of it; ``images`` in place of those given to `load`."""
        if images is None and name in self._starts:
            return self._starts[name]
        ground = Ground(
            process=self.process,
            stored=self._stored,
            pictures=self._images if images is None else images,
            channels=self.channels,
            size=self.size,
            data=self.meta.get("data", {}),
            device=self.device,
        )
        found = start_of(name, ground)
        if images is None:
            self._starts[name] = found
        return found

    def prior(self, name: str = "gaussian", images: Pictures | None = None) -> Prior:
        """The law that sampling starts from: gaussian, simulate, conditional or heldout."""
        return self.start(name, images).prior

    def route(self, sampler: str | Sampler = "auto", steps: int = 50, t: float | None = None) -> Route:
        """The way back from ``t`` (T, where none is given) in ``steps`` evaluations of the network.

        A sampler may need a few more than were asked for, to stop where the drift jumps: `Route.evaluations` counts.
        ``auto`` is the one that of the model (`registry.default_sampler`).
        """
        t_min, T = self.plan.config.t_min, self.process.T
        if steps < 1:
            raise ValueError(f"steps: got {steps}, expected 1 evaluation of the network or more")
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
        seed: int = 0,
        steps: int = 50,
        sampler: str | Sampler = "auto",
        prior: str | Prior = "gaussian",
        batch: int | None = None,
        callback: Callback | None = None,
    ) -> Tensor:
        """``n`` images [n, C, H, W] in [0, 1] on the CPU: those of the seeds ``seed``, ``seed`` + 1, …"""
        return self.sample_seeds(
            range(seed, seed + n), steps=steps, sampler=sampler, prior=prior, batch=batch, callback=callback
        )

    def sample_seeds(
        self,
        seeds: Sequence[int],
        *,
        steps: int = 50,
        sampler: str | Sampler = "auto",
        prior: str | Prior = "gaussian",
        batch: int | None = None,
        callback: Callback | None = None,
    ) -> Tensor:
        """One image for every seed, [len(seeds), C, H, W] in [0, 1], on the CPU; ``steps``: network evaluations.

        ``batch``: how many at a time; on CUDA the last batch is filled up, so that all run through the same kernels.
        """
        law = self.prior(prior) if isinstance(prior, str) else prior
        return self.sample_along(self.route(sampler, steps), seeds, law, batch=batch, callback=callback)

    def sample_along(
        self,
        route: Route,
        seeds: Sequence[int],
        prior: Prior,
        *,
        batch: int | None = None,
        callback: Callback | None = None,
    ) -> Tensor:
        """The same with a prior and a `route` made before: for many calls in a row."""
        chosen = check_seeds(seeds)
        keys = keys_of(chosen, START, self.device)
        return self._back(lambda rows: prior.draw(len(rows), KeyedNoise(keys[rows])), chosen, route, batch, callback)

    def reverse(
        self,
        states: Tensor,
        t: float,
        *,
        seeds: Sequence[int],
        steps: int = 50,
        sampler: str | Sampler = "auto",
        batch: int | None = None,
        callback: Callback | None = None,
    ) -> Tensor:
        """Images [B, C, H, W] in [0, 1] from ``states`` at time ``t`` ∈ (t_min, T]: to denoise, deblur, edit."""
        chosen, route = check_seeds(seeds), self.route(sampler, steps, t)
        expected = (len(chosen), self.channels, *self.size)
        if tuple(states.shape) != expected:
            raise ValueError(f"states: got {list(states.shape)}, expected {list(expected)}, one for every seed")
        if not bool(states.isfinite().all()):  # or the sampler would be blamed for them
            raise ValueError("states: they hold NaN or infinite values; expected numbers")
        return self._back(lambda rows: states[rows.to(states.device)].to(self.device), chosen, route, batch, callback)

    @torch.no_grad()
    def _back(
        self,
        begin: Callable[[Tensor], Tensor],
        seeds: tuple[int, ...],
        route: Route,
        batch: int | None,
        callback: Callback | None,
    ) -> Tensor:
        """Batch by batch; ``begin`` gives the states of some rows."""
        size = self.batch if batch is None else batch
        fill = self.device.type == "cuda" and (batch is not None or len(seeds) > size)
        keys, done = keys_of(seeds, PATH, self.device), []
        for few, rows in cut(len(seeds), size, self.device, fill=fill):
            here = tuple(seeds[i] for i in rows[:few].tolist())
            start = begin(rows).to(self.plan.dtype)
            images = run_back(self.model, start, here, keys[rows], route, callback)
            done.append(images.to("cpu", torch.float32))
        return torch.cat(done)
