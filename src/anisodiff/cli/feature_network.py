"""A feature network from the command line: a name, a file, or a function of the user's own."""

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from anisodiff import notation

if TYPE_CHECKING:
    import torch

    from anisodiff.metrics import FeatureNetwork

INPUTS = ("inception", "imagenet", "unit")
NETWORK = typer.Option("inception", "--network", help="Use inception, dinov2, a .pt or .onnx file, or MODULE:FUNC.")
WEIGHTS = typer.Option(None, "--inception", "--weights", help="Read Inception's weights from this file.")
INPUT = typer.Option(None, "--input", help=f"Scale the network input: {', '.join(INPUTS)}.")
TF32 = typer.Option(False, "--tf32", help="Use TF32 on CUDA: twice as fast, FID ± 1e-4.")
TORCHSCRIPT = (".pt", ".pth", ".ts", ".torchscript")


def _imported(text: str, device: "torch.device", size: tuple[int, int]) -> "FeatureNetwork":
    """``MODULE:FUNCTION``, the module found as Python finds it or in the working folder.

    It is identified by its code and by its output for one fixed image: the code does not show which weights it reads.
    """
    from dataclasses import replace

    from anisodiff.io.archives import one_line
    from anisodiff.metrics.backbones import probe_image, probe_values
    from anisodiff.metrics.features import function_network

    module_name, _, name = text.partition(":")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
        function: Any = getattr(module, name)
        code = inspect.getsourcefile(module)
    except Exception as error:  # a module may raise anything while it is imported
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"--network {text}: cannot import that function ({reason})") from error
    finally:
        sys.path.remove(here)
    if not callable(function):
        raise ValueError(f"--network {text}: expected a function uint8 [B,3,H,W] → float [B,D], got {function!r}")
    network = function_network(text, function, device=device)
    if code is None:
        return network
    # Four digits: another order of summation must not give another network.
    answer = " ".join(f"{value:.4g}" for value in probe_values(network(probe_image(size))[0]))
    return replace(network, weights=hashlib.sha256(Path(code).read_bytes() + answer.encode()).hexdigest())


def network_for(
    metrics: tuple[str, ...] | None, name: str, *, device: "torch.device", say: Callable[[str], None], **options: Any
) -> "FeatureNetwork":
    """The network that some metrics need: none where they use none, or where ``none`` is its name.

    Where no metrics were named and the weights are not to be had, none as well, and a line says what is left out.
    """
    from anisodiff.metrics import no_network
    from anisodiff.metrics.evaluation import uses_features
    from anisodiff.metrics.values import METRICS, OF_FEATURES
    from anisodiff.metrics.weights import WeightsNotFound

    if not uses_features(metrics) or name == "none":
        return no_network(device)
    try:
        return pick_network(name, device=device, say=say, **options)
    except WeightsNotFound:
        if metrics is not None:
            raise
        left_out = ", ".join(m for m in METRICS if m in OF_FEATURES)
        say(f"left out: {left_out}, which need a feature network; give its weights with --inception FILE")
        return no_network(device)


def pick_network(
    name: str,
    *,
    weights: Path | None,
    given: str | None,
    device: "torch.device",
    tf32: bool,
    say: Callable[[str], None],
    size: tuple[int, int] = (299, 299),
) -> "FeatureNetwork":
    """``inception``, ``dinov2`` or its full name or folder, a TorchScript or ONNX file, or ``MODULE:FUNCTION``.

    ``given`` names the scaling of the input (`INPUTS`); only files need it. ``weights`` is Inception's file, ``size``
    that of the images.
    """
    from anisodiff.metrics import backbones, resize
    from anisodiff.metrics.weights import INCEPTION

    if given is not None and given not in INPUTS:
        raise ValueError(f"unknown --input {given!r}; {notation.nearest(given, INPUTS)}")
    if name == "none":
        raise ValueError("--network none: FID needs a feature network; expected inception, dinov2 or another")
    suffix = Path(name).suffix.lower()
    if weights is not None and name != "inception":
        raise ValueError(f"--inception or --weights belongs to --network inception; {name} is a network of its own")
    if given is not None and suffix not in (".onnx", *TORCHSCRIPT):
        raise ValueError(f"--input belongs to a network from a file; {name} knows its own")
    scaling = getattr(resize, f"{(given or 'inception').upper()}_INPUT")
    if name == "inception":
        return backbones.inception(weights, device=device, tf32=tf32, published=INCEPTION, say=say)
    if suffix == ".onnx":
        return backbones.onnx(name, preprocess=scaling)
    if suffix in TORCHSCRIPT:
        return backbones.torchscript(name, preprocess=scaling, device=device, tf32=tf32)
    if name == "dinov2":
        return backbones.dinov2(device=device, tf32=tf32)
    if "dinov2" in name:
        return backbones.dinov2(name, device=device, tf32=tf32)
    if ":" in name:
        return _imported(name, device, size)
    hint = notation.nearest(name, ("inception", "dinov2"))
    raise ValueError(f"unknown --network {name!r}; {hint}, or a .pt or .onnx file, or MODULE:FUNCTION")
