"""Feature networks ready to use: the published InceptionV3, any TorchScript or ONNX file, DINOv2 from local
files.

A TorchScript file is a program: `torchscript` runs it. `inception` reads only tensors, into the network of
`inception_v3`, and no other network can have the name of the published one.
"""

import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from anisodiff.extras import need
from anisodiff.io.tensor_files import sha256
from anisodiff.metrics.features import FeatureNetwork, Forward, float32_arithmetic, no_network, precision_label
from anisodiff.metrics.resize import IMAGENET_INPUT, INCEPTION_INPUT, Preprocess
from anisodiff.metrics.statistics import Say
from anisodiff.metrics.weights import (
    INCEPTION,
    PublishedWeights,
    WeightsNotFound,
    find_weights,
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


def _own_name(path: Path, name: str | None = None) -> str:
    """The name of a network from a file; that of the published one is not to be had."""
    if name == INCEPTION.name:
        raise ValueError(f"{name} is the name of the published network; give another name to {path}")
    return name or (path.stem if path.stem != INCEPTION.name else path.name)


def inception(
    file: str | Path | None = None,
    *,
    device: torch.device | str = "cpu",
    tf32: bool = False,
    download: bool = False,
    published: PublishedWeights = INCEPTION,
    say: Say = print,
) -> FeatureNetwork:
    """The InceptionV3 of 2015-12-05 that FID is defined with: 2048 pooled features, no logits.

    The computation is ours, the tensors are the published ones, by content. They are looked for in ``file``, then in
    the cache; ``download`` allows to fetch them.
    """
    found = find_weights(file, published=published, online=download, say=say)
    with torch.device("meta"):  # the tensors of the file become the parameters
        module = published.network()
    module.load_state_dict(found.tensors, assign=True)
    return FeatureNetwork(
        name=published.name, weights=found.weights, resize=INCEPTION_INPUT.describe(),
        precision=precision_label(found.storage, tf32=tf32), device=torch.device(device),
        forward=_module_forward(module.eval().to(device), INCEPTION_INPUT, tf32=tf32),
    )  # fmt: skip


def _load_script(path: Path) -> torch.jit.ScriptModule:
    """A TorchScript file with its code, on the CPU and in evaluation mode."""
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    load: Callable[..., torch.jit.ScriptModule] = torch.jit.load
    try:
        with zipfile.ZipFile(path) as archive:  # torch compares no checksum, and damage can cost it gigabytes
            if damaged := archive.testzip():
                raise ValueError(f"{damaged} is damaged")
        with warnings.catch_warnings():  # newer torch announces another format; the published file has this one
            warnings.simplefilter("ignore", DeprecationWarning)
            return load(str(path), map_location="cpu").eval()
    except MemoryError:
        raise
    except Exception as error:  # a damaged file makes torch's reader raise almost any type
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(f"{path}: not a TorchScript file ({reason[0].split('. ')[0]})") from error


def torchscript(
    file: str | Path,
    *,
    name: str | None = None,
    preprocess: Preprocess = INCEPTION_INPUT,
    device: torch.device | str = "cpu",
    tf32: bool = False,
) -> FeatureNetwork:
    """Any TorchScript file: float ``[B,3,S,S]`` → features ``[B,…]``, or a pair (features, logits).

    The code in the file is run, with the rights of this process: load only what you would run.
    """
    path = Path(file)
    name = _own_name(path, name)
    module = _load_script(path)
    storage = storage_of(module.state_dict())  # before the module's own tensors change
    return FeatureNetwork(
        name=name, weights=sha256(path), resize=preprocess.describe(),  # its code counts as well as its tensors
        precision=precision_label(storage, tf32=tf32), device=torch.device(device),
        forward=_module_forward(module.float().to(device), preprocess, tf32=tf32),
    )  # fmt: skip


def onnx(file: str | Path, *, preprocess: Preprocess = INCEPTION_INPUT) -> FeatureNetwork:
    """An ONNX file on the CPU by onnxruntime: first output features, second output (where present) logits."""
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    runtime = need("onnxruntime", "an ONNX feature network")
    try:
        model = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises its own classes, not exported under one base
        raise ValueError(f"{path}: not a readable ONNX file ({str(error).splitlines()[0]})") from error
    entry = model.get_inputs()[0].name

    def forward(images: Tensor) -> tuple[Tensor, Tensor | None]:
        out = [torch.from_numpy(o) for o in model.run(None, {entry: preprocess(images).numpy()})]
        return out[0].flatten(1), out[1] if len(out) > 1 else None

    return FeatureNetwork(
        name=_own_name(path), weights=sha256(path), resize=preprocess.describe(),
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
    transformers = need("transformers", "DINOv2")
    try:
        model = transformers.AutoModel.from_pretrained(
            name, local_files_only=True, trust_remote_code=False, use_safetensors=True
        )
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


def named_network(network: FeatureNetwork | str, device: torch.device | str, say: Say) -> FeatureNetwork:
    """A network, or the one of a name: ``inception``, ``dinov2`` or ``none``; nothing is downloaded."""
    if isinstance(network, FeatureNetwork):
        return network
    try:
        match network:
            case "inception":
                return inception(device=device, published=INCEPTION, say=say)
            case "dinov2":
                return dinov2(device=device)
            case "none":
                return no_network(device)
    except WeightsNotFound:
        size = INCEPTION.size // 10**6
        how = f"anisodiff.metrics.inception(FILE), or inception(download=True) once ({size} MB)"
        raise WeightsNotFound(f"network: the weights of {INCEPTION.name} are not here: give {how}") from None
    raise ValueError(
        f"network: got {network!r}, expected inception, dinov2, none, or a network of anisodiff.metrics, such as "
        "torchscript(FILE) or function_network(NAME, FUNCTION)"
    )
