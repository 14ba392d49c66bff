"""One training under a budget: it can be interrupted and continued, and keeps EMA weights during training."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisodiff.data import Dataset
from anisodiff.experiments.budget import Meter
from anisodiff.experiments.layout import TRAINED, Place, read_json
from anisodiff.experiments.study import Study
from anisodiff.io.checkpoint import find
from anisodiff.io.records import write_json
from anisodiff.models.base import Model
from anisodiff.runtime.durations import span
from anisodiff.training import Diverged, Hooks, Plan, Snapshot, Store, TrainConfig, newest, read_log, train
from anisodiff.training.model import model_tensors
from anisodiff.training.preview import fit_prior
from anisodiff.training.setup import describe, with_latents
from anisodiff.training.slim import slim
from anisodiff.training.start import load_start

LOG_STEPS, FOREVER = 20, 2**50


def paced(config: TrainConfig, study: Study) -> TrainConfig:
    """The config with the length and the intervals of a study, which do not change the trained weights."""
    log = config.log_every if "log_every" in study.pinned else LOG_STEPS * config.batch
    often = config.checkpoint_every
    if "checkpoint_every" not in study.pinned:  # with a record of the log, so that no interval is lost
        often = -(-often // log) * log
    length, every = study.settings.budget.images or FOREVER, log if study.settings.track > 1 else 0
    return config.changed({"images": length, "log_every": log, "checkpoint_every": often, "sample_every": every})


@dataclass
class _Watch:
    """Hooks of the trainer: count the time, keep weights, stop at the end of the budget."""

    place: Place
    config: TrainConfig
    study: Study
    begun: float
    enough: bool = False
    meter: Meter | None = None
    _since: int = 0

    def stop(self) -> bool:
        deadline = self.study.deadline
        if self.meter is None:
            deadline.start = deadline.now() - self.begun
            # by now the trainer has cut the log back to where it continues
            self.meter = Meter(read_log(self.place.run))
        self._since += 1
        images = self.meter.images + self._since * self.config.batch
        seconds, budget = self.meter.seconds(images), self.study.settings.budget
        stage = f"train {self.place.training}, {'images' if budget.seconds is None else 'seconds'}"
        self.study.progress(stage, int(budget.spent(images, seconds)), int(budget.amount))
        self.enough = budget.seconds is not None and budget.reached(images, seconds)
        return self.enough or deadline.over()

    def stopped(self, step: int, _: Path) -> str:
        """Why it ends at this step."""
        if self.enough:
            return f"the budget of {self.study.settings.budget} is reached at step {step}"
        return f"stopped: saving at step {step}; the same command continues it"

    def on_log(self, record: dict[str, Any]) -> None:
        assert self.meter is not None
        self.meter.add(record)
        self._since = 0

    def on_interval(self, model: Model, step: int, prior: Mapping[str, Tensor] | None) -> None:
        """Keep the EMA weights whenever another part of the budget is used up."""
        assert self.meter is not None
        images, track = step * self.config.batch, self.study.settings.track
        seconds = self.meter.seconds(images)
        for number in range(1, track):
            due = self.study.settings.budget.times(number / track).reached(images, seconds)
            if (self.place.trained.parent / f"track-{number}.json").is_file():
                continue  # measured during training, and its weights removed
            if due and newest(self.place.track(number)) is None:
                self._keep(self.place.track(number), model, step, seconds, prior)

    def _keep(
        self, folder: Path, model: Model, step: int, seconds: float, prior: Mapping[str, Tensor] | None
    ) -> None:
        about = describe(Plan.of(self.config), self.study.dataset)
        meta = {**about, "step": step, "images": step * self.config.batch, "training_seconds": seconds}
        tensors = model_tensors(model, model.network_state())
        Store(folder).save(Snapshot(step=step, meta=meta, model=tensors, state={}, prior=prior))


def train_under(config: TrainConfig, place: Place, study: Study, *, start: str | None) -> bool:
    """Train until the budget is used up, or the deadline is over; whether it is finished.

    A training that diverges is finished, too, and train.json says why.
    """
    deadline, device, dataset, say = study.deadline, study.device, study.dataset, study.say
    settings = study.settings
    if read_json(place.trained, TRAINED) is not None:
        return True
    if deadline.over(deadline.start):
        if not deadline.over():
            say(f"{place.training}: not started: the last training took {span(deadline.start)} to its first step")
        return False
    config, _ = with_latents(config, dataset, device, start=start)
    config = paced(config, study)
    watch = _Watch(place, config, study, deadline.now())
    hooks = Hooks(
        say=lambda line: say(f"{place.training}: {line}"), on_log=watch.on_log, stop=watch.stop, fit_prior=fit_prior,
        stopped=watch.stopped, on_interval=watch.on_interval if settings.track > 1 else None,
    )  # fmt: skip
    try:
        outcome = train(config, dataset, place.run, device=device, start=start, hooks=hooks, track=())
    except Diverged as error:
        write_json(place.trained, {"failed": str(error)})
        say(f"{place.training}: {error}")
        return True
    finally:
        if device.type == "cuda":
            gc.collect()  # recorded graphs hold memory that the next training needs
            torch.cuda.empty_cache()
    if not (outcome.finished or watch.enough):
        if not deadline.over():
            raise KeyboardInterrupt  # a signal: the trainer has saved
        return False
    if start is not None and settings.track:
        try:
            keep_start(config, dataset, place, start)
        except (ValueError, OSError) as error:  # the training itself is done
            say(f"{place.training}: no FID before training: {error}")
    meter = watch.meter or Meter(read_log(place.run))
    seconds = meter.seconds(outcome.images) or None  # a log of one interval has no rate
    if settings.keep_weights and newest(place.weights) is None:
        slim(place.run, place.weights)
    write_json(
        place.trained,
        {
            "images": outcome.images, "steps": outcome.step, "seconds": seconds, "loss": outcome.loss,
            "skipped": outcome.skipped, "device": machine(device), "torch": torch.__version__,
            "budget": str(settings.budget),
        },
    )  # fmt: skip
    spent = "" if seconds is None else f" in {span(seconds)} of training"
    say(f"{place.training}: {outcome.images} images{spent}")
    return True


def keep_start(config: TrainConfig, dataset: Dataset, place: Place, start: str) -> None:
    """FID before training: the weights that the run began with, under its own statistics and prior (zero-shot)."""
    saved = newest(place.run)
    if saved is None or newest(place.track(0)) is not None:
        return
    plan = Plan.of(config)
    about = describe(plan, dataset)
    begun = load_start(start, plan, about)
    if begun.about != saved.meta["start"]:
        raise ValueError(f"{start} is no longer what the run began with")
    tables = {name: value for name, value in saved.tensors("model").items() if not name.startswith("network.")}
    weights = {f"network.{name}": value for name, value in begun.tensors.items()}
    meta = {**about, "step": 0, "images": 0, "training_seconds": 0.0, "start": saved.meta["start"]}
    prior = saved.tensors("prior") if saved.has("prior") else None
    Store(place.track(0)).save(Snapshot(step=0, meta=meta, model={**weights, **tables}, state={}, prior=prior))


def machine(device: torch.device) -> str:
    """The name of the GPU, or the kind of device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def given_training(run: Path) -> dict[str, Any]:
    """The same facts of a given checkpoint; its time is that of its log, where there is one."""
    saved = find(run)
    images = int(saved.meta["images"])
    meter = Meter(record for record in read_log(run) if (record.get("images") or 0) <= images)
    return {"images": images, "steps": saved.step, "seconds": meter.seconds(images) or None, "given": True}
