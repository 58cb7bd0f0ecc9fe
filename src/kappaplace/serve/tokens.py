"""Tokens come from the environment or a file, never from the command line, which everybody can list."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kappaplace.errors import KappaPlaceError

KINDS = ("read", "write")


def read_tokens(
    file: Path | None, read_variable: str, write_variable: str, environment: Mapping[str, str]
) -> dict[str, str]:
    """``read_token`` and ``write_token``, empty where there is none; the file wins."""
    found = {
        "read_token": environment.get(read_variable, ""),
        "write_token": environment.get(write_variable, ""),
    }
    return found if file is None else found | _from_file(file)


def _from_file(file: Path) -> dict[str, str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise KappaPlaceError(f"The token file {file} cannot be read: {reason}.") from None
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        words = line.split()
        if len(words) != 2 or words[0] not in KINDS:  # the line itself is secret, so it is not shown
            raise KappaPlaceError(f"Line {number} of {file} is not `read TOKEN` or `write TOKEN`.")
        found[f"{words[0]}_token"] = words[1]
    if not found:
        raise KappaPlaceError(f"The token file {file} holds no token; write `read TOKEN` into it.")
    return found
