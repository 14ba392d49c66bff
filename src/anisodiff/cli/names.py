"""Names that the command line lists and completes without loading torch. A test compares them with the tables."""

from anisodiff.registry import TRAINED

DATASETS = ("cifar10", "fashion-mnist", "celeba", "imagenet", "lsun")

_PROCESSES_OF_RECIPES = (*(name for name in TRAINED if name != "heat-paper"), "song")
RECIPES = (
    *(f"{data}-{name}" for data in ("cifar10", "celeba64", "lsun256") for name in _PROCESSES_OF_RECIPES),
    *(f"cifar10-{name}-{size}" for size in ("base", "small") for name in _PROCESSES_OF_RECIPES),
    "cifar10-anisotropic-best",
)

LIST_OF_PROCESSES = f"Processes: {', '.join(TRAINED)}; figures of the paper: gallery-…, design-…."
LIST_OF_RECIPES = (
    f"Recipes: {{cifar10,celeba64,lsun256}}-PROCESS; cifar10-PROCESS-{{base,small}}; cifar10-anisotropic-best. "
    f"Processes: {', '.join(_PROCESSES_OF_RECIPES)}."
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
