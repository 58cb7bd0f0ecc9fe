"""Every command of ``kappaplace`` as a list, so that no test has to name them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_type_hints

import pytest
import typer

from kappaplace.cli import main as command_line


@dataclass(frozen=True)
class Option:
    """One argument or option of a command."""

    name: str
    flag: str
    """``--k``; empty for an argument."""
    required: bool
    kind: str
    """``int``, ``float``, ``Path``, ``str`` or ``bool``, lists and pairs included."""


@dataclass(frozen=True)
class Command:
    """A command and what it can be given."""

    words: tuple[str, ...]
    options: tuple[Option, ...]

    def __str__(self) -> str:
        return "-".join(self.words)


def _kinds(callback: Any) -> dict[str, str]:
    """The plain type of each parameter, read off its annotation: the same with every version of typer."""
    kinds = {}
    for name, hint in get_type_hints(callback).items():  # options of records, too
        found = re.search(r"\b(int|float|bool|Path)\b", str(hint))
        kinds[name] = found[1] if found else "str"
    return kinds


def commands() -> Iterator[Command]:
    """All of them, groups opened."""
    todo: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_command(command_line.app))]
    while todo:
        words, command = todo.pop()
        below = getattr(command, "commands", None)
        if below:
            todo += [((*words, name), each) for name, each in below.items()]
            continue
        kinds = _kinds(command.callback)
        options = tuple(
            Option(
                each.name,
                "" if each.param_type_name == "argument" else each.opts[0],
                each.required,
                kinds.get(each.name, "str"),
            )
            for each in command.params
            if each.name != "help"
        )
        yield Command(words, options)


COMMANDS = sorted(commands(), key=str)
_PARSER = typer.main.get_command(command_line.app)  # made once: it takes longer than most refusals


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Exit code of ``kappaplace WORDS`` in this process; anything but an exit is a traceback to the user."""
    monkeypatch.setattr(sys, "argv", ["kappaplace", *map(str, words)])
    monkeypatch.setattr(command_line, "app", _PARSER)
    with pytest.raises(SystemExit) as stop:
        command_line.main()
    return int(stop.value.code or 0)
