"""torch.compile as a switch: one compiled version per function, made at its first use."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch


@lru_cache(maxsize=64)
def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def compiled(function: Callable[..., Any], wanted: bool) -> Callable[..., Any]:
    """``function``, compiled if wanted. One small function at a time: unrolled loops take minutes to compile."""
    return _compile(function) if wanted else function
