"""Optional packages: imported where they are used, and named in one line where they are missing."""

import importlib
from types import ModuleType


def need(module: str, purpose: str, extra: str | None = None) -> ModuleType:
    """The optional package, or a ValueError that says what needs it and how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        how = package if extra is None else f"'anisodiff[{extra}]'"
        raise ValueError(f"{purpose} needs the package {package}: pip install {how}") from error
