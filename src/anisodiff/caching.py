"""Constant tensors made once: an lru_cache whose entries do not depend on the moment they were made in."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def made_once(function: Callable[P, R]) -> Callable[P, R]:
    """Cache ``function`` by its (hashable) arguments.

    It runs outside of inference mode, whose tensors autograd refuses later, and with the CPU as default device.
    """

    @functools.lru_cache(maxsize=1024)
    @functools.wraps(function)
    def made(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.inference_mode(False), torch.device("cpu"):
            return function(*args, **kwargs)

    return made  # type: ignore[return-value]
