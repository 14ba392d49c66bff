"""Feature networks as plain values: a name, a weight hash, and a function uint8 ``[B,3,H,W]`` → float32
``[B,D]``.

Everything that changes the numbers is part of the value and goes into the protocol: preprocessing, arithmetic
precision, and the precision the weights were stored in. Features are computed in float32 with TF32 off by default:
TF32 keeps 10 bits of a product and moves small FIDs visibly.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anisodiff.io.archives import one_line
from anisodiff.metrics.protocol import NO_NETWORK

CPU = torch.device("cpu")
Forward = Callable[[Tensor], tuple[Tensor, Tensor | None]]


@dataclass(frozen=True, kw_only=True)
class FeatureNetwork:
    """A feature network: ``forward`` maps uint8 ``[B,3,H,W]`` to features ``[B,D]`` and logits ``[B,K]`` or
    ``None``.

    ``weights`` is a content hash (:func:`anisodiff.metrics.weights_hash`), or a phrase such as ``"none"`` for
    a function without weights. Two networks with equal name, weights, resize and precision give the same
    numbers. An ``empty`` one computes nothing, D = 0: only pixels are compared (`no_network`).
    """

    name: str
    weights: str
    resize: str
    precision: str
    forward: Forward
    device: torch.device = CPU
    empty: bool = False

    def __post_init__(self) -> None:
        for field in ("name", "weights", "resize", "precision"):
            if not getattr(self, field):
                raise ValueError(f"a feature network needs a {field}: the protocol prints it beside every number")

    def __call__(self, images: Tensor, *, pad_to: int = 0) -> tuple[Tensor, Tensor | None]:
        """Features ``[B,D]`` and logits of a uint8 batch, on the network's device, without gradients.

        On CUDA a batch shorter than ``pad_to`` is filled up with copies for the computation: a new shape costs a new
        search for kernels, more than the copies.
        """
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ValueError(f"expected uint8 [B,3,H,W], got {images.dtype} {tuple(images.shape)}")
        count = len(images)
        images = images.to(self.device, non_blocking=True)
        if self.device.type == "cuda" and 0 < count < pad_to:
            images = torch.cat([images, images[:1].expand(pad_to - count, -1, -1, -1)])
        try:
            with torch.inference_mode():
                features, logits = self.forward(images)
        except (torch.OutOfMemoryError, MemoryError):
            raise  # a smaller batch may do: not the network's mistake
        except Exception as error:  # a network is anybody's code and may raise anything
            shape, reason = ",".join(map(str, images.shape)), f"{type(error).__name__}: {one_line(error)}"
            raise ValueError(f"{self.name}: fails on images [{shape}] ({reason})") from error
        for role, value in (("features", features), ("logits", logits)):
            if not isinstance(value, Tensor) and not (role == "logits" and value is None):
                kind = type(value).__name__
                raise ValueError(f"{self.name}: expected {role} as a tensor [{len(images)},D], got {kind}")
        if features.ndim != 2 or len(features) != len(images) or (not features.shape[1] and not self.empty):
            raise ValueError(f"{self.name}: expected features [{len(images)},D], got {tuple(features.shape)}")
        return features[:count].float(), None if logits is None else logits[:count].float()


@contextmanager
def float32_arithmetic(*, tf32: bool = False) -> Iterator[None]:
    """Inside, float32 convolutions and products on CUDA really are float32 (or TF32 where asked for)."""
    cudnn: Any = torch.backends.cudnn
    matmul: Any = torch.backends.cuda.matmul
    new = hasattr(cudnn, "conv")  # torch ≥ 2.9 has a name per operator; older ones a single switch
    where = [(cudnn.conv if new else cudnn), matmul]
    attribute, value = ("fp32_precision", "tf32" if tf32 else "ieee") if new else ("allow_tf32", tf32)
    before = [getattr(target, attribute) for target in where]
    benchmark = cudnn.benchmark
    try:
        for target in where:
            setattr(target, attribute, value)
        cudnn.benchmark = True  # all batches have one shape: the search for the fastest kernel pays
        yield
    finally:
        for target, old in zip(where, before):
            setattr(target, attribute, old)
        cudnn.benchmark = benchmark


def precision_label(storage: str, *, tf32: bool) -> str:
    """The phrase of the protocol for arithmetic and storage."""
    return f"float32, TF32 {'on' if tf32 else 'off'}, weights stored as {storage}"


UNKNOWN = "none"
"""Weights of a function that says nothing of itself."""


def function_network(
    name: str,
    function: Callable[[Tensor], Tensor],
    *,
    weights: str = UNKNOWN,
    device: torch.device | str = "cpu",
) -> FeatureNetwork:
    """Any function uint8 ``[B,3,H,W]`` → float ``[B,D]`` as a feature network without logits.

    ``weights`` says which function it is (a hash, a version): without it statistics of references are not cached.
    """
    return FeatureNetwork(
        name=name, weights=weights, resize="none", precision="as the function",
        forward=lambda images: (function(images), None), device=torch.device(device),
    )  # fmt: skip


def no_network(device: torch.device | str = "cpu") -> FeatureNetwork:
    """In place of a feature network where only pixels are compared; they are, on ``device``."""
    return FeatureNetwork(
        name=NO_NETWORK, weights=UNKNOWN, resize="none", precision="none", empty=True, device=torch.device(device),
        forward=lambda images: (images.new_zeros(len(images), 0, dtype=torch.float32), None),
    )  # fmt: skip
