"""``kappaplace doctor``: what this installation can do, and what to mend."""

from __future__ import annotations

import json
from typing import Annotated

import typer

_MARKS = {"ok": ("✓", "green"), "absent": ("–", "white"), "warning": ("!", "yellow"), "problem": ("✗", "red")}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Look at versions, devices, extras, the pretrained model and the cache; say how to mend what is wrong.

    Exit code 0: everything that must work does; 1: something does not.

    Examples:

        kappaplace doctor

        kappaplace doctor --json | jq '.checks[] | select(.state == "problem")'
    """
    from kappaplace.doctor import as_rows, examine, sound

    checks = examine()
    good = sound(checks)
    if as_json:
        typer.echo(json.dumps({"sound": good, "checks": as_rows(checks)}, indent=2))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            mark, colour = _MARKS[check.state]
            typer.echo(f"{typer.style(mark, fg=colour)} {check.name:<{width}}  {check.found}")
            if check.fix:
                typer.echo(f"  {'':<{width}}  → {check.fix}")
        typer.echo("All that must work does." if good else "Something will not work: see ✗ above.")
    if not good:
        raise typer.Exit(1)
