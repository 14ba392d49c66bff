"""The run: from a config and a dataset to a folder with checkpoints and a log; it can be stopped and resumed."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from anisodiff.data import Dataset, Loader, verify_images
from anisodiff.data.latents import Latents, verify_latents
from anisodiff.io.checkpoint import Checkpoint, NotFinite, Snapshot, Store, alone, described, folder_of, read
from anisodiff.models.base import Model
from anisodiff.notation import counted
from anisodiff.runtime.distributed import Distributed
from anisodiff.training import trackers
from anisodiff.training.config import TrainConfig
from anisodiff.training.hooks import (
    Diverged,
    Hooks,
    Log,
    OnInterval,
    StopRequest,
    TrainingOutcome,
    on_signals,
    read_log,
)
from anisodiff.training.model import (
    Plan,
    assemble,
    calibration_images,
    model_tensors,
    network_tensors,
    statistics_from,
)
from anisodiff.training.readout import Readout
from anisodiff.training.run_folder import update_run
from anisodiff.training.setup import (
    check_data,
    describe,
    memory_in_one_line,
    notes,
    other_threads,
    prepare_device,
    refuse_other,
    with_classes,
    with_latents,
)  # fmt: skip
from anisodiff.training.start import load_start
from anisodiff.training.step import Stepper
from anisodiff.training.trackers import Trackers


def train(
    config: TrainConfig,
    dataset: Dataset,
    output: str | Path,
    *,
    device: torch.device | str = "cpu",
    resume: bool = True,
    start: str | Path | None = None,
    hooks: Hooks = Hooks(),
    track: Sequence[str] | None = None,
) -> TrainingOutcome:
    """Train until ``config.images`` are seen; with ``resume`` from the newest complete checkpoint below ``output``.

    A new run starts from the EMA weights of ``start``, if given: a run, a checkpoint, or a file with a published
    network (`parameterization` ve). Adam's moments start at 0. Before the first step the run is described in
    config.yaml, see `run_folder`. ``track``: names of `trackers`; None: TensorBoard, where it is installed.
    """
    begin = time.perf_counter()
    config = with_classes(config, dataset)
    check_data(config, dataset)
    names = None if track is None else trackers.check(track)
    distributed = Distributed(torch.device(device))
    if not distributed.leads:
        hooks, names = Hooks(), ()
    told = partial(hooks.progress, "encoding the images")
    config, latents = with_latents(config, dataset, distributed.device, told, start=start, say=hooks.say)
    plan = Plan.of(config, distributed.device)
    config.check_batch(distributed.world)
    done = (described(output) or {"images": 0})["images"]
    said = [*prepare_device(config, distributed.device), *notes(config, len(dataset), done=done), *dataset.blurred()]
    if config.shard and distributed.world > 1 and hooks.on_interval is not None:
        said.append("shard=true: no grids of samples while training; sample the run's checkpoints instead")
        hooks = replace(hooks, on_interval=None)
    if names is None:
        names = trackers.installed(hooks.say)
    for line in said:
        hooks.say(line)
    with ExitStack() as held, memory_in_one_line(config, distributed.world):
        distributed.agree(lambda: held.enter_context(alone(Path(output))))
        run = _Run(plan, dataset, latents, Path(output), distributed, hooks)
        run.readout.began = begin if hooks.began is None else hooks.began
        run.set_up(resume, start)
        return run.go(names)


class _Run:
    """One process's part of a run."""

    def __init__(
        self, plan: Plan, dataset: Dataset, latents: Latents | None, run: Path, distributed: Distributed, hooks: Hooks
    ) -> None:
        self.plan, self.config, self.dataset, self.latents, self.run = plan, plan.config, dataset, latents, run
        self.distributed = distributed
        self.hooks, self.store = hooks, Store(run, observe=hooks.observe)
        self.about = describe(plan, dataset)
        self.prior: Mapping[str, Tensor] | None = None
        self.done = 0
        """Steps."""
        self.log: Log | None = None
        self.loss: float | None = None
        self.logged, self.since, self.idle = 0, 0.0, 0.0
        """Step and clock at the last line of the log, and seconds since then that were not spent on training."""
        self.readout = Readout(self.config.batch)
        self.has_grid, self.patience = False, 1
        """Whether there is a grid of samples; how many times ``hooks.first_after`` the first one waits."""
        self.firsts: dict[str, float] = {}
        """Seconds to the first step and the first grid, until they are logged."""
        self.shown: tuple[Model, nn.Module] | None = None

    def _verify_data(self) -> None:
        """Read images and latents in full once per change, after all that can be refused without it."""
        checking = partial(self.hooks.progress, "checking the images")
        self.distributed.agree(lambda: verify_images(self.dataset, checking))
        if self.latents is not None:
            cached, checking = self.latents, partial(self.hooks.progress, "checking the latents")
            self.distributed.agree(lambda: verify_latents(cached, checking))

    def set_up(self, resume: bool, start: str | Path | None) -> None:
        """Build model and stepper: from a checkpoint of the run, from ``start``, or anew."""
        saved, device = self._saved(resume), self.distributed.device
        begun = None if saved is not None or start is None else load_start(start, self.plan, self.about)
        self._verify_data()
        if saved is None:
            self._update_run(start=start)
        if saved is not None:
            statistics = statistics_from(saved, self.config.state_shape).to(device)
            self.prior = saved.tensors("prior") if saved.has("prior") else None
            self.about["start"] = saved.meta.get("start")
        elif begun is not None and begun.statistics is not None:
            statistics, self.prior = begun.statistics.to(device), begun.prior
        else:
            images = calibration_images(self.config, self.dataset, device, self.latents)
            count = min(len(images), len(self.dataset))
            again = f", {len(images)} draws in all" if count < len(images) else ""
            self.hooks.progress("calibrating", 0, None)
            self.hooks.say(f"measuring the preconditioning on {counted(count, 'image')}{again}")
            statistics = self.plan.statistics(images, partial(self.hooks.progress, "calibrating"))
            if self.hooks.fit_prior is not None:
                self.prior = self.hooks.fit_prior(self.plan.process, images)
        self.network, execution, self.model = assemble(self.plan, statistics, self.distributed)
        self.stepper = Stepper(self.plan, self.model, self.network, execution, self.distributed, self.hooks.say)
        if begun is not None:
            self.stepper.begin(begun.tensors)
            self.about["start"] = begun.about
            self.hooks.say(begun.words)
        if saved is not None:
            names = ("weights", "optimizer", "counters", *(f"ema-{i}" for i in range(1, len(self.config.ema))))
            state = {name: saved.tensors(f"state/{name}") for name in names}
            self.stepper.load(saved.tensors("model"), state, saved.path)
            self.done = saved.step
            if saved.meta["images"] <= self.config.images_seen:  # else nothing is trained
                self._update_run(start=start, begun=True)

    def _update_run(self, *, start: str | Path | None, begun: bool = False) -> None:
        """Write what the run is now; of a run that goes on, after all that could be refused."""
        self.distributed.agree(lambda: update_run(self.run, self.config, self.dataset.path, start=start, begun=begun))

    def _saved(self, resume: bool) -> Checkpoint | None:
        """The checkpoint to resume from, the same in all processes; a run of another config is refused."""

        def choose() -> str | None:
            read_log(self.run)  # refused before anything is written
            saved = self.store.newest(self.hooks.say)
            if saved is None:
                if any(folder_of(self.run).glob("step-*")):
                    raise ValueError(f"no checkpoint of {self.run} is complete; choose another folder to start again")
                return None
            if not saved.has("state/weights"):
                raise ValueError(f"{saved.path} holds only weights; start a new run from them with --from")
            if not resume:
                raise ValueError(
                    f"{self.run} already holds a run ({saved.path.name}); continue it with --resume auto, "
                    "or choose another folder"
                )
            refuse_other(self.run, saved.meta, self.about)
            seen, wanted = saved.meta["images"], self.config.images
            if seen > self.config.images_seen:
                self.hooks.say(f"nothing to train: {counted(seen, 'image')} seen already, more than {wanted}")
            elif seen < self.config.images_seen:
                self.hooks.say(f"continuing from {saved.path.name}: {counted(seen, 'image')} seen, of {wanted}")
            for note in other_threads(saved.meta, self.about):
                self.hooks.say(note)
            return str(saved.path)

        path = self.distributed.agree(choose)
        return None if path is None else read(path)

    def go(self, track: Sequence[str]) -> TrainingOutcome:
        """Train to the end, or until asked to stop."""
        with ExitStack() as held:
            if self.distributed.leads:
                watching = Trackers(track, self.run, self.done, self.config.to_dict(), self.hooks.say)
                held.callback(watching.close)
                self.log = Log(self.run, self.done, watching)
            loader = Loader(
                self.dataset, latents=self.latents, batch=self.config.batch, seed=self.config.seed,
                flip=self.config.flip, rank=self.distributed.rank, world=self.distributed.world,
                device=self.distributed.device,
            )  # fmt: skip
            batches = loader.iterate(self.done)
            held.callback(getattr(batches, "close", lambda: None))  # ends the threads that read ahead
            stop = held.enter_context(on_signals())
            return self._loop(self._labeled(batches, loader), stop)

    def _labeled(
        self, batches: Iterator[tuple[Tensor, Tensor]], loader: Loader
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Images with their labels, where classes are learned."""
        for images, index in batches:
            yield images.to(self.plan.dtype), loader.labels(index) if self.config.classes else None

    def _loop(self, batches: Iterator[tuple[Tensor, Tensor | None]], stop: StopRequest) -> TrainingOutcome:
        config, steps, began = self.config, self.config.steps, self.done
        self.since, self.logged, stopped = time.perf_counter(), self.done, False
        if self.distributed.device.type == "cuda" and self.done < steps:
            self.hooks.progress("compiling", 0, None)  # the kernels of the first step
            if config.compile:
                self.hooks.say("compiling the network: the first step takes longer than the others")
        else:
            self.hooks.progress("training", self.done * config.batch, None)
        while self.done < steps and not stopped:
            with self.stepper.ahead():  # the device is still at work on the step before
                prepared = self.stepper.prepare(self.done, *next(batches))
            self.stepper.step(self.done, prepared)
            self.done += 1
            stop.at_once = False
            if self.hooks.stop():  # never reset: a signal may come meanwhile
                stop.asked = True
            last, stopped = self.done == steps, stop.now(self.done, self.distributed)
            note = self._read()
            if self._due(config.log_every) or last or stopped:
                self._report()
            elif self.distributed.device.type == "cpu":
                self.stepper.check()
            self.hooks.progress("training", min(self.done * config.batch, config.images), config.images, note)
            if self._due(config.checkpoint_every) and not last and not stopped:
                self._save(final=False)
            if self.hooks.on_interval is not None and self._grid_due():
                self._show(self.hooks.on_interval)
        if stopped and self.done < steps:
            self.hooks.say(self.hooks.stopped(self.done, self.run))
        return TrainingOutcome(
            step=self.done, images=self.done * config.batch, finished=self.done >= steps,
            skipped=int(self.stepper.sums.skipped[0]), loss=self.loss, checkpoint=self._save(final=True), began=began,
        )  # fmt: skip

    def _read(self) -> str:
        """Loss and rate for people, in the process that writes."""
        if self.log is None:
            return ""
        first, note = self.readout.first_step is None, self.readout.note(self.done, self.stepper.sums)
        if first:
            self.firsts["first_step_seconds"] = self.readout.clock() - self.readout.began
        return note

    def _due(self, interval: int) -> bool:
        """Whether the last step passed a multiple of ``interval`` images."""
        seen, batch = self.done * self.config.batch, self.config.batch
        return interval > 0 and seen // interval > (seen - batch) // interval

    def _grid_due(self) -> bool:
        """Every ``sample_every`` images, and a first time by the clock, which changes nothing that is trained."""
        every, after = self.config.sample_every, self.hooks.first_after
        waits = every > 0 and not self.has_grid and after is not None
        return self._due(every) or (waits and self.readout.trained >= (after or 0.0) * self.patience)

    def _show(self, on_interval: OnInterval) -> None:
        """Sample grids; where disk or memory is full, training continues without them."""
        with self._aside():
            self.patience *= 2  # a grid that would take too long now is tried again later
            try:
                made = on_interval(self.averaged(), self.done, self.prior)
                if isinstance(made, Tensor) and self.log is not None:
                    self.log.trackers.images(made, self.done)
                if made is not False and not self.has_grid:
                    self.has_grid = True
                    self.firsts["first_grid_seconds"] = self.readout.clock() - self.readout.began
            except (OSError, ValueError, MemoryError, torch.OutOfMemoryError) as error:
                self.hooks.say(f"no samples at step {self.done}: {' '.join(str(error).split())}; training continues")

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Time that does not count as training."""
        begin = time.perf_counter()
        yield
        self.idle += time.perf_counter() - begin
        self.readout.paused += time.perf_counter() - begin

    def _report(self) -> None:
        """A line of the log; here the host waits for the device."""
        self.stepper.check()
        sums = self.stepper.sums
        loss, count = (self.distributed.total(x.clone()).tolist() for x in (sums.loss, sums.count))
        norm = sums.norm.tolist()
        elapsed = time.perf_counter() - self.since - self.idle
        self.loss = sum(loss) / sum(count) if sum(count) else None
        record = {
            "step": self.done,
            "images": self.done * self.config.batch,
            "loss": self.loss,
            "loss_by_level": [a / b if b else None for a, b in zip(loss, count)],
            "level_edges": self.stepper.times.edges.tolist(),
            "images_per_second": (self.done - self.logged) * self.config.batch / max(elapsed, 1e-9),
            "lr": self.stepper.lr(self.done - 1),
            "grad_norm": norm[0] / norm[1] if norm[1] else None,
            "skipped": int(sums.skipped[0]),
            **self.firsts,
        }
        self.firsts = {}
        for summed in (sums.loss, sums.count, sums.norm, sums.skipped[2:]):
            summed.zero_()
        self.since, self.idle, self.logged = time.perf_counter(), 0.0, self.done
        if self.log is not None:
            self.log.write(record)
            self.hooks.on_log(record)

    def averaged(self) -> Model:
        """The model with the first EMA of the weights; the same object every time."""
        if self.shown is None:
            network = self.plan.build(self.distributed.device).requires_grad_(False)
            self.shown = self.plan.model(network, self.model.statistics), network
        self.shown[1].load_state_dict(network_tensors(self.network, self.stepper.ema_weights.of(0)))
        return self.shown[0]

    def _save(self, *, final: bool) -> Path | None:
        """A checkpoint, by rank 0. Where the disk fails, training continues and tries again at the next interval."""
        if not self.distributed.leads and not self.stepper.sharded:
            return None
        # all processes have a part of a sharded state
        meta = {**self.about, "step": self.done, "images": self.done * self.config.batch}
        model = model_tensors(self.model, network_tensors(self.network, self.stepper.averages(0)))
        snapshot = Snapshot(step=self.done, meta=meta, prior=self.prior, state=self.stepper.state(), model=model)
        if not self.distributed.leads:
            return None
        last_good = max(self.store.good, default="none yet")
        with self._aside():
            try:
                return self.store.save(snapshot)
            except NotFinite as error:
                raise Diverged(
                    f"weights are not finite at step {self.done} ({error}): not written; last good: {last_good}; "
                    "try a smaller lr, or precision fp32, in a new run"
                ) from None
            except OSError as error:
                why = error.strerror or error
                line = f"cannot write a checkpoint at step {self.done}: {why}; last good: {last_good}"
                if final:
                    raise OSError(error.errno, line) from None
                self.hooks.say(f"{line}; training continues and tries again at the next interval")
                return None
