"""Code blocks out of Markdown files, each with the name that its first line gives it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


WALK = re.compile(r"<!-- walk-through -->\n(.*?)<!-- end of walk-through -->\n", re.DOTALL)
"""The part of a guide that runs as a tutorial does."""


TAB = re.compile(r'^=== ".*"\n((?:\n|    .*\n)+)', re.MULTILINE)


def without_tabs(text: str) -> str:
    """Return a page with the content of its tabs at the margin."""
    return TAB.sub(lambda tab: re.sub(r"(?m)^    ", "", tab[1]), text)


def blocks(file: str | Path, language: str = "python") -> list[str]:
    """All fenced blocks of one language in their order, without those of a walk-through."""
    text = without_tabs(WALK.sub("", (ROOT / file).read_text(encoding="utf-8")))
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def named_blocks(file: str | Path) -> dict[str, str]:
    """Blocks by the comment in their first line."""
    found = {}
    for block in blocks(file):
        first, _, rest = block.partition("\n")
        found[first.removeprefix("# ")] = rest
    return found
