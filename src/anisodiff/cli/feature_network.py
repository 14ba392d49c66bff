"""A feature network from the command line: a name, a file, or a function of the user's own."""

import hashlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from anisodiff import notation

if TYPE_CHECKING:
    import torch

    from anisodiff.metrics import FeatureNetwork
    from anisodiff.metrics.weights import PublishedWeights

INPUTS = ("inception", "imagenet", "unit")
NETWORK = typer.Option("inception", "--network", help="Use inception, dinov2, none, FILE.pt, .onnx or MODULE:FUNC.")
WEIGHTS = typer.Option(None, "--inception", "--weights", help="Read Inception's weights from this file.")
INPUT = typer.Option(None, "--input", help=f"Scale the network input: {', '.join(INPUTS)}.")
TF32 = typer.Option(False, "--tf32", help="Use TF32 on CUDA: twice as fast, FID ± 1e-4.")
DOWNLOAD = typer.Option(False, "--download", help="Download Inception's weights if they are not here.")
TRUST = typer.Option(False, "--trust-code", help="Run a .pt --network; import a model's own network.")
TORCHSCRIPT = (".pt", ".pth", ".ts", ".torchscript")


def _imported(text: str, device: "torch.device", size: tuple[int, int]) -> "FeatureNetwork":
    """``MODULE:FUNCTION``, the module found as Python finds it or in the working folder.

    It is identified by its code and by its output for one fixed image: the code does not show which weights it reads.
    """
    from anisodiff.metrics.backbones import probe_image, probe_values
    from anisodiff.metrics.features import function_network
    from anisodiff.networks.own import imported

    module, function = imported(text, f"--network {text}")
    try:
        code = inspect.getsourcefile(module)
    except TypeError:  # a module without a file
        code = None
    if not callable(function):
        raise ValueError(f"--network {text}: expected a function uint8 [B,3,H,W] → float [B,D], got {function!r}")
    network = function_network(text, function, device=device)
    if code is None:
        return network
    # Four digits: another order of summation must not give another network.
    answer = " ".join(f"{value:.4g}" for value in probe_values(network(probe_image(size))[0]))
    return replace(network, weights=hashlib.sha256(Path(code).read_bytes() + answer.encode()).hexdigest())


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The options of a command. ``name`` is ``inception``, ``dinov2`` or its full name or folder, a TorchScript or
    ONNX file, or ``MODULE:FUNCTION``.

    ``given`` names the scaling of the input (`INPUTS`); only files need it. ``weights`` is Inception's file. The code
    of a TorchScript file is run only if ``trust_code``; Inception's weights are fetched only if ``download``.
    """

    name: str
    weights: Path | None
    given: str | None
    tf32: bool
    download: bool
    trust_code: bool

    def __post_init__(self) -> None:
        name, suffix = self.name, Path(self.name).suffix.lower()
        if self.given is not None:
            notation.check_choice(self.given, INPUTS, "--input")
        if self.weights is not None and name not in ("inception", "none"):
            raise ValueError(f"--inception or --weights belongs to --network inception; {name} is another network")
        if self.given is not None and name != "none" and suffix not in (".onnx", *TORCHSCRIPT):
            raise ValueError(f"--input belongs to a network from a file; {name} knows its own")
        if self.scripted and Path(name).is_file() and not self.trust_code:
            raise ValueError(f"{name} is a program that would be run: add --trust-code if you trust whoever made it")

    @property
    def scripted(self) -> bool:
        return Path(self.name).suffix.lower() in TORCHSCRIPT

    def missing(self) -> str:
        """How to provide Inception's weights, where they are needed and not here."""
        from anisodiff.metrics.weights import INCEPTION, named_file

        if self.name != "inception" or self.download:
            return ""
        if (named := named_file(self.weights, INCEPTION)) is not None and not named.is_file():
            return f"{named} does not exist: give Inception's weights with --inception FILE"
        if _here(INCEPTION, self.weights):
            return ""
        size = INCEPTION.size // 10**6
        return f"{INCEPTION.name} is not here: give --inception FILE, or --download once ({size} MB)"

    def with_consent(self) -> "Choice":
        """The choice after a person at a terminal was asked to allow a download, where one is needed."""
        from anisodiff.metrics.weights import INCEPTION

        if self.name != "inception":
            return self
        return replace(self, download=allowed(INCEPTION, self.weights, self.download))


def allowed(published: "PublishedWeights", file: Path | None, download: bool) -> bool:
    """Whether weights may be fetched: as the options say, or as a person at a terminal says who needs them."""
    if download or _here(published, file):
        return download
    if not may_ask():
        return False
    question = f"{published.name} is not here: download {published.size // 10**6} MB?"
    return typer.confirm(question, err=True)


def may_ask() -> bool:
    """Whether a person is at the terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _here(published: "PublishedWeights", file: Path | None) -> bool:
    from anisodiff.metrics.weights import cached_file, named_file

    return bool(named_file(file, published)) or cached_file(published).exists()


def network_for(
    metrics: tuple[str, ...] | None, choice: Choice, *, device: "torch.device", say: Callable[[str], None],
    **options: Any,
) -> "FeatureNetwork":  # fmt: skip
    """The network that some metrics need: none where they use none, or where ``none`` is its name.

    Where no metrics were named and the weights are not to be had, none as well, and a line says what is left out.
    """
    from anisodiff.metrics import no_network
    from anisodiff.metrics.evaluation import uses_features
    from anisodiff.metrics.values import METRICS, OF_FEATURES, ONLY_NAMED
    from anisodiff.metrics.weights import WeightsNotFound

    if not uses_features(metrics) or choice.name == "none":
        return no_network(device)
    try:
        return pick_network(choice, device=device, say=say, **options)
    except WeightsNotFound:
        if metrics is not None:
            raise
        left_out = ", ".join(m for m in METRICS if m in OF_FEATURES and m not in ONLY_NAMED)
        how = "give its weights with --inception FILE or --download"
        say(f"left out: {left_out}, which need a feature network; {how}")
        return no_network(device)


def pick_network(
    choice: Choice,
    *,
    device: "torch.device",
    say: Callable[[str], None],
    size: tuple[int, int] = (299, 299),
) -> "FeatureNetwork":
    """The network of a choice; ``size`` is that of the images."""
    from anisodiff.metrics import backbones, resize

    name, suffix, tf32 = choice.name, Path(choice.name).suffix.lower(), choice.tf32
    scaling = getattr(resize, f"{(choice.given or 'inception').upper()}_INPUT")
    if name == "inception":
        from anisodiff.metrics.weights import INCEPTION

        return backbones.inception(
            choice.weights, device=device, tf32=tf32, download=choice.download, published=INCEPTION, say=say
        )
    if suffix == ".onnx":
        return backbones.onnx(name, preprocess=scaling)
    if choice.scripted:
        return backbones.torchscript(name, preprocess=scaling, device=device, tf32=tf32)
    if name == "dinov2":
        return backbones.dinov2(device=device, tf32=tf32)
    if "dinov2" in name:
        return backbones.dinov2(name, device=device, tf32=tf32)
    if ":" in name:
        return _imported(name, device, size)
    hint = notation.nearest(name, ("inception", "dinov2"))
    raise ValueError(f"unknown --network {name!r}; {hint}, or a .pt or .onnx file, or MODULE:FUNCTION")
