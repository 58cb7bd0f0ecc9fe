"""Damaged files for every command that reads one: a message or a result, never a traceback and never a hang.

python -m tests.attack.inputs [TRIES] [SEED] [START OF A COMMAND]
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from kappaplace.cli import main as command_line
from kappaplace.data.table import PlaceImages
from kappaplace.maps import PlaceMap
from kappaplace.maps.exchange import export_map
from kappaplace.training.recipes import settings_for
from tests.attack import Row
from tests.attack.mutations import mutated
from tests.hardening.commands import _PARSER
from tests.hardening.valid import world

HANG_SECONDS = 30
MEMORY = 16 << 30
"""Address space: a damaged size must not take the memory of the machine."""
ALLOWED = (0, 1, 2)
"""Exit codes: success, problems that were reported, bad input."""
EVALUATION = "--out judged2 --no-report --resamples 5"

CASES = {
    "calibrate town.map --queries table.parquet --max-risk 0.5": "table.parquet town.map/*",
    "calibrate town.map --labels labels.csv": "labels.csv",
    "calibrate town.map --self": "town.map/*",
    "compare judged judged --resamples 5": "judged/results.json judged/*.parquet",
    "compare judged other --resamples 5": "other/results.json other/*.parquet",
    "compare judged --against inverse-kappa --resamples 5 --out compared --no-report": "judged/*",
    "data check table.parquet": "table.parquet",
    "data check table.csv": "table.csv",
    "data import csv images --out new.parquet": "images/poses.csv",
    "data import photos images --out new.csv": "images/000.png",
    "data import gt-json pairs --out new.parquet": "pairs/gt.json",
    "data import vpr-bench bench --out new.parquet": "bench/ground_truth_new.npy",
    "data show table.parquet --out picture.png": "table.parquet",
    "data split table.csv --out split --by area --block 60": "table.csv",
    f"evaluate descriptors queries.npy references.npy --positives positives.json {EVALUATION}": (
        "queries.npy references.npy positives.json"
    ),
    f"evaluate matrix similar.npz --positives positives.json {EVALUATION}": "similar.npz positives.json",
    f"evaluate model model table.parquet {EVALUATION}": "model/* table.parquet",
    "localize town.map images/000.png": "town.map/* images/000.png",
    "localize town.map asked --csv answers.csv": "answers.csv",
    "map add town.map asked/000.png --prefix new/ --on-error skip": "asked/000.png town.map/*",
    "map build table.parquet --out new.map --model model": "table.parquet model/*",
    "map build images --out new.map --model model --on-error skip": "images/001.png",
    "map compact town.map": "town.map/*",
    "map export town.map --out exported2.parquet": "town.map/*",
    "map export town.map --out pairs.txt --queries table.parquet": "table.parquet town.map/*",
    "map fit town.map --estimate": "town.map/*",
    "map import exported.npz --out imported.map": "exported.npz",
    "map import exported.parquet --out imported.map": "exported.parquet",
    "map info town.map": "town.map/manifest.json",
    "map label town.map asked --out labels.csv": "labels.csv",
    "map monitor town.map answers.csv": "answers.csv town.map/manifest.json",
    "map monitor town.map answers.jsonl --picture drift.png": "answers.jsonl state.json",
    "map monitor town.map answers.csv --state state.json": "state.json answers.csv",
    "map reembed town.map --model model": "town.map/* model/card.json",
    "map remove town.map --from names.txt": "names.txt town.map/*",
    "map verify town.map": "town.map/*",
    "slam calibrate images --truth odometry.tum --odometry odometry.tum --out c.json --model model": (
        "odometry.tum"
    ),
    "slam run images --odometry odometry.tum --out drive --model model --calibration closures.json": (
        "odometry.tum closures.json"
    ),
    "train kappa-pt --config settings.toml --data none.parquet --out run": "settings.toml",
}
"""Command → the files that are damaged, one per try."""


class Hang(BaseException):
    """A command takes too long; not an `Exception`, so that no command catches it."""


def called(words: list[str]) -> tuple[int, str]:
    """Exit code and output of a command in this process; other exceptions pass."""
    out = io.StringIO()
    before, sys.argv = sys.argv, ["kappaplace", *words]
    real, command_line.app = command_line.app, _PARSER  # type: ignore[assignment]
    typed, sys.stdin = sys.stdin, io.StringIO("q\n")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            command_line.main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv, command_line.app, sys.stdin = before, real, typed
    return code, out.getvalue()


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder."""
    home = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(home)


