"""The tests against the lowest and the highest versions that pyproject.toml allows.

    nox -s tests-lowest-3.11        every dependency at its floor
    nox -s tests-highest-3.11       every dependency at its newest

Python versions that are not installed are skipped; `nox -l` lists all sessions.
"""

from __future__ import annotations

import re
from pathlib import Path

import nox

PYTHONS = ["3.10", "3.11", "3.12", "3.13"]
TOOLS = ("pytest>=8", "hypothesis>=6.100", "mpmath>=1.3", "accelerate>=1.0", "tensorboard>=2.16")
CORE = (
    *(
        "tests/vmf/test_vmf.py",
        "tests/metrics",
        "tests/calibration",
        "tests/data",
        "tests/retrieval/test_exact.py",
    ),
    *("tests/maps/test_build.py", "tests/maps/test_store.py", "tests/maps/test_localize.py"),
    *("tests/models/test_checkpoint.py", "tests/models/test_foreign.py", "tests/evaluation"),
    *("tests/training/test_state.py", "tests/training/test_recipes.py"),
    *(
        "tests/cli/test_main.py",
        "tests/cli/test_map.py",
        "tests/cli/test_train.py",
        "tests/cli/test_evaluate.py",
    ),
)
"""Tests that need no extra but `train`, whose tracker files one of them reads."""
nox.options.error_on_missing_interpreters = False
nox.options.sessions = ["tests-lowest", "tests-highest"]


def floors() -> list[str]:
    """The dependencies of pyproject.toml with ``>=`` read as ``==``."""
    text = Path("pyproject.toml").read_text(encoding="utf-8")
    block = text.partition("\ndependencies = [")[2].partition("\n]")[0]
    return [
        re.sub(r">=", "==", line.strip().rstrip(",").strip('"'), count=1)
        for line in block.splitlines()
        if ">=" in line
    ]


# The floors have no wheels for 3.13 (NumPy 2.0, SciPy 1.13, pyarrow 16); pip takes newer ones there.
@nox.session(name="tests-lowest", python=PYTHONS[:-1])
def tests_lowest(session: nox.Session) -> None:
    session.install(*TOOLS, *floors(), ".")
    session.run("pytest", "-m", "not slow", *CORE, *session.posargs)


@nox.session(name="tests-highest", python=PYTHONS)
def tests_highest(session: nox.Session) -> None:
    session.install("--upgrade", *TOOLS, ".")
    session.run("pytest", "-m", "not slow", *CORE, *session.posargs)
