"""Triton's interpreter with numpy 2.4 and later: `tl.range` up to a number that a kernel is given."""

from typing import Any


def allow_ranges() -> None:
    """The interpreter (3.6) reads such a number by int(array of one element), which numpy refuses since 2.4."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_core

    def number(value: Any) -> int:
        return int(value.handle.data.item()) if hasattr(value, "handle") else int(getattr(value, "value", value))

    def patched(lang: Any, scope: Any) -> None:
        patch(lang, scope)
        scope.set_attr(lang, "range", lambda *bounds, **options: range(*map(number, bounds)))

    interpreter._patch_lang_core = patched
