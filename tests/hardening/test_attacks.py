"""A part of `make attack`: failed writes, kills and attacks on the service, with few tries."""

from __future__ import annotations

import builtins
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kappaplace.files import write_file
from tests.attack import Row
from tests.attack.__main__ import table
from tests.attack.disk import KILLED, LOSE, UNDO, Disk
from tests.attack.verbs import REFUSED, VERBS, in_a_child, make_world
from tests.attack.writes import failures

ROOT = Path(__file__).parents[2]


def died(folder: Path, mode: str, number: int, work: object) -> int:
    """Run with a disk that fails in a process of its own."""

    def run() -> None:
        Disk(folder, mode, number).install()
        work()  # type: ignore[operator]

    return in_a_child(run, folder.parent / "log")


def test_the_disk_fails_as_asked(tmp_path: Path) -> None:
    """A test of the test: each call fails once, and what is not secured is lost."""
    folder, real = tmp_path / "disk", (builtins.open, io.open, os.replace)
    folder.mkdir()
    file = folder / "a"
    write_file(file, "old")
    calls = 0
    while died(folder, "error", calls, lambda: write_file(file, "new")) == REFUSED:
        assert file.read_text() in ("old", "new")
        write_file(file, "old")
        calls += 1
    assert calls == 4  # write, fsync, rename, fsync of the folder
    assert file.read_text() == "new"
    loose = folder / "loose"
    assert died(folder, LOSE, 3, lambda: (loose.write_text("12345678"), write_file(file, "x"))) == KILLED
    assert loose.read_text() == "1234"
    write_file(file, "old")
    assert died(folder, UNDO, 3, lambda: write_file(file, "new")) == KILLED
    assert file.read_text() == "old"  # the rename was not secured
    assert (builtins.open, io.open, os.replace) == real  # this process has its own disk


@pytest.mark.parametrize("name", ["build", "append", "remove", "compact"])
def test_failed_writes(name: str, tmp_path: Path) -> None:
    """Some calls of each operation in each mode; `make attack` has all of them."""
    world = make_world(tmp_path / "world")
    verb = next(verb for verb in VERBS if verb.name == name)
    wrong = [each for mode in ("error", UNDO) for each in failures(world, verb, mode, 4)]
    assert len(wrong) >= 6
    assert not any(wrong), wrong


@pytest.mark.slow
@pytest.mark.parametrize("part", ["kills=40", "writes=25", "service=1100"])
def test_attacks(part: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.attack", part],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr[-5000:]


def test_the_table_has_a_row_per_attack() -> None:
    text = table([("python -m tests.attack kills=9", Row("kills", 1200, 0, "all valid", 90.0))])
    assert text.splitlines()[2:] == [
        "| kills | 1,200 | 0 | all valid | 1.5 | `python -m tests.attack kills=9` |"
    ]
