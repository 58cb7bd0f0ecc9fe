"""The layers hold, and the house does not grow unnoticed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tools import architecture

EXCEPTIONS: set[str] = set()
"""Imports against the layers that are still there; "-> " alone is the package's own front door."""
CYCLES: set[tuple[str, str]] = set()
"""Pairs of modules that still import each other."""
LIMITS = architecture.Counts(
    files=247, code_lines=39817, all_code_lines=48132, wide_functions=0, any_lines=94
)
"""Lower them when you can; a feature may raise one in its own commit, with one line of reason here.

- `localize` streams answers and resumes a CSV file; `PlaceMap` has every verb; old names warn.
- No answer outside what was calibrated: domain of a calibration, out-of-map counterparts, twins, a second one
  without patches (files +2, code lines +450).
- Evaluations: the calibrated probability of a map, near-copies, intervals by session; labels of copies,
  junk images of every map (files +2, code lines +240, all +340).
- Evaluations and trainings report scores that say nothing; status, data and backbone of every number of the
  paper; seeds; fp16; time and memory of the paper's tables (files +2, code lines +530, all +650).
- The service decodes uploads in limited processes, and limits connections that wait (files +3, lines +300).
- Files, orders, options and presets of the authors' release, CosPlace and STUN; encoders of one's own (code
  lines +165, Any +1).
- Maps: checksums of the manifest and of blocks, one schema, models and images inside their folders, debris;
  checksums of indexes, embeddings, calibrations and exports (files +1, code lines +350, all +455).
- Patches stored in the map: codes and their codebook, the pass that computes them, storing them in older
  maps, their exchange, a benchmark (files +2, code lines +620, all +770, Any +1).
- `kappaplace audit`: thresholds of any system, intervals for clustered answers, readers of logs and of two
  other projects, whose pickles have one parser with the ground truth (files +6, code lines +580).
- `kappaplace geotag`: plans, XMP and EXIF without changing photos, a journal, a page; benchmarks of it and of
  fixed constants (files +3, code lines +714, all +952).
- Published encoders: their records, patches and single images for any encoder, messages; whitening of maps
  and its benchmark (files +3, code lines +520, all +630).
- Candidate sets, guarantees per group and anytime-valid alarms: three guarantees with their own formulas,
  and the simulation of the number of labels (files +4, code lines +800, all +950).
- Positions: calibrated radius, covariance, degrees, GeoJSON, GPX and KML, directions (files +3, code lines
  +590, all +880).
- Pairs of images: probability, lists for hloc, evidence and its drawing (files +4, code lines +640, all
  +900).
- Sequences: smoothing, follower, sources in order, sessions over HTTP, ROS messages (files +5, code lines
  +700, all +900, Any +5 for ROS messages).
- Page and API: problem details, URLs per map, streams, labels and drift over HTTP (files +5, lines +560).
- Reports and demo: the demo's map, `map show`, verdicts, intervals, folded answers (files +4, lines +640).
- Agreement 2 on arrays and its version; safe thresholds of rivals (files +1, code lines +150, all +750).
"""


def test_imports_point_to_earlier_layers() -> None:
    wrong = {str(edge) for edge in architecture.wrong_way(architecture.imports())}
    assert not wrong - EXCEPTIONS, "imports against the layers of tools/architecture.py"
    assert not EXCEPTIONS - wrong, "exceptions that are no longer needed: delete them"


@pytest.mark.parametrize("front", architecture.FRONT)
def test_the_front_uses_public_names_only(front: str) -> None:
    files = {name: path for name, path in architecture.modules().items() if architecture.home(name) == front}
    deep = {name: architecture.deep_imports(path.read_text("utf-8"), front) for name, path in files.items()}
    assert files
    assert not {name: paths for name, paths in deep.items() if paths}


def test_modules_do_not_import_each_other() -> None:
    cycles = set(architecture.lazy_cycles(architecture.imports()))
    assert not cycles - CYCLES, "modules that import each other"
    assert not CYCLES - cycles, "cycles that are gone: delete them from the list"


