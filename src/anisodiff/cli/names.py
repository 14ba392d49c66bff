"""Names that the command line lists and completes without loading torch. A test compares them with the tables."""

PROCESSES = (
    "ve", "heat", "anisotropic", "heat-paper", "anisotropic-paper",
    "flow-matching", "heat-dissipation", "edge-preserving",
)  # fmt: skip
DATASETS = ("cifar10", "fashion-mnist", "celeba", "imagenet", "lsun")

_PROCESSES_OF_RECIPES = (*(name for name in PROCESSES if name != "heat-paper"), "song")
RECIPES = (
    *(f"{data}-{name}" for data in ("cifar10", "celeba64", "lsun256") for name in _PROCESSES_OF_RECIPES),
    *(f"cifar10-{name}-{size}" for size in ("base", "small") for name in _PROCESSES_OF_RECIPES),
    "cifar10-anisotropic-best",
)

LIST_OF_PROCESSES = f"Processes: {', '.join(PROCESSES)}; figures of the paper: gallery-…, design-…."
LIST_OF_RECIPES = (
    f"Recipes: {{cifar10,celeba64,lsun256}}-PROCESS; cifar10-PROCESS-{{base,small}}; cifar10-anisotropic-best. "
    f"Processes: {', '.join(_PROCESSES_OF_RECIPES)}."
)


def complete_process(incomplete: str) -> list[str]:
    """The processes that begin so."""
    return [name for name in PROCESSES if name.startswith(incomplete)]


def complete_recipe(incomplete: str) -> list[str]:
    """The recipes, and the processes for one's own images, that begin so."""
    return [name for name in (*RECIPES, *PROCESSES) if name.startswith(incomplete)]


def complete_dataset(incomplete: str) -> list[str]:
    """The datasets known by name that begin so."""
    return [name for name in DATASETS if name.startswith(incomplete)]
