"""The tests of a changed tree, run in a forked process that has torch and all else imported already."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import hypothesis
import pytest
from coverage import CoverageData

MEMORY = 24 << 30  # bytes of address space: a wrong length must not take the machine
CPU_SECONDS = 90  # a test run that needs more will not end
FLAGS = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow"]


class Recorder:
    """A pytest plugin that notes how long each test takes."""

    def __init__(self, out: Path) -> None:
        self.seconds: dict[str, float] = {}
        self.out = out

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        self.out.write_text(json.dumps(self.seconds), "utf-8")


class Chosen:
    """A pytest plugin that runs these tests alone, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self.rank = {test: i for i, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.rank), key=lambda i: self.rank[i.nodeid])


def prepare(tree: Path, tests: Sequence[str]) -> None:
    """Import once, here, whatever the tests import; what is under test is then forgotten again."""
    sys.path[:0] = [str(tree), str(tree / "src")]
    os.chdir(tree)
    os.environ.pop("CI", None)
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # no shrinking: one failure is enough
    hypothesis.settings.register_profile("mutation", derandomize=True, database=None, phases=phases)
    import torch._dynamo  # noqa: F401

    forget()
    with contextlib.redirect_stdout(io.StringIO()):
        if pytest.main(["--collect-only", "-p", "no:cacheprovider", *tests]) != 0:
            raise SystemExit("The tests cannot be collected.")
    assert sys.modules["kappaplace"].__file__ == str(tree / "src/kappaplace/__init__.py")
    forget()
    sys.dont_write_bytecode = True


def forget() -> None:
    """Let the next import of the package and its tests read the files anew."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("kappaplace", "tests")]:
        del sys.modules[name]


class Selection:
    """Which tests run which lines, the quickest first; from one run of the unchanged tree."""

    def __init__(self, tree: Path, package: str, watched: Sequence[str], tests: Sequence[str]) -> None:
        self._seconds_of = tree / f"{package}.json"
        self._data = tree / f"{package}.coverage"
        os.environ["COVERAGE_FILE"] = str(self._data)
        measured = [f"--cov=kappaplace.{name}" for name in watched]
        if fails([*measured, "--cov-context=test", "--cov-report=", *tests], Recorder(self._seconds_of)):
            raise SystemExit(f"The tests of {package} fail without any mutation: make them pass first.")
        self.seconds: dict[str, float] = json.loads(self._seconds_of.read_text("utf-8"))
        self._covered = CoverageData(str(self._data))
        self._covered.read()

    def of(self, file: Path, lines: range) -> list[str]:
        """Tests that run one of these lines; all tests where they run on import."""
        by_line = self._covered.contexts_by_lineno(str(file))
        contexts = {context for line in lines for context in by_line.get(line, ())}
        found = self.seconds if "" in contexts else {c.rpartition("|")[0] for c in contexts}
        return sorted(found, key=lambda test: self.seconds.get(test, 0.0))


def fails(arguments: Sequence[str], plugin: object) -> bool:
    """Whether a test fails, or nothing can be imported, or it does not end: all in a child process."""
    child = os.fork()
    if child == 0:
        try:
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            os._exit(int(pytest.main([*FLAGS, "--hypothesis-profile=mutation", *arguments], [plugin])))
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] != 0
