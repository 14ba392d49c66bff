"""The table of names: processes with their models, samplers, networks.

To add one, write its module, one line here and one row in the test table of its kind (docs/extending.md). Entries are
import paths below `anisodiff`, imported on first use.
"""

import dataclasses
import functools
import importlib
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from anisodiff import notation

if TYPE_CHECKING:
    from anisodiff.models.base import Model
    from anisodiff.networks.base import NetworkSpec
    from anisodiff.processes.base import Process
    from anisodiff.samplers.base import Sampler


@dataclass(frozen=True)
class Trainable:
    """A process with its own class, whose fields are its keys, and the model that learns it."""

    process: str
    model: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the process that the name fixes."""
    network: Mapping[str, Any] = field(default_factory=dict)
    """Keys of NCSN++ that the method sets."""


_VELOCITY = ("processes.flow_matching:FlowMatching", "models.velocity:VelocityModel")
_SMOOTH = {"embedding": "positional"}
"""Sinusoidal time embedding, with frequencies of at most 1."""
PROCESSES: Mapping[str, Trainable] = MappingProxyType(
    {
        "flow-matching": Trainable(*_VELOCITY, network=_SMOOTH),
        "flow-matching-uniform": Trainable(*_VELOCITY, keys={"density": "uniform"}, network=_SMOOTH),
        "heat-dissipation": Trainable(
            "processes.heat_dissipation:HeatDissipation", "models.deblurring:DeblurringModel"
        ),
        "edge-preserving": Trainable(
            "processes.edge_preserving:EdgePreserving", "models.scaled_noise:ScaledNoiseModel"
        ),
    }
)

PRESETS = ("anisotropic-gentle", "ve", "cartoon", "heat", "anisotropic", "heat-paper", "anisotropic-paper")
"""Coefficients of the SPDE (`processes.presets`), learned by `models.score.ScoreModel`."""
DEFAULT_PROCESS = "anisotropic-gentle"
"""The best anisotropic process in docs/results."""
DEFAULT_STRENGTH = 0.7
"""Of edits; see `editing.strength`."""
FIGURES = (
    *(
        f"gallery-{row}"
        for row in ("isotropic-noise", "anisotropic-noise", "isotropic-drift", "anisotropic-drift", "both")
    ),
    *(f"design-{row}{column}" for row in "1234" for column in "abc"),
)
"""Presets of the figures of the paper, not for training."""

SAMPLERS: Mapping[str, str] = MappingProxyType(
    {
        "exponential": "samplers.exponential:Exponential",
        "ode": "samplers.ode:Ode",
        "multistep": "samplers.multistep:Multistep",
        "churn": "samplers.churn:Churn",
        "euler": "samplers.euler:Euler",
        "ancestral": "samplers.ancestral:Ancestral",
        "pc": "samplers.predictor_corrector:PredictorCorrector",
        "heun": "samplers.flow:Heun",
        "midpoint": "samplers.flow:Midpoint",
        "dopri5": "samplers.dopri5:Dopri5",
        "deblurring": "samplers.deblurring:Deblurring",
        "posterior": "samplers.posterior:Posterior",
    }
)

NETWORKS: Mapping[str, str] = MappingProxyType(
    {
        "cifar10": "networks.ncsnpp:ncsnpp_spec",
        "cifar10-deep": "networks.ncsnpp:ncsnpp_spec",
        "celeba64": "networks.ncsnpp:ncsnpp_spec",
        "lsun256": "networks.ncsnpp:ncsnpp_spec",
        "tiny": "networks.ncsnpp:ncsnpp_spec",
        "small": "networks.ncsnpp:ncsnpp_spec",
        "base": "networks.ncsnpp:ncsnpp_spec",
        "diffusers:UNet2DModel": "networks.diffusers_models:diffusers_spec",
        "diffusers:DiTTransformer2DModel": "networks.diffusers_models:diffusers_spec",
    }
)
"""A module class, or a function from a name and keys to a `NetworkSpec`. A user-defined network is named by its
import path ``module:Class`` instead (`networks.own`)."""

TRAINED = (*PRESETS, *PROCESSES)
"""Processes for training."""
PROCESS_NAMES = (*TRAINED, *FIGURES)
ELSEWHERE = {
    "learning_rate": "lr", "batch_size": "batch", "epochs": "images", "steps": "images", "resolution": "size",
    "image_size": "size", "model": "network", "dropout": "network.dropout", "warmup": "warm_up", "ema_decay": "ema",
    "labels": "classes", "num_classes": "classes", "class_dropout": "label_dropout",
    **{word: f"process.{key}" for word, key in notation.SYMBOLS.items()},
    **{key: f"process.{key}" for key in notation.SYMBOLS.values()},
}  # fmt: skip
"""What other trainers call keys of a run; the symbols and names of the process's keys, without their group."""


