"""One training step: times and noise, the gradient of the mean loss over the global batch, the update.

Everything random about sample j of batch k is a function of (seed, k, j): the result depends neither on how the batch
is cut, nor on the number of processes, nor on whether the run was stopped before.

Nothing here waits for the device: whether a step was good is a tensor that the update is multiplied with. Nothing
that is drawn depends on the weights: on a GPU a batch is prepared while the step before is still at work.
"""

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from anisodiff.models.base import Model
from anisodiff.models.time_density import draw_times, places_among
from anisodiff.noise import KeyedNoise, combine
from anisodiff.processes import TrainingPair
from anisodiff.runtime.cuda_graphs import Replay
from anisodiff.runtime.distributed import Distributed
from anisodiff.tensors import check_shapes, highest_precision, to_device_async, to_highest_precision
from anisodiff.training.adam import check_moments, load_moments, moments
from anisodiff.training.config import TrainConfig
from anisodiff.training.ema import EMA, profile
from anisodiff.training.hooks import Diverged
from anisodiff.training.model import Execution, Plan, stored_buffers

BINS = 8
"""Bins of the noise level, in the log."""
HEEDS_FOUND_INF = ("cpu", "cuda")
"""Devices whose fused Adam skips a step where a tensor says so."""
BAD_IN_A_ROW = 5
"""A run ends after this many steps in a row without a finite loss and gradient."""
# streams of keys: a dropout mask must not repeat the words the noise is made of
_NOISE, _DROPOUT, _LABELS = 1, 2, 3


@dataclass(frozen=True)
class TimeTable:
    """The density of t as a table, with the noise level at each entry; all on the CPU."""

    times: Tensor
    cumulative: Tensor
    level: Tensor
    edges: Tensor
    """Seven levels between eight bins: mean ± std·(0, ½, 1, 3/2)."""

    @classmethod
    def of(cls, model: Model, config: TrainConfig) -> "TimeTable":
        mean, std = config.level_mean, config.level_std
        times, cumulative = model.time_density(mean=mean, std=std, t_min=config.t_min)
        edges = mean + std * torch.linspace(-1.5, 1.5, BINS - 1, dtype=torch.float64)
        return cls(times, cumulative, model.level_at(times), edges)

    def level_at(self, t: Tensor) -> Tensor:
        return self.level[places_among(self.times, t).clamp(max=len(self.times) - 1)]

    def bin_of(self, t: Tensor) -> Tensor:
        return places_among(self.edges, self.level_at(t))


@dataclass(frozen=True)
class BatchKeys:
    """Time and random keys of every sample of this process, all [B]; on the device but for ``t_host``."""

    t_host: Tensor
    t: Tensor
    bins: Tensor
    noise: Tensor
    dropout: Tensor
    label_dropped: Tensor | None = None
    """Whether the network does not see the label (classifier-free guidance); None in a run without classes."""


@dataclass(frozen=True)
class StepInputs:
    """Everything that step ``k`` needs besides the weights."""

    k: int
    batch: BatchKeys
    parts: tuple[tuple[Tensor, ...], ...]
    """Arguments of `Stepper.passes`, for every part of the batch."""
    ready: torch.cuda.Event | None
    """Passed when the values are computed; None on a CPU, where they are."""

    def claim(self) -> None:
        """Make the current stream, not the host, wait for the values; their memory is kept until it has used them."""
        if self.ready is None:
            return
        stream = torch.cuda.current_stream(self.batch.t.device)
        stream.wait_event(self.ready)
        for value in (self.batch.t, self.batch.bins, *(x for part in self.parts for x in part)):
            value.record_stream(stream)


@dataclass
class LogSums:
    """Sums on the device between two lines of the log."""

    loss: Tensor
    """[BINS], over this process's samples."""
    count: Tensor
    """[BINS], samples."""
    norm: Tensor
    """Sum of the gradient norms of good steps, and their number."""
    skipped: Tensor
    """Bad steps so far; bad steps in a row now; most in a row since the last check."""
    where: Tensor
    """The last bad step, and the smallest and largest t of its non-finite losses: (∞, −∞) if all are finite."""

    @classmethod
    def zeros(cls, device: torch.device) -> "LogSums":
        return cls(*(torch.zeros(n, dtype=highest_precision(device), device=device) for n in (BINS, BINS, 2, 3, 3)))


