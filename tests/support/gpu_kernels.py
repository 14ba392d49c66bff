"""Triton without a GPU: its interpreter, and its compiler for one that is not there."""

import contextlib
import importlib.util
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

CUDA = torch.cuda.is_available()
HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = not CUDA and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if CUDA else "cpu"
needs_cuda = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
needs_compiler = pytest.mark.skipif(INTERPRETED or not HAS_TRITON, reason="needs Triton's compiler")
runs_kernels = pytest.mark.skipif(not HAS_TRITON or not (CUDA or INTERPRETED), reason="needs Triton's interpreter")
starts_interpreter = pytest.mark.skipif(CUDA or INTERPRETED or not HAS_TRITON, reason="runs the tests above")


def run_interpreted(file: str, *, least: int, only: str = "") -> None:
    """Run the tests of ``file`` in Triton's interpreter: ``least`` of them pass before any is skipped.

    Triton reads its switch when it is imported, so the interpreter needs a process of its own.
    """
    which = f"{file}::{only}" if only else file
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", which],
        env={**os.environ, "TRITON_INTERPRET": "1"}, cwd=Path(__file__).parents[2],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("." * least), done.stdout


def allow_ranges() -> None:
    """`tl.range` up to a number that a kernel is given.

    The interpreter (3.6) reads that number by int(array of one element), which numpy refuses since 2.4.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_core

    def number(value: Any) -> int:
        return int(value.handle.data.item()) if hasattr(value, "handle") else int(getattr(value, "value", value))

    def patched(lang: Any, scope: Any) -> None:
        patch(lang, scope)
        scope.set_attr(lang, "range", lambda *bounds, **options: range(*map(number, bounds)))

    interpreter._patch_lang_core = patched


@dataclass(frozen=True)
class Variant:
    """A kernel as it would be compiled: types of its arguments, constants, which arguments are multiples of 16."""

    kernel: Any = field(repr=False)
    name: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: tuple[str, ...]
    warps: int

    def compile(self, capability: int = 90) -> Any:
        """For a GPU of that compute capability (90: H100, H200)."""
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        places = {name: (i,) for i, (name, _) in enumerate(self.signature)}
        source = ASTSource(
            self.kernel, dict(self.signature), {places[name]: value for name, value in self.constants},
            {places[name]: [["tt.divisibility", 16]] for name in self.aligned},
        )  # fmt: skip
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": self.warps})


_KINDS = {"float32": "*fp32", "bfloat16": "*bf16", "int64": "*i64"}


def _variant(kernel: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Variant:
    """Numbers equal to 1 and multiples of 16 get a variant of their own, unless the kernel says otherwise."""
    warps = options.pop("num_warps", 4)
    given = inspect.signature(kernel.fn).bind(*args, **options).arguments
    signature, constants, aligned = [], [], []
    for parameter in kernel.params:
        name, value = parameter.name, given[parameter.name]
        special = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (special and type(value) is int and value == 1):
            signature.append((name, "constexpr"))
            constants.append((name, value))
            continue
        if isinstance(value, Tensor):
            signature.append((name, _KINDS[str(value.dtype).removeprefix("torch.")]))
        else:
            signature.append((name, "fp32" if isinstance(value, float) else "i32" if abs(value) < 2**31 else "i64"))
        whole = value.data_ptr() if isinstance(value, Tensor) else value
        if special and isinstance(whole, int) and whole % 16 == 0:
            aligned.append(name)
    return Variant(kernel, kernel.fn.__name__, tuple(signature), tuple(constants), tuple(aligned), warps)


@contextlib.contextmanager
def launches() -> Iterator[list[Variant]]:
    """The variants that are launched inside; none runs, and what they would have written stays as it was."""
    from triton.runtime.jit import JITFunction

    seen: list[Variant] = []

    def note(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        variant = _variant(self, args, options)
        if variant not in seen:
            seen.append(variant)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", note)
        yield seen
