"""Names that the command line lists and completes without loading torch. A test compares them with the tables."""

from anisodiff.registry import DEFAULT_PROCESS, ELSEWHERE, TRAINED

DATASETS = ("cifar10", "fashion-mnist", "celeba", "imagenet", "lsun")

_FAMILIES = {
    "cifar10": ("", "-base", "-small", "-tiny"), "celeba64": ("",), "lsun256": ("",), "church256": ("", "-latent"),
    "bedroom256": ("", "-latent"), "scenes128": ("", "-latent"),
}  # fmt: skip
_PROCESSES_OF_RECIPES = (*(name for name in TRAINED if name != "heat-paper"), "song")
RECIPES = tuple(
    f"{data}{process}{size}"
    for process in ("", *(f"-{name}" for name in _PROCESSES_OF_RECIPES))
    for data, kinds in _FAMILIES.items()
    for size in kinds
)

_KEYS = """
    process network dataset size channels parameterization learns channel_pca weighting times level_mean level_std
    t_min batch accumulation lr betas eps warm_up clip ema flip seed images precision compile recompute
    deterministic calibration log_every checkpoint_every sample_every classes label_dropout shard latent
"""
SETTINGS = {key: key for key in _KEYS.split()} | ELSEWHERE
"""Keys of a run, and what other trainers call them."""
AUTOENCODER_KEYS = (
    "channels", "factor", "width", "layers", "beta", "batch", "lr", "warm_up", "ema", "images", "checkpoint_every",
    "seed",
)  # fmt: skip
KEYS_OF = dict.fromkeys(("train", "compare", "sweep"), SETTINGS) | {
    "autoencoder train": {key: key for key in AUTOENCODER_KEYS}
    | {word: key for word, key in SETTINGS.items() if key in ("size", *AUTOENCODER_KEYS)}
}
"""Command → the keys of its --set, by all their names."""

_VALUES = {
    "N": "batch candidates channels edit-n frames halving images max-skipped n port repeats samples seed size steps "
    "strokes track-n",
    "FILE": "animation figure grid inception lpips mask report sheet states strip sweep",
    "PATH": "data edit out", "FOLDER": "results", "MODEL": "also from", "TIME": "budget for min-budget",
    "KEY=VALUE": "set", "W": "guidance", "LO,HI": "guidance-interval", "FOLDER|OWNER/NAME": "latent",
}  # fmt: skip
VALUE_OF = {f"--{option}": value for value, options in _VALUES.items() for option in options.split()}
"""Option → what stands for its value in the help, where that is not the name of the option."""

LIST_OF_PROCESSES = f"Processes: {', '.join(TRAINED)}; figures of the paper: gallery-…, design-…."
LIST_OF_RECIPES = (
    f"Recipes: {{{','.join(_FAMILIES)}}}[-PROCESS]; cifar10[-PROCESS]-{{base,small,tiny}}; "
    "{church256,bedroom256,scenes128}[-PROCESS]-latent. "
    f"Processes: {', '.join(_PROCESSES_OF_RECIPES)}; without one: {DEFAULT_PROCESS}."
)


def complete_process(incomplete: str) -> list[str]:
    """The processes that begin so."""
    return [name for name in TRAINED if name.startswith(incomplete)]


def complete_recipe(incomplete: str) -> list[str]:
    """The recipes, and the processes for one's own images, that begin so."""
    return [name for name in (*RECIPES, *TRAINED) if name.startswith(incomplete)]


def complete_dataset(incomplete: str) -> list[str]:
    """The datasets known by name that begin so."""
    return [name for name in DATASETS if name.startswith(incomplete)]
