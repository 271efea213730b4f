"""A griffe extension: examples in docstrings (`>>> ...`) are shown as code on the site."""

from __future__ import annotations

import re

from griffe import Docstring, Extension, Object

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\n|\Z).+)*", re.MULTILINE)


class Examples(Extension):
    """Puts each example into a block of code."""

    def on_object(self, *, obj: Object, **kwargs: object) -> None:
        """Change the docstring of one object."""
        if isinstance(obj.docstring, Docstring):
            obj.docstring.value = EXAMPLE.sub(lambda one: f"```pycon\n{one[0]}\n```", obj.docstring.value)
