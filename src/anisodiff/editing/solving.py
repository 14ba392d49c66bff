"""Linear inverse problems with a checkpoint: images x with y = A x + σ n, drawn given y (`inverse.guidance`).

    u_T ~ prior;    u_T → u_{t_min} by a sampler of the score given y;    x = E[x_0 | u_{t_min}, y]

Every result has a seed, with the streams of `Generator.sample`: without a measurement (σ = ∞) it is the sample of
that seed, bit by bit. Each is a draw given y; the mean over several seeds has the smaller squared error.
"""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import torch
from torch import Tensor

from anisodiff import notation
from anisodiff.generation import Generator, SamplingConfig, as_generator
from anisodiff.generation.config import SamplingKeys
from anisodiff.generation.images import Images
from anisodiff.generation.reverse import PATH, START, Callback, Seeds, batches, check_batch, keys_of, seeds_of
from anisodiff.inverse import METHODS, LinearOperator, Measurement, Method, condition_on_measurement, read_operator
from anisodiff.inverse.covariance import data_covariance
from anisodiff.noise import KeyedNoise, combine, white

MEASURE = 6
"""Stream of a seed, beside those of `generation.reverse` and `sdedit`: noise of a measurement."""


@torch.no_grad()
def solve(
    generator: str | Path | Generator,
    y: Tensor,
    operator: str | LinearOperator,
    config: SamplingConfig = SamplingConfig(),
    *,
    noise: float,
    seeds: Seeds,
    method: str | Method = "pigdm",
    callback: Callback | None = None,
    **keys: Unpack[SamplingKeys],
) -> Images:
    """Images [B, C, H, W] in [0, 1] on the CPU, one for every measurement ``y`` [B, …] and its seed.

    ``generator``: as `load` takes or returns it. ``operator``: A, such as ``super-resolution(factor=4)``. ``noise``:
    σ, for images in [0, 1]. ``seeds``: one for every measurement, the first of them, or a `torch.Generator` that
    draws the first. Candidates of one measurement are rows with different seeds. ``keys``: of the config, as in
    `Generator.sample`: ``steps`` is the NFE, each with a backward pass; the null label unless classes are given.
    """
    generator, config = as_generator(generator), replace(config, **keys).unlabeled()
    seed_list = seeds_of(seeds, len(y))
    if generator.codec is not None:
        raise ValueError("an operator acts on pixels, and this model makes latents: give a model of pixels")
    generator.check_condition(None, len(seed_list))
    reverse = generator.reverse_process(config)
    prior = generator.prior(config.prior) if isinstance(config.prior, str) else config.prior
    linear = read_operator(operator) if isinstance(operator, str) else operator
    how = read_method(method) if isinstance(method, str) else method
    shape = linear.measured((generator.channels, *generator.size))
    check_batch("measurements y", y, (len(seed_list), *shape))
    size, device, done = config.batch or max(1, generator.batch // 4), generator.device, []
    start, path = (keys_of(seed_list, stream, device) for stream in (START, PATH))
    fill = device.type == "cuda" and len(seed_list) > size
    for batch_seeds, rows in batches(seed_list, size, device, fill=fill):
        states = prior.draw(len(rows), KeyedNoise(start[rows])).to(generator.plan.dtype)
        measurement = Measurement(operator=linear, values=y[rows.to(y.device)].to(states), noise=noise)
        model = condition_on_measurement(reverse.view(generator.model, batch_seeds, len(rows)), measurement, how)
        done.append(reverse.run(model, states, batch_seeds, path[rows], callback).images.to("cpu", torch.float32))
    return torch.cat(done).as_subclass(Images)


def read_method(text: str) -> Method:
    """A method by its name: ``pigdm`` or ``dps``."""
    method: Method = notation.read(text, METHODS, "method")
    return method


def degrade(operator: LinearOperator, images: Tensor, noise: float) -> Tensor:
    """y = A x + σ n of images [B, C, H, W]; n depends on the picture, not on its place."""
    keys = [int.from_bytes(hashlib.sha256(x.numpy().tobytes()).digest()[:7]) for x in images.float().cpu()]
    y = operator.apply(images)
    source = KeyedNoise(combine(MEASURE, torch.tensor(keys, dtype=torch.int64), 0).to(y.device))
    return y if noise == 0 else operator.restrict(y + noise * white(y, source))


def wiener(generator: Generator, y: Tensor, operator: LinearOperator, noise: float) -> Tensor:
    """The best linear estimate by the spectrum D of the training images, [B, C, H, W] in [0, 1] on the CPU:

    μ + D Aᵀ (A D Aᵀ + σ²)⁻¹ (y − A μ).
    """
    statistics = generator.model.statistics.to(torch.device("cpu"))
    covariance, values = data_covariance(statistics), y.to("cpu", torch.float32)
    mean = statistics.mean.float()[None, :, None, None].expand(1, generator.channels, *generator.size)
    weights = operator.solve(values - operator.apply(mean), covariance, noise)
    return (mean + covariance.apply(operator.adjoint(weights))).clamp(0, 1)