class Stepper:
    """The state of training (weights, EMA, Adam's moments) and the step that changes it."""

    def __init__(
        self,
        plan: Plan,
        model: Model,
        network: nn.Module,
        execution: Execution,
        distributed: Distributed,
        say: Callable[[str], None] = warnings.warn,
    ) -> None:
        config = plan.config
        self.config, self.process, self.model, self.network = config, plan.process, model, network
        self.execution, self.distributed = execution, distributed
        self.device = distributed.device
        self.times = TimeTable.of(model, config)
        self.sharded = config.shard and distributed.world > 1
        self.parameters = dict(network.named_parameters())
        self.weights: Mapping[str, Tensor] = self.parameters
        if self.sharded:
            self.weights = {name: self._local(p).detach() for name, p in self.parameters.items()}
        self.ema_weights = EMA(self.weights, tuple(profile(text) for text in config.ema))
        # fused: it skips a step where the tensor `found_inf` is 1, without asking the host
        self.adam = torch.optim.Adam(
            list(self.weights.values()), lr=config.lr, betas=config.betas, eps=config.eps, fused=True
        )
        self.sums = LogSums.zeros(self.device)
        self.pair_fields: tuple[str, ...] = ()
        """Names of the fields of a training pair that are there: the same in every step."""
        cuda = self.device.type == "cuda"
        self.side = torch.cuda.Stream(self.device) if cuda else None  # type: ignore[no-untyped-call]
        self._started: torch.cuda.Event | None = None
        # recorded once and replayed, where one pass of one process computes the whole gradient
        alone = cuda and config.accumulation == 1 and distributed.world == 1
        self.replay = Replay(self.passes, lambda: self.adam.zero_grad(set_to_none=True), say) if alone else None

    def lr(self, k: int) -> float:
        """Learning rate of step k: a line up to ``lr`` over the warm-up, then constant."""
        rise = (k + 1) * self.config.batch / self.config.warm_up if self.config.warm_up else 1.0
        return self.config.lr * min(1.0, rise)

    def draw(self, k: int) -> BatchKeys:
        """Times and keys of this process's share of batch k."""
        share = self.config.batch // self.distributed.world
        places = torch.arange(self.distributed.rank * share, (self.distributed.rank + 1) * share)
        keys = combine(self.config.seed, k, places)
        noise, dropout = combine(keys, _NOISE), combine(keys, _DROPOUT)
        t = self.process.snap_to_grid(
            draw_times(self.times.times, self.times.cumulative, KeyedNoise(noise).uniform())
        )
        values = [t, self.times.bin_of(t), noise, dropout]
        if self.config.classes:
            values.append(KeyedNoise(combine(keys, _LABELS)).uniform() < self.config.label_dropout)
        return BatchKeys(t, *(to_device_async(x, self.device) for x in values))

    def simulate(self, images: Tensor, batch: BatchKeys, rows: slice) -> TrainingPair:
        """States and targets of some samples, from this process's images."""
        noise = KeyedNoise(batch.noise[rows], skip=1)  # the first draw was the time's
        with torch.no_grad():
            return self.process.training_pair(images[rows], batch.t_host[rows], noise)

    def ahead(self) -> AbstractContextManager[object]:
        """Inside, a GPU works beside the step launched last: for `prepare`, and for making the images it is given.

        What was launched before that step is waited for, and nothing that came after. The first batch comes in its
        turn: what is compiled and made once then has no neighbor. (Constants made later are copied from the host,
        which waits for that: any stream finds them whole.) On a CPU nothing is different inside.
        """
        if self.side is None or self._started is None:
            return nullcontext()
        self.side.wait_event(self._started)
        return torch.cuda.stream(self.side)

    def prepare(self, k: int, images: Tensor, labels: Tensor | None = None) -> StepInputs:
        """Draw what step k needs from this process's images of batch k; on the stream that is current.

        ``labels``: their classes, int64 [B], in a run that learns classes.
        """
        batch, parts, ready = self.draw(k), [], None
        if batch.label_dropped is not None:
            assert labels is not None
            labels = torch.where(batch.label_dropped, len(self.config.classes), labels)
        for part in torch.tensor_split(torch.arange(len(batch.t)), self.config.accumulation):
            rows = slice(int(part[0]), int(part[-1]) + 1)
            pair = self.simulate(images, batch, rows)
            if labels is not None:
                pair = replace(pair, labels=labels[rows])
            there = {f.name: getattr(pair, f.name) for f in fields(pair) if getattr(pair, f.name) is not None}
            self.pair_fields = tuple(there)
            parts.append((batch.t[rows], batch.dropout[rows], *there.values()))
        if self.device.type == "cuda":
            stream = torch.cuda.current_stream(self.device)
            images.record_stream(stream)  # they may come from another
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record(stream)
        return StepInputs(k, batch, tuple(parts), ready)

    def step(self, k: int, images: Tensor | StepInputs, labels: Tensor | None = None) -> None:
        """Step number k = 0, 1, … with this process's share of batch k, or with what was prepared of it."""
        prepared = images if isinstance(images, StepInputs) else self.prepare(k, images, labels)
        assert prepared.k == k, f"step {k} was given what was prepared for step {prepared.k}"
        if self.device.type == "cuda":
            self._started = self._started or torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._started.record(torch.cuda.current_stream(self.device))
        prepared.claim()
        if self.replay is None:
            self.network.zero_grad(set_to_none=True)
        seen = []
        for number, values in enumerate(prepared.parts):
            with self.distributed.unsynced(self.execution.run, number < len(prepared.parts) - 1):
                seen.append(self.passes(*values) if self.replay is None else self.replay(*values))
        self._update(k, to_highest_precision(torch.cat(seen)), prepared.batch)

    def passes(self, t: Tensor, dropout: Tensor, *pair: Tensor) -> Tensor:
        """Losses of some samples [B]; adds their share to the gradient of the batch's mean.

        ``pair``: the fields of the training pair that there are, as `prepare` has found them.
        """
        losses = self.model.loss(TrainingPair(**dict(zip(self.pair_fields, pair, strict=True))), t, dropout)
        torch.autograd.backward(losses.sum() / (self.config.batch // self.distributed.world))
        return losses.detach()

    def _update(self, k: int, losses: Tensor, batch: BatchKeys) -> None:
        weights = list(self.weights.values())
        clip = self.config.clip or float("inf")
        if self.sharded:
            for name, p in self.parameters.items():
                self.weights[name].grad = None if p.grad is None else self._local(p.grad)
            own = torch.nn.utils.get_total_norm([w.grad for w in weights if w.grad is not None and w.numel()])
            norm = self.distributed.total(own.square()).sqrt()
            torch.nn.utils.clip_grads_with_norm_(weights, clip, norm)
        else:
            norm = torch.nn.utils.clip_grad_norm_(weights, clip)
        bad = self.distributed.largest((~(norm.isfinite() & losses.isfinite().all())).float())
        for group in self.adam.param_groups:
            group["lr"] = self.lr(k)
        if self.device.type in HEEDS_FOUND_INF:
            self.adam.found_inf = bad  # type: ignore[attr-defined]
            self.adam.step()
        elif not bad:  # the host asks, and waits for the device
            self.adam.step()
        self.ema_weights.update(k + 1, 1 - bad)
        self._count(k, losses, to_highest_precision(norm), batch, to_highest_precision(bad))

    def _count(self, k: int, losses: Tensor, norm: Tensor, batch: BatchKeys, bad: Tensor) -> None:
        sums, good = self.sums, bad == 0
        member = to_highest_precision(torch.nn.functional.one_hot(batch.bins, BINS))
        sums.loss += torch.where(good, losses.nan_to_num() @ member, 0.0)
        sums.count += torch.where(good, member.sum(0), 0.0)
        sums.norm += torch.where(good, torch.stack([norm, torch.ones_like(norm)]), 0.0)
        row = (sums.skipped[1] + 1) * bad
        sums.skipped = torch.stack([sums.skipped[0] + bad, row, torch.maximum(sums.skipped[2], row)])
        wrong = ~losses.isfinite()
        low, high = torch.where(wrong, batch.t, torch.inf).min(), torch.where(wrong, batch.t, -torch.inf).max()
        found = torch.stack([torch.full_like(low, k + 1), low, high])
        sums.where = torch.where(good, sums.where, found)

    def check(self) -> None:
        """End the run after too many bad steps in a row. Here the host waits for the device."""
        bad = int(self.sums.skipped[2])
        if bad < BAD_IN_A_ROW:
            return
        step, low, high = self.sums.where
        # over all processes, which all come here: the bad loss may have been another one's
        low, high = -self.distributed.largest(-low), self.distributed.largest(high.clone())
        what, where = "gradient (losses are finite)", ""
        if low <= high:
            first, last = self.times.level_at(torch.stack([low, high]).cpu()).tolist()
            what = "loss"
            where = f" for t from {low:.4g} to {high:.4g}, noise level from {first:.3g} to {last:.3g}"
        raise Diverged(
            f"non-finite {what} in {bad} steps in a row, last in step {int(step)}{where}; these steps were skipped, "
            "the last checkpoint is intact; try a smaller lr, or precision fp32, in a new run --from this one"
        )

    @staticmethod
    def _local(x: Tensor) -> Tensor:
        """The part of a sharded tensor that this process holds, or the tensor."""
        found: Tensor = getattr(x, "to_local", lambda: x)()
        return found

    def whole(self, tensors: Mapping[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
        """Tensors named after weights, gathered on the CPU where they are sharded: all processes have to ask."""
        if not self.sharded:
            return dict(tensors)
        from torch.distributed.tensor import DTensor

        found = {}
        for name, value in tensors.items():
            like: Any = self.parameters[name.removeprefix(prefix)]
            made = DTensor.from_local(
                value.detach(), like.device_mesh, like.placements, run_check=False, shape=like.shape,
                stride=like.stride(),
            )  # fmt: skip
            found[name] = made.full_tensor().cpu()
        return found

    def averages(self, number: int) -> dict[str, Tensor]:
        """An EMA of the weights, whole."""
        return self.whole(self.ema_weights.of(number))

    def state(self) -> dict[str, dict[str, Tensor]]:
        """What is needed to resume, besides the first EMA: files of tensors, each whole."""
        found, adam = moments(self.adam, self.weights), dict[str, Tensor]()
        for part in ("exp_avg.", "exp_avg_sq.", "step."):
            group = {key: value for key, value in found.items() if key.startswith(part)}
            adam |= group if part == "step." else self.whole(group, part)
        others = {f"ema-{i}": self.averages(i) for i in range(1, len(self.config.ema))}
        own = {"weights": self.whole(self.weights), "optimizer": adam, "counters": {"skipped": self.sums.skipped}}
        return own | others

    @torch.no_grad()
    def begin(self, weights: Mapping[str, Tensor]) -> None:
        """Start from the network's weights and frozen buffers: also the EMA; Adam's moments start at 0."""
        own = self._own(weights)
        for name, p in self.weights.items():
            p.copy_(own[name])
        for name, buffer in stored_buffers(self.network).items():
            buffer.copy_(weights[name])
        for i in range(len(self.config.ema)):
            self.ema_weights.load(i, own)

    def _own(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of whole tensors what this process holds."""
        return {name: self.distributed.part_of(x) if self.sharded else x for name, x in tensors.items()}

    def _check(self, model: Mapping[str, Tensor], state: Mapping[str, Mapping[str, Tensor]], where: object) -> None:
        """Refuse other names and shapes: `copy_` would spread one value over a whole tensor.

        Moments of a weight may be missing altogether, as those of one that has had no gradient are. Buffers may stand
        among the weights: compact states have them there.
        """
        buffers = stored_buffers(self.network)
        like = self.parameters | buffers
        kept = {name: x for name, x in model.items() if name in like}
        check_shapes(f"{where}: model.safetensors is damaged", kept, like)
        for name, found in state.items():
            what = f"{where}: state/{name}.safetensors is damaged"
            if name == "optimizer":
                check_moments(what, found, self.parameters)
            elif name == "counters":
                check_shapes(what, found, {"skipped": self.sums.skipped})
                if not bool(found["skipped"].isfinite().all()):
                    raise ValueError(f"{what}: skipped is not finite")
            else:
                check_shapes(what, {key: x for key, x in found.items() if key not in buffers}, self.parameters)

    @torch.no_grad()
    def load(self, model: Mapping[str, Tensor], state: Mapping[str, Mapping[str, Tensor]], where: object) -> None:
        """Restore a state, bit by bit, from the checkpoint ``where``."""
        averaged = {name.removeprefix("network."): value for name, value in model.items()}
        self._check(averaged, state, where)
        weights = self._own(state["weights"])
        for name, p in self.weights.items():
            p.copy_(weights[name])
        load_moments(self.adam, self.weights, self._own(state["optimizer"]))
        self.ema_weights.load(0, self._own(averaged))
        for name, buffer in stored_buffers(self.network).items():  # NCSN++'s are frozen, of another seed after --from
            buffer.copy_(averaged[name])
        for i in range(1, len(self.config.ema)):
            self.ema_weights.load(i, self._own(state[f"ema-{i}"]))
        self.sums.skipped.copy_(state["counters"]["skipped"])
