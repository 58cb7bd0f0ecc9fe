"""Run all attacks and print a table: attack, tries, result, minutes, command.

python -m tests.attack [PART=TRIES …]
"""

from __future__ import annotations

import importlib
import sys

from tests.attack import Row

PARTS = {"kills": 500, "writes": 0, "maps": 2000, "service": 1100, "inputs": 3000}
"""Modules and their tries; 0 means every write. The last one limits the memory of its process."""


def table(rows: list[tuple[str, Row]]) -> str:
    """Return the rows as Markdown; the exact command repeats one part."""
    lines = ["| attack | tries | bad | result | minutes | command |", "|---|---|---|---|---|---|"]
    for command, row in rows:
        cells = (row.attack, f"{row.tries:,}", str(row.bad), row.result, f"{row.seconds / 60:.1f}")
        lines.append(f"| {' | '.join(cells)} | `{command}` |")
    return "\n".join(lines)


def main(words: list[str]) -> int:
    """Run the parts that are named, or all; the exit code is 1 if anything went wrong."""
    parts = {word.partition("=")[0]: int(word.partition("=")[2]) for word in words} or PARTS
    rows: list[tuple[str, Row]] = []
    for part, tries in parts.items():
        command = f"python -m tests.attack {part}={tries}"
        print(f"{command} …", file=sys.stderr, flush=True)
        rows += [(command, row) for row in importlib.import_module(f"tests.attack.{part}").run(tries, 0)]
    print(table(rows))
    return int(any(row.bad for _, row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
