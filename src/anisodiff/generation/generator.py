"""A checkpoint that generates images:

    u_T ~ prior;    u_T → u_{t_min} by a sampler;    x = E[x_0 | u_{t_min}]

Every sample has a seed. Its terminal state and its noise are functions of that seed alone: not of the batch, the
device, or the number of processes. Only rounding differs: kernels may sum in another order for another batch size.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import SupportsIndex, Unpack

import torch
from torch import Tensor

from anisodiff.generation.classes import Classes
from anisodiff.generation.config import SamplingConfig, SamplingKeys
from anisodiff.generation.images import Images
from anisodiff.generation.inversion import flow_sampler, invert_flow, slerp
from anisodiff.generation.loaded_model import CheckpointOrigin
from anisodiff.generation.priors import PriorImages
from anisodiff.generation.reverse import (
    PATH,
    START,
    Callback,
    ReverseProcess,
    SamplingStep,
    Seeds,
    batches,
    check_batch,
    check_seeds,
    counting,
    keys_of,
    seeds_of,
)  # fmt: skip
from anisodiff.generation.sharing import Shareable
from anisodiff.io import hub
from anisodiff.io.checkpoint import Checkpoint, find
from anisodiff.models.guidance import Guidance
from anisodiff.networks import own
from anisodiff.noise import KeyedNoise
from anisodiff.notation import counted, whole
from anisodiff.pretrained import shipped
from anisodiff.priors import GaussianPrior, Prior
from anisodiff.runtime.devices import pick_device
from anisodiff.runtime.progress import bar
from anisodiff.samplers import Sampler, SampleResult
from anisodiff.tensors import highest_precision
from anisodiff.training.hooks import TrainingOutcome
from anisodiff.training.model import Trained, load_model
from anisodiff.training.run_folder import images_of


class Generator(Shareable):
    """Samples from a checkpoint; returned by `anisodiff.load` and `anisodiff.train`."""

    outcome: TrainingOutcome | None = None
    """How the run ended that `anisodiff.train` has made or continued."""

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

    def sample(
        self,
        n: int,
        *,
        seed: int | torch.Generator = 0,
        steps: int = 50,
        sampler: str | Sampler = "auto",
        prior: str | Prior = "auto",
        classes: Classes | None = None,
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
        return self.sample_seeds(seeds_of(seed, whole(n, "n", 1)), config, callback=callback, progress=progress)

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
        config, checked = replace(config, **keys), check_seeds(seeds)
        with bar(f"{counted(len(checked), 'image')}, network evaluations", progress) as tick:
            prior = self.prior(config.prior) if isinstance(config.prior, str) else config.prior
            reverse = self.reverse_process(config)
            total = len(checked) * reverse.nfe
            tick(0, total)
            count = counting(tick, reverse.nfe, total)

            def watch(step: SamplingStep) -> None:
                count(step)
                if callback is not None:
                    callback(step)

            result = self.sample_with(
                reverse, checked, prior, condition=condition, batch=config.batch, callback=watch
            )
            return result.images.as_subclass(Images)

    def sample_with(
        self, reverse: ReverseProcess, seeds: Sequence[int], prior: Prior, *, condition: Tensor | None = None,
        batch: int | None = None, callback: Callback | None = None,
    ) -> SampleResult:  # fmt: skip
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
        check_batch("states", states, (len(checked), *self.state_shape))
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
        check_batch("images", images, tuple(images.shape), unit=True)
        self.check_condition(None, len(images))
        flow = flow_sampler(self.plan.provided) if sampler == "auto" else sampler
        reverse = self.reverse_process(t=self.process.T, steps=steps, sampler=flow)
        parts = torch.split(images.as_subclass(Tensor), self.batch if batch is None else batch)
        states = [
            invert_flow(
                self.model, reverse.sampler, self.encode(part.to(self.device, self.plan.dtype)), reverse.times.flip(0)
            )
            for part in parts
        ]
        return torch.cat([part.to("cpu", torch.float32) for part in states])

    def interpolate(
        self, first: Tensor, second: Tensor, count: int = 8, *, steps: int = 50, batch: int | None = None
    ) -> Images:
        """``count`` images [count, C, H, W] from the image ``first`` [C, H, W] to ``second``, both included.

        Both are inverted and interpolated spherically, in whitened coordinates of the Gaussian prior. ``steps``: NFE
        of the inversion, and of each image.
        """
        count = whole(count, "count", 2)  # both ends are among them
        if not (isinstance(first, Tensor) and isinstance(second, Tensor)):
            raise ValueError("first, second: expected two images, tensors [C, H, W]; model.sample makes some")
        prior, flow = self.prior("gaussian"), flow_sampler(self.plan.provided)
        assert isinstance(prior, GaussianPrior)
        ends = self.invert(torch.stack([first, second]), steps=steps, batch=batch).to(self.device)
        places = torch.linspace(0, 1, count, dtype=highest_precision(self.device), device=self.device)
        start, end = prior.whitened(ends)
        path = slerp(start, end, places)
        states = prior.colored(path.to(prior.mean.dtype))
        return self.reverse(states, self.process.T, seeds=0, steps=steps, sampler=flow, batch=batch)

    @torch.no_grad()
    def _run(
        self, start: Callable[[Tensor], Tensor], seeds: tuple[int, ...], reverse: ReverseProcess, batch: int | None,
        callback: Callback | None, condition: Tensor | None,
    ) -> SampleResult:  # fmt: skip
        """Batch by batch; ``start`` returns the states of some rows."""
        self.check_condition(condition, len(seeds))
        size = self.batch if batch is None else batch
        fill = self.device.type == "cuda" and (batch is not None or len(seeds) > size)
        keys, images, spent = keys_of(seeds, PATH, self.device), [], 0.0
        for batch_seeds, rows in batches(seeds, size, self.device, fill=fill):
            states = start(rows).to(self.plan.dtype)
            model = self.model.conditioned(
                None if condition is None else condition[rows.to(condition.device)].to(states)
            )
            result = reverse.run(model, states, batch_seeds, keys[rows], callback, self.codec)
            images.append(result.images.to("cpu", torch.float32))
            spent += result.nfe * len(batch_seeds)
        return SampleResult(torch.cat(images), spent / len(seeds))


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

    ``images``: what priors other than `gaussian` start from; by default those of the run, where it has any.
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
    generator = Generator(
        _trained(saved, where), origin, device=where, images=images, own=images_of(Path(path)), compile=compile,
        precision=precision, latent=latent,
    )  # fmt: skip
    generator.saved = saved
    return generator


def as_generator(
    model: str | Path | Generator, device: torch.device | str = "auto", say: Callable[[str], None] = lambda _: None
) -> Generator:
    """A model as `load` takes it or returns it."""
    if not isinstance(model, str | Path | Generator):
        raise ValueError(
            f"model: got {type(model).__name__}, expected a path or a name, or what anisodiff.load returns"
        )
    return model if isinstance(model, Generator) else load(model, device, say=say)


def _trained(saved: Checkpoint, device: torch.device) -> Trained:
    try:
        return load_model(saved, device)
    except (KeyError, RuntimeError) as error:
        if "memory" in str(error):
            raise
        what = " ".join(str(error).split())[:200]
        raise ValueError(f"{saved.path}: this anisodiff cannot read its model ({what})") from None