def whole_world(folder: Path) -> None:
    """Every file that the commands of `CASES` read."""
    world(folder)
    PlaceImages.open(folder / "table.parquet").save(folder / "table.csv")
    town = PlaceMap.open(folder / "town.map")
    export_map(town.store, folder / "exported.npz")
    export_map(town.store, folder / "exported.parquet")
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(24, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.save(folder / "queries.npy", rows[:10])
    np.save(folder / "references.npy", rows)
    np.savez(folder / "similar.npz", A=(rows[:10] @ rows.T))
    (folder / "positives.json").write_text(json.dumps([[i] for i in range(10)]))
    (folder / "settings.toml").write_text(settings_for("kappa-pt", "", []).to_toml())
    (folder / "names.txt").write_text("001.png\n002.png\n")
    for name, sides in (("pairs", ("query", "ref")), ("bench", ("query", "ref"))):
        for side in sides:
            (folder / name / side).mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (8, 8), (i * 9, 0, 0)).save(folder / name / side / f"{i:03d}.jpg")
    (folder / "pairs" / "gt.json").write_text(json.dumps({"positives": [[0], [1], [2], [3]]}))
    pairs = np.array([[i, [i]] for i in range(4)], dtype=object)
    np.save(folder / "bench" / "ground_truth_new.npy", pairs, allow_pickle=True)
    with inside(folder):
        setup = (
            "evaluate ./model table.parquet --out judged --no-report --resamples 5",
            "localize town.map asked --csv answers.csv",
            "map label town.map asked --out labels.csv",
            "map monitor town.map answers.csv --state state.json",
        )
        for line in setup:
            code, said = called(line.split())
            assert code == 0, (line, said)
        code, said = called(["localize", "town.map", "asked", "--json"])
        assert code == 0, said
        (folder / "answers.jsonl").write_text(said)
        shutil.copytree("judged", "other")


def targets(folder: Path, pattern: str) -> list[Path]:
    """The files of a case, without those that locks leave."""
    files: list[Path] = []
    for part in pattern.split():
        matches = sorted(folder.rglob(part)) if part.endswith("/*") else sorted(folder.glob(part))
        for match in matches:
            files += (
                [match] if match.is_file() else sorted(each for each in match.rglob("*") if each.is_file())
            )
    return [file for file in dict.fromkeys(files) if file.name != "writer.lock"]


def attempt(words: list[str]) -> str:
    """Run a command; returns what is wrong with its end, or nothing."""
    signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
    faulthandler.dump_traceback_later(4 * HANG_SECONDS, exit=True)  # a loop outside Python
    try:
        code, said = called(words)
    except Hang:
        return "hang"
    except BaseException:
        return traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
    if code not in ALLOWED:
        return f"exit code {code}: {said}"
    return said if "Traceback" in said else ""


def run(tries: int, seed: int, only: str = "") -> list[Row]:
    """Damage files and run commands on them. The memory of this process is limited from now on.

    Args:
        tries: Number of cases, spread evenly over the commands.
        seed: Random seed.
        only: Start of the commands to run. Default: all.

    Returns:
        One row.
    """
    begin, chance, ends = time.monotonic(), random.Random(seed), Counter[str]()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    signal.signal(signal.SIGALRM, _hang)
    with tempfile.TemporaryDirectory() as scratch:
        whole, copy = Path(scratch) / "whole", Path(scratch) / "copy"
        os.environ["KAPPAPLACE_CACHE"] = str(Path(scratch) / "cache")
        whole_world(whole)
        cases = [(line, targets(whole, pattern)) for line, pattern in CASES.items() if line.startswith(only)]
        assert all(files for _, files in cases), [line for line, files in cases if not files]
        for number in range(tries):
            line, files = cases[number % len(cases)]
            file = chance.choice(files)
            shutil.copytree(whole, copy)
            damaged = mutated(file.read_bytes(), file.suffix, chance)
            (copy / file.relative_to(whole)).write_bytes(damaged)
            with inside(copy):
                wrong = attempt(line.split())
            shutil.rmtree(copy)
            ends["wrong" if wrong else "fine"] += 1
            if wrong:
                where = file.relative_to(whole)
                print(f"--- try {number}: {line}\n    damaged: {where}\n{wrong[-3000:]}", file=sys.stderr)
    bad = ends["wrong"]
    return [Row("damaged files, every command", tries, bad, _result(bad), time.monotonic() - begin)]


def _result(bad: int) -> str:
    return "0 tracebacks, 0 hangs" if not bad else f"{bad} tracebacks or hangs"


def _hang(*_: object) -> None:
    raise Hang


def main(tries: str = "3000", seed: str = "0", only: str = "") -> int:
    """Print the row; the exit code is 1 if anything went wrong."""
    (row,) = run(int(tries), int(seed), only)
    print(row)
    return int(row.bad > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
