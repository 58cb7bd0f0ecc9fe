"""The notebooks of examples/ run from the first cell to the last; they store no outputs."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from tests.docs.markdown import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    plt.switch_backend("agg")
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells(file)):
        exec(compile("".join(cell["source"]), f"{file.name}, cell {number + 1}", "exec"), names)
    assert plt.get_fignums()
    plt.close("all")


def cells(file: Path) -> list[dict]:
    """All code cells."""
    return [
        cell for cell in json.loads(file.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"
    ]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_no_outputs_are_stored(file: Path) -> None:
    assert cells(file)
    assert not [cell for cell in cells(file) if cell["outputs"] or cell["execution_count"]]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_valid(file: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="needs the extra 'notebooks'")
    nbformat.validate(nbformat.read(file, as_version=4))


def test_every_example_is_listed_and_tested() -> None:
    """Each file is in the table of examples/README.md, and a test names it."""
    table = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    files = [path for path in (ROOT / "examples").rglob("*.*") if path.suffix in (".py", ".cpp", ".ipynb")]
    assert len(files) == 7
    for file in files:
        assert f"`{file.relative_to(ROOT / 'examples').as_posix()}`" in table
        assert file.suffix == ".ipynb" or file.stem in tests