@functools.cache
def resolve(path: str) -> Any:
    """Import ``module:name`` below `anisodiff`."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(f"anisodiff.{module}"), name)


def process_keys(name: str | None = None) -> tuple[str, ...]:
    """The keys of the process ``name``; without a name, those of all processes."""
    if name is not None and name in PROCESSES:
        entry = PROCESSES[name]
        return tuple(f.name for f in dataclasses.fields(resolve(entry.process)) if f.name not in entry.keys)
    own = [*resolve("processes.config:KEYS"), *resolve("processes.presets:OWN_KEYS")]
    others = [] if name is not None else [key for other in PROCESSES for key in process_keys(other)]
    return tuple(dict.fromkeys([*own, *others]))


def build_process(name: str, size: int, overrides: Mapping[str, Any], what: str) -> "Process":
    """The process ``name`` for images of longer side ``size``, with keys overridden.

    ``what`` begins the error message for an unknown key.
    """
    notation.check_choice(name, PROCESS_NAMES, "process")
    pixels = _pixels(size)
    built: Process
    if name not in PROCESSES:
        built = resolve("processes.presets:configure")(name, pixels, overrides, what).build()
    else:
        kind = resolve(PROCESSES[name].process)
        keys = resolve("processes.config:check_keys")(overrides, process_keys(name), what)
        built = kind(**{**kind.sized(pixels), **PROCESSES[name].keys, **keys})
    return built


def process(name: str, size: int = 32, **overrides: Any) -> "Process":
    """A process by name, with any of its keys overridden: ``process("anisotropic", diffusivity=4)``."""
    at = functools.partial(build_process, name, overrides=overrides, what=f"process {name!r}")
    return at(size).made_for(size, at)


def model_of(name: str) -> "type[Model]":
    """The model that learns the process ``name``."""
    path = PROCESSES[name].model if name in PROCESSES else "models.score:ScoreModel"
    kind: type[Model] = resolve(path)
    return kind


def own_prior(name: str) -> str:
    """The prior of the published method ``name`` (`Process.own_prior`)."""
    kind: type[Process] = resolve(PROCESSES[name].process if name in PROCESSES else "processes.base:Process")
    return kind.own_prior


def is_ncsnpp(network: str) -> bool:
    """Whether a named network is an NCSN++."""
    return NETWORKS.get(network) == NETWORKS["cifar10"]


def network_keys(process: str) -> Mapping[str, Any]:
    """Keys of NCSN++ that the process sets, such as its time embedding."""
    return PROCESSES[process].network if process in PROCESSES else {}


def build_network(
    name: str, size: tuple[int, int], in_channels: int, out_channels: int, keys: Mapping[str, Any]
) -> "NetworkSpec":
    """The specification of the network ``name`` for images of ``size`` (H, W)."""
    if name in NETWORKS:
        entry = resolve(NETWORKS[name])
        make = resolve("networks.base:module_spec")(entry) if isinstance(entry, type) else entry
    elif resolve("networks.own:is_path")(name):
        make = resolve("networks.own:own_spec")(resolve("networks.own:find")(name))
    else:
        hint = notation.nearest(str(name), NETWORKS, "MODULE:CLASS of your own")
        raise ValueError(f"network.name: unknown {name!r}; {hint}")
    spec: NetworkSpec = make(name, size, in_channels, out_channels, keys)
    return spec


def build_sampler(text: str, process: "Process", provided: frozenset[str] | None = None) -> "Sampler":
    """A sampler for ``process`` from its notation: ``exponential(order=2)``, ``euler(corrector=0.16)``, ``ode``.

    ``provided``: what the model predicts (`Model.provides`); by default that of a model with default options.
    """
    return fit_sampler(notation.read(text, _samplers(), "sampler"), process, provided)


def fit_sampler(given: "Sampler", process: "Process", provided: frozenset[str] | None = None) -> "Sampler":
    """``given`` with its process-dependent options; a ValueError if process or model do not meet its requirements."""
    if provided is None:
        provided = _model_for(process).provides(process, resolve("models.base:ModelOptions")())
    missing = given.missing(process, provided)
    if missing:
        fitting = fitting_samplers(process, provided)
        remedy = f"use {notation.alternatives(map(repr, fitting))}" if fitting else "no sampler fits"
        raise ValueError(f"the sampler {given.name!r} needs {missing}; {remedy}")
    return given.prepared(process)


def fitting_samplers(process: "Process", provided: frozenset[str]) -> list[str]:
    """The samplers for ``process`` and a model that predicts what is ``provided``."""
    fitting = [name for name, kind in _samplers().items() if _fits(kind(), process, provided)]
    projected = resolve(SAMPLERS["euler"])(drift="projected")
    return fitting + ["euler(drift=projected)"] * ("euler" not in fitting and _fits(projected, process, provided))


def default_sampler(model: "type[Model]", process: "Process", provided: frozenset[str]) -> "Sampler":
    """The default sampler for a ``model`` of ``process`` that predicts what is ``provided``.

    For anisotropic noise (λ2 < ∞) this is `euler`, with the projected drift if it was learned.
    """
    euler = resolve(SAMPLERS["euler"])
    for given in (resolve(SAMPLERS[model.default_sampler])(), euler(drift="projected"), euler()):
        if _fits(given, process, provided):
            fitting: Sampler = given.prepared(process)
            return fitting
    raise ValueError("no sampler fits this process and what was learned of it")


def _samplers() -> "dict[str, type[Sampler]]":
    return {name: resolve(path) for name, path in SAMPLERS.items()}


def _model_for(process: "Process") -> "type[Model]":
    """The model for the class of ``process``."""
    kinds = {resolve(entry.process): name for name, entry in PROCESSES.items()}
    return model_of(kinds.get(type(process), ""))


def _fits(given: "Sampler", process: "Process", provided: frozenset[str]) -> bool:
    if given.missing(process, provided):
        return False
    try:
        given.prepared(process)
    except ValueError:
        return False
    return True


def _pixels(size: int) -> int:
    try:
        pixels = operator.index(size)
    except TypeError:
        pixels = 0
    if isinstance(size, bool) or pixels < 3:
        raise ValueError(f"size is the image's longer side in pixels, a whole number ≥ 3; got {size!r}")
    return pixels
