"""Kills: operations on a map end at any moment, again and again; the map stays valid and the command resumes.

python -m tests.attack.kills [TRIES] [SEED]
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from tests.attack import Row
from tests.attack.verbs import FORK, VERBS, content, make_world, whole_again
from tests.attack.writes import start

OFTEN = ("build", "append", "remove", "compact")
"""Most kills are for these; calibrate and fit take longer and get one of ten each."""


def run(tries: int, seed: int) -> list[Row]:
    """Kill processes that change a map.

    Args:
        tries: Number of kills.
        seed: Random seed of the moments.

    Returns:
        One row.
    """
    chance, begin, bad, kills = random.Random(seed), time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        world = make_world(Path(scratch) / "world")
        place_map, after, seconds = world.folder / "attacked.map", {}, {}
        for verb in VERBS:
            start(world, verb, place_map)
            process = FORK.Process(target=verb.run, args=(world, place_map))
            clock = time.monotonic()
            process.start()
            process.join()
            seconds[verb.name] = time.monotonic() - clock
            after[verb.name] = content(place_map)
        while kills < tries:
            often = [verb for verb in VERBS if (verb.name in OFTEN) == (chance.random() < 0.8)]
            verb = chance.choice(often or list(VERBS))
            before = start(world, verb, place_map)
            process = FORK.Process(target=verb.run, args=(world, place_map))
            process.start()
            process.join(chance.uniform(0, seconds[verb.name]))
            if process.exitcode is not None:  # it was faster than usual
                continue
            process.kill()
            process.join()
            kills += 1
            wrong = whole_again(world, verb, place_map, before, after[verb.name])
            if wrong:
                bad += 1
                print(f"{verb.name}, kill {kills}: {wrong}"[:1500], file=sys.stderr)
    result = "every map valid, every command resumed" if not bad else f"{bad} maps harmed"
    return [Row("kills", kills, bad, result, time.monotonic() - begin)]


def main(tries: str = "500", seed: str = "0") -> int:
    (row,) = run(int(tries), int(seed))
    print(row)
    return int(row.bad > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
