"""Mutation test: would the tests notice a wrong formula?

Each mutant is the source with one slip (`operators`): a comparison, an operator, a number, a sign, a call. It
is written into a copy of the tree, and the tests of its package that run the changed line run against it
(`runner`). A mutant that no test notices has survived. Those that cannot change any result are listed, with
the reason, in equivalent.txt.

    python -m tests.mutation.mutate --sample 200 --least 0.85 --csv results/mutation.csv
"""

from __future__ import annotations

import argparse
import csv
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.mutation.operators import Mutant, mutants
from tests.mutation.runner import Chosen, Selection, fails, prepare

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
PACKAGES = {
    "vmf": ["tests/vmf", "src/kappaplace/vmf"],
    "uncertainty": [
        "tests/uncertainty",
        "src/kappaplace/uncertainty",
        "tests/retrieval/test_patch_codes.py",
        "tests/slam/test_cells.py",
        "tests/maps/test_verify_matches.py",
    ],
    "metrics": ["tests/metrics", "src/kappaplace/metrics"],
}
MODULES = {
    "uncertainty": ["uncertainty/*.py", "retrieval/evidence.py", "retrieval/patches.py"],
}
"""What the tests of a package must notice, if that is more than the package itself."""


class Case(NamedTuple):
    """A mutant and its file inside the package."""

    path: str
    mutant: Mutant

    def __str__(self) -> str:
        return f"{self.path}\n- {self.mutant.before}\n+ {self.mutant.after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--packages", nargs="+", default=list(PACKAGES), choices=list(PACKAGES))
    parser.add_argument("--sample", type=int, help="mutants of each package, drawn at random; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", type=Path, help="only those that this output of an earlier run shows")
    parser.add_argument("--least", type=float, default=0.0, help="share killed that each package must reach")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    killed: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        tree = Path(folder).resolve()
        for part in ("src", "tests", "pyproject.toml"):
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, tree / part)
        prepare(tree, [test for package in options.packages for test in PACKAGES[package]])
        for package in options.packages:
            cases = cases_of(package, tree)
            if options.again:
                cases = [case for case in cases if listed(case, options.again)]
            if options.sample and options.sample < len(cases):
                cases = random.Random(options.seed).sample(cases, options.sample)
            watched = sorted({str(Path(path).parent) for path in patterns_of(package)})
            selection = Selection(tree, package, watched, PACKAGES[package])
            print(f"{package}: {len(cases)} mutants against {len(selection.seconds)} tests\n", flush=True)
            for case in cases:
                counts[case.path] += 1
                if is_noticed(case, tree, selection):
                    killed[case.path] += 1
                else:
                    print(f"{case}\n  survived, line {case.mutant.lines.start}\n", flush=True)
    sys.exit(report(counts, killed, options.least, options.csv and ROOT / options.csv))


def cases_of(package: str, tree: Path) -> list[Case]:
    """Every mutant of a package but those that are listed as equivalent."""
    top = tree / "src/kappaplace"
    paths = sorted(
        path for pattern in MODULES.get(package, [f"{package}/*.py"]) for path in top.glob(pattern)
    )
    texts = {str(path.relative_to(top)): path.read_text("utf-8") for path in paths}
    every = [Case(path, mutant) for path, text in texts.items() for mutant in mutants(text)]
    return [case for case in every if not listed(case, EQUIVALENT)]


def patterns_of(package: str) -> list[str]:
    """The files that the tests of a package must notice a change in."""
    return MODULES.get(package, [f"{package}/*.py"])


def package_of(path: str) -> str:
    """The package whose tests must notice what changes in this file."""
    return next((name for name, own in MODULES.items() if path in own), path.split("/")[0])


def listed(case: Case, text: Path) -> bool:
    """Whether a file of blocks like those printed for survivors holds this one."""
    return f"\n{case}\n" in "\n" + text.read_text("utf-8")


def is_noticed(case: Case, tree: Path, selection: Selection) -> bool:
    """Run what may notice the mutant against it."""
    file = tree / "src/kappaplace" / case.path
    tests = selection.of(file, case.mutant.lines)
    if not tests:
        return False
    for stale in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        stale.unlink()
    original = file.read_text("utf-8")
    file.write_text(case.mutant.source, "utf-8")
    noticed = fails(sorted({test.split("::")[0] for test in tests}), Chosen(tests))
    file.write_text(original, "utf-8")
    return noticed


def report(counts: Counter[str], killed: Counter[str], least: float, out: Path | None) -> int:
    """Print and write a row a file and a row a package; 1 where a package is below what is asked."""
    packages: Counter[str] = Counter()
    dead: Counter[str] = Counter()
    for path in counts:
        packages[package_of(path)] += counts[path]
        dead[package_of(path)] += killed[path]
    rows = [(path, counts[path], killed[path]) for path in sorted(counts)]
    rows += [(name, packages[name], dead[name]) for name in packages]
    table = [("module", "mutants", "killed", "share")]
    table += [(name, str(n), str(k), f"{k / n:.3f}") for name, n, k in rows]
    for row in table:
        print(f"{row[0]:36} {row[1]:>8} {row[2]:>7} {row[3]:>6}")
    if out is not None:
        day = time.strftime("%Y-%m-%d", time.gmtime())
        with out.open("w", newline="", encoding="utf-8") as file:
            rows_out = [(*row, day if i else "date") for i, row in enumerate(table)]
            csv.writer(file, lineterminator="\n").writerows(rows_out)
    return int(any(dead[name] < least * packages[name] for name in packages))


if __name__ == "__main__":
    main()
