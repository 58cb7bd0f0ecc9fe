"""Attacks on files, commands and the service, each a module with ``run(tries, seed) -> list[Row]``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """Result of one attack."""

    attack: str
    tries: int
    bad: int
    """Number of tries with a traceback, a hang or a wrong answer."""
    result: str
    seconds: float
