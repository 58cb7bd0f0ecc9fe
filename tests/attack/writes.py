"""Failed writes: every write, fsync and rename of every operation on a map fails once, or is the last one.

python -m tests.attack.writes [MOST PER OPERATION AND MODE]
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.attack import Row
from tests.attack.disk import KILLED, MODES, Disk
from tests.attack.verbs import (
    CRASHED,
    REFUSED,
    VERBS,
    Verb,
    World,
    content,
    in_a_child,
    make_world,
    whole_again,
)


def start(world: World, verb: Verb, place_map: Path) -> dict[str, object]:
    """Copy the map to start from; returns its content."""
    shutil.rmtree(place_map, ignore_errors=True)
    shutil.rmtree(Path(f"{place_map}.grave"), ignore_errors=True)
    if not verb.start:
        return {}
    shutil.copytree(world.folder / verb.start, place_map)
    return content(place_map)


def attempt(world: World, verb: Verb, place_map: Path, disk: Disk, after: dict[str, object]) -> str | None:
    """Run with a disk that fails; returns what is wrong, or None if the operation ended before."""
    before = start(world, verb, place_map)
    log, counted = world.folder / "log.txt", world.folder / "count.txt"
    log.unlink(missing_ok=True)

    def work() -> None:
        disk.install()
        try:
            verb.run(world, place_map)
        finally:
            counted.write_text(str(disk.count))

    status = in_a_child(work, log)
    if status == CRASHED:
        return f"traceback: {log.read_text()}"
    if status not in (0, REFUSED, KILLED):
        return f"exit status {status}"
    if status == 0 and disk.number >= int(counted.read_text()):
        return None
    return whole_again(world, verb, place_map, before, after)


def failures(world: World, verb: Verb, mode: str, most: int) -> Iterator[str]:
    """Fail each call in turn, or every so manyth; yields what is wrong with each."""
    place_map = world.folder / "attacked.map"
    start(world, verb, place_map)
    verb.run(world, place_map)
    after = content(place_map)
    count_all = world.folder / "count.txt"
    attempt(world, verb, place_map, Disk(place_map), after)
    total = int(count_all.read_text())
    step = max(1, -(-total // most)) if most else 1
    for number in range(0, total, step):
        wrong = attempt(world, verb, place_map, Disk(place_map, mode, number), after)
        if wrong is not None:
            yield wrong and f"{verb.name}, {mode}, call {number}: {wrong}"


def run(tries: int, seed: int) -> list[Row]:
    """Fail every call of every operation in every mode.

    Args:
        tries: Largest number of calls per operation and mode; 0 for all.
        seed: Not used: calls are counted, not drawn.

    Returns:
        One row per operation.
    """
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        world = make_world(Path(scratch) / "world")
        for verb in VERBS:
            begin, count, bad = time.monotonic(), 0, 0
            for mode in MODES:
                for wrong in failures(world, verb, mode, tries):
                    count += 1
                    bad += bool(wrong)
                    if wrong:
                        print(wrong[:1500], file=sys.stderr)
            result = "nothing lost or doubled, next run succeeds" if not bad else f"{bad} maps harmed"
            rows.append(Row(f"failed writes, {verb.name}", count, bad, result, time.monotonic() - begin))
    return rows


def main(tries: str = "0") -> int:
    rows = run(int(tries), 0)
    for row in rows:
        print(row)
    return int(any(row.bad for row in rows))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
