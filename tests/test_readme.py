"""The README's Python example runs and prints the answer; links and extras exist."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kappaplace import PlaceMap
from kappaplace.errors import install_command

README = Path(__file__).parent.parent / "README.md"


def test_the_python_example_runs(
    pictures: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for row, picture in enumerate(pictures):
        Image.fromarray(picture).save(f"{row}.jpg")
    PlaceMap.build([f"{row}.jpg" for row in range(1, len(pictures))], "town.map")
    shutil.copy("1.jpg", "query.jpg")
    variables: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), variables)
    assert "Best match 1.jpg" in capsys.readouterr().out
    assert variables["answer"].matches[0].name == "1.jpg"


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)", README.read_text(encoding="utf-8")):
        assert (README.parent / link).exists(), link


PAGES = [README, *sorted((README.parent / "docs").rglob("*.md"))]


def test_extras_are_installed_in_one_way() -> None:
    """`pip install 'kappaplace[extra]'`, as in messages; `-e` in the repository, with the constraints."""
    extras = set(re.findall(r"^(\w+) = \[", (README.parent / "pyproject.toml").read_text("utf-8"), re.M))
    for page in PAGES:
        for line in re.findall(r"pip install [^`\n#]*", page.read_text(encoding="utf-8")):
            named = re.findall(r"\[([\w,]+)\]", line)
            assert set(",".join(named).split(",")) - {""} <= extras, line
            assert "-e" in line.split() or "kappaplace[" in line, line
            assert "-e" not in line.split() or "-c constraints.txt" in line, line
    assert install_command("serve") == "pip install 'kappaplace[serve]'"
