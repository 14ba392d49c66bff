"""Import of optional packages."""

import importlib
from types import ModuleType


def need(module: str, purpose: str, extra: str | None = None) -> ModuleType:
    """Import an optional package; the ValueError if it is missing says what needs it and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        how = package if extra is None else f"'anisodiff[{extra}]'"
        raise ValueError(f"{purpose} needs the package {package}: pip install {how}") from error
