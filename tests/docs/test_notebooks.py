"""The notebooks of examples/ run headless from the first cell to the last; no outputs are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.markdown import ROOT

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
nbformat = pytest.importorskip("nbformat", reason="needs the extra 'notebooks'")


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("nbclient")
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(file, as_version=4)
    client.NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(tmp_path))
    pictures = [
        o for cell in notebook.cells for o in cell.get("outputs", []) if "image/png" in o.get("data", {})
    ]
    assert pictures


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_no_outputs_are_kept(file: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]


def test_there_are_three() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["calibrate_and_risk", "first_map", "kappa_on_your_encoder"]