def test_there_is_no_other_protocol() -> None:
    """`Score` and `Reader` are records of functions; `Column` and `Record` describe data, not a step."""
    protocols = {
        f"{name}.{node.name}"
        for name, path in architecture.modules().items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases)
    }
    steps = {"models.encoder.Encoder", "retrieval.references.References"}
    assert protocols == {*steps, "retrieval.codes.Column", "records.Record"}


def test_one_module_builds_the_evidence() -> None:
    builders = {
        name
        for name, path in architecture.modules().items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Evidence"
    }
    assert builders == {"retrieval.evidence"}


@pytest.fixture(scope="module")
def counts() -> architecture.Counts:
    return architecture.count()


@pytest.mark.parametrize("figure", ["files", "code_lines", "all_code_lines", "wide_functions", "any_lines"])
def test_the_house_does_not_grow(figure: str, counts: architecture.Counts) -> None:
    assert getattr(counts, figure) <= getattr(LIMITS, figure)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A small package with one import of every kind."""
    top = tmp_path / "src" / "kappaplace"
    for name, text in {
        "__init__.py": "from kappaplace.maps.build import build",
        "errors.py": '"""Errors."""\n\n\nclass KappaPlaceError(Exception):\n    """Bad input."""\n',
        "data/__init__.py": "",
        "data/table.py": "def f():\n    from kappaplace.maps import build\n",
        "maps/__init__.py": "import kappaplace\n",
        "maps/build.py": (
            "from typing import TYPE_CHECKING, Any\n\n"
            "from ..data import table\nfrom kappaplace import errors\n"
            "if TYPE_CHECKING:\n    from kappaplace.evaluation.run import evaluate\n\n\n"
            "def build(a: Any, b, c, d, e, f, g, h, i):  # nine\n    # why\n    return a\n"
        ),
        "evaluation/run.py": "def evaluate(): ...\n",
    }.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    return tmp_path


def test_every_kind_of_import_counts(house: Path) -> None:
    edges = architecture.imports(house)
    assert {str(edge) for edge in edges} == {
        " -> maps.build",
        "data.table -> maps.build",
        "maps -> ",
        "maps.build -> data.table",
        "maps.build -> errors",
        "maps.build -> evaluation.run",
    }
    assert {str(edge) for edge in architecture.wrong_way(edges)} == {
        "data.table -> maps.build",
        "maps -> ",
        "maps.build -> evaluation.run",
    }
    assert architecture.lazy_cycles(edges) == [("data.table", "maps.build")]


@pytest.mark.parametrize(
    ("line", "deep"),
    [
        ("from kappaplace.maps import build", ["maps.build"]),
        ("from kappaplace.maps.build import build", ["maps.build"]),
        ("import kappaplace.data.table as table", ["data.table"]),
        ("from kappaplace.maps import PlaceMap\nfrom kappaplace import maps, errors", []),
        ("from kappaplace.errors import KappaPlaceError\nimport kappaplace.data", []),
        ("from kappaplace.evaluation import evaluate\nimport numpy.linalg", []),
    ],
)
def test_deep_imports(house: Path, line: str, deep: list[str]) -> None:
    assert architecture.deep_imports(line, root=house) == deep
    assert architecture.deep_imports(line, "maps", house) == [name for name in deep if name[:4] != "maps"]


def test_a_function_may_hide_its_module(house: Path) -> None:
    init = house / "src/kappaplace/maps/__init__.py"
    init.write_text("from kappaplace.maps.build import build\n")
    assert architecture.deep_imports("from kappaplace.maps import build", root=house) == []


def test_the_page_lists_every_module(house: Path) -> None:
    (house / "tests/maps").mkdir(parents=True)
    (house / "tests/maps/test_build.py").write_text("")
    text = architecture.page(house)
    assert "| `errors` | Errors. | `tests/` |" in text
    assert "| `maps.build` |  | `tests/maps/test_build.py` |" in text


def test_counts_leave_out_docstrings_comments_and_blank_lines(house: Path) -> None:
    counts = architecture.count(house)
    assert (counts.files, counts.wide_functions, counts.any_lines) == (7, 1, 1)
    assert counts.code_lines == counts.all_code_lines == 1 + 1 + 2 + 1 + 7 + 1
