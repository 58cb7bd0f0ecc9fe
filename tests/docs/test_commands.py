"""Every `kappaplace …` line of the documentation is a command that exists, with options that it has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from kappaplace.cli.main import app
from kappaplace.cli.options import VerbGroup
from tests.docs.markdown import ROOT, without_tabs

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
PROGRAM: Any = typer.main.get_command(app)
_FENCE = re.compile(r"^```(?:bash|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`(kappaplace [a-z][^`]*)`", re.DOTALL)


def lines(page: Path) -> Iterator[str]:
    """Commands in blocks, continued lines joined; and those in the text."""
    text = without_tabs(page.read_text(encoding="utf-8"))
    for block in _FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            yield from re.findall(r"(?:^|[|&;(]\s*|\s)(kappaplace [^|&;)]+)", line.partition(" #")[0])
    for found in _INLINE.findall(text):
        yield " ".join(found.split())


def wrong(line: str) -> str:
    """What is wrong with a command; empty for a good one."""
    words = shlex.split(line.replace("…", " "), posix=True)[1:]
    command = PROGRAM
    while words and hasattr(command, "commands"):
        if isinstance(command, VerbGroup):  # `models NAME`, `evaluate MODEL TABLE`
            words = command.with_command(words)
        if words[0].startswith("-") or words[0] not in command.commands:
            break
        command = command.commands[words.pop(0)]
    if hasattr(command, "commands") and words and not words[0].startswith("-"):
        return f"there is no command {words[0]!r}"
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
    known |= {"--help", "-h", "--install-completion", "--show-completion"}
    options = [word.partition("=")[0] for word in words if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", word)]
    missing = [option for option in options if option not in known]
    return f"{missing[0]} is no option of it" if missing else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_exist(page: Path) -> None:
    problems = {line: reason for line in lines(page) if (reason := wrong(line))}
    assert not problems


def test_the_check_itself_can_fail() -> None:
    assert "no command" in wrong("kappaplace mapp build photos/")
    assert "no option" in wrong("kappaplace map build photos/ --outt town.map")
    assert wrong("kappaplace map build photos/ --out town.map") == ""
    assert wrong("kappaplace models kappaplace-lite0 --json") == ""
    assert sum(len(list(lines(page))) for page in PAGES) > 150
