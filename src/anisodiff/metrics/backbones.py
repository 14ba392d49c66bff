"""Feature networks ready to use: the published InceptionV3, any TorchScript or ONNX file, DINOv2 from local
files.
"""

import hashlib
import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anisodiff.metrics.cache import Say
from anisodiff.metrics.features import FeatureNetwork, Forward, float32_arithmetic, precision_label
from anisodiff.metrics.resize import IMAGENET_INPUT, INCEPTION_INPUT, Preprocess
from anisodiff.metrics.weights import (
    INCEPTION,
    FoundWeights,
    PublishedWeights,
    find_weights,
    load_torchscript,
    storage_of,
    weights_hash,
)


def probe_image(size: tuple[int, int] = (299, 299)) -> Tensor:
    """A fixed uint8 image ``[1,3,H,W]`` made of integer arithmetic."""
    c, i, j = torch.meshgrid(*(torch.arange(n) for n in (3, *size)), indexing="ij")
    return ((i * j // 64 + 7 * i + 3 * j + 50 * c) % 256).to(torch.uint8)[None]


def probe_values(features: Tensor) -> tuple[float, float, float]:
    """Mean, norm and maximum of features ``[1,D]``."""
    return float(features.mean()), float(features.norm()), float(features.max())


def _file_hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _module_forward(module: torch.nn.Module, preprocess: Preprocess, *, tf32: bool) -> Forward:
    def forward(images: Tensor) -> tuple[Tensor, Tensor | None]:
        with float32_arithmetic(tf32=tf32):
            out = module(preprocess(images))
        if isinstance(out, Tensor):
            return out.flatten(1), None
        if len(out) != 2:
            raise ValueError(f"{len(out)} outputs, expected features, or features and logits")
        features, logits = out
        return features.flatten(1), logits

    return forward


def _scripted(
    name: str, found: FoundWeights, preprocess: Preprocess, device: torch.device, *, tf32: bool
) -> FeatureNetwork:
    return FeatureNetwork(
        name=name, weights=found.weights, resize=preprocess.describe(),
        precision=precision_label(found.storage, tf32=tf32),
        forward=_module_forward(found.module.to(device), preprocess, tf32=tf32), device=device,
    )  # fmt: skip


def inception(
    file: str | Path | None = None,
    *,
    device: torch.device | str = "cpu",
    tf32: bool = False,
    cache: Path | None = None,
    published: PublishedWeights = INCEPTION,
    say: Say = print,
) -> FeatureNetwork:
    """The InceptionV3 of 2015-12-05 that FID is defined with: 2048 pooled features, no logits.

    The weights are recognized by content, the computation by its answer to one fixed image.
    """
    found = find_weights(file, published=published, cache=cache, say=say)
    network = _scripted(published.name, found, INCEPTION_INPUT, torch.device(device), tf32=tf32)
    got = probe_values(network(probe_image())[0])
    if any(abs(a - b) > 0.03 * abs(b) for a, b in zip(got, published.probe)):
        shown = f"{got} instead of {published.probe}"
        raise ValueError(f"{found.path}: right weights, but it computes other features ({shown})")
    return network


def torchscript(
    file: str | Path,
    *,
    name: str | None = None,
    preprocess: Preprocess = INCEPTION_INPUT,
    device: torch.device | str = "cpu",
    tf32: bool = False,
) -> FeatureNetwork:
    """Any TorchScript file: float ``[B,3,S,S]`` → features ``[B,…]``, or a pair (features, logits)."""
    path = Path(file)
    found = load_torchscript(path)
    found = replace(found, weights=_file_hash(path))  # its code counts as well as its tensors
    return _scripted(name or path.stem, found, preprocess, torch.device(device), tf32=tf32)


def _need(module: str, purpose: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"{purpose} needs the package {module}: pip install {module}") from error


def onnx(file: str | Path, *, name: str | None = None, preprocess: Preprocess = INCEPTION_INPUT) -> FeatureNetwork:
    """An ONNX file on the CPU by onnxruntime: first output features, second output (where present) logits."""
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    runtime = _need("onnxruntime", "an ONNX feature network")
    try:
        model = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises its own classes, not exported under one base
        raise ValueError(f"{path}: not a readable ONNX file ({str(error).splitlines()[0]})") from error
    entry = model.get_inputs()[0].name

    def forward(images: Tensor) -> tuple[Tensor, Tensor | None]:
        out = [torch.from_numpy(o) for o in model.run(None, {entry: preprocess(images).numpy()})]
        return out[0].flatten(1), out[1] if len(out) > 1 else None

    return FeatureNetwork(
        name=name or path.stem, weights=_file_hash(path), resize=preprocess.describe(),
        precision="as the ONNX file", forward=forward,
    )  # fmt: skip


def dinov2(
    name: str = "facebook/dinov2-large",
    *,
    preprocess: Preprocess = IMAGENET_INPUT,
    device: torch.device | str = "cpu",
    tf32: bool = False,
) -> FeatureNetwork:
    """DINOv2 class-token features by name or folder, from files already on this machine; nothing is downloaded."""
    transformers = _need("transformers", "DINOv2")
    try:
        model = transformers.AutoModel.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{name}: no local weights ({reason})") from error
    state = model.state_dict()
    storage, weights = storage_of(state), weights_hash(state)
    model = model.float().eval().to(device)

    def forward(images: Tensor) -> tuple[Tensor, Tensor | None]:
        with float32_arithmetic(tf32=tf32):
            return model(pixel_values=preprocess(images)).last_hidden_state[:, 0], None

    return FeatureNetwork(
        name=name, weights=weights, resize=preprocess.describe(), precision=precision_label(storage, tf32=tf32),
        forward=forward, device=torch.device(device),
    )  # fmt: skip
