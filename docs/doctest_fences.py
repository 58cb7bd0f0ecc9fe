"""An extension of griffe: examples in docstrings become blocks of code instead of quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^>>> .*\n(?:^(?:\.\.\. ?|(?!>>>)\S).*\n?|^>>> .*\n?)*)", re.MULTILINE)


def fenced(text: str) -> str:
    """Put every run of ``>>>`` lines, with what they print, between fences."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text + "\n").rstrip("\n")


class DoctestFences(griffe.Extension):
    """Rewrites docstrings before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **rest: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
