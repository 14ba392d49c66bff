"""Griffe extension of the site: shapes in docstrings, as in "E[x0 | u] [B, C, H, W]", are not Markdown links."""

import griffe


class Brackets(griffe.Extension):
    """Puts a zero-width space between two brackets, which Markdown would read as a reference."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("] [", "]\u200b [").replace("][", "]\u200b[")
