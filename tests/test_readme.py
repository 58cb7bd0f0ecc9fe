"""The README's Python example runs and has the shapes that its comments state; links and extras exist."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import kappaplace
from kappaplace.errors import install_command
from kappaplace.uncertainty import match_score

README = Path(__file__).parent.parent / "README.md"


def test_the_python_example_runs(
    pictures: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = ["a.jpg", "b.jpg", *(f"{row}.jpg" for row in range(12))]
    for name, picture in zip(names, np.concatenate([pictures] * 3), strict=False):
        Image.fromarray(picture).save(name)
    variables: dict[str, object] = {"reference_paths": names[2:]}
    exec(compile(example, "README.md", "exec"), variables)
    evidence = variables["evidence"]
    assert variables["queries"].descriptor.shape == (2, 512)
    assert evidence.matches.indices.shape == (2, 10)
    assert kappaplace.score("kappaplace", evidence).shape == (2,)
    assert match_score("kappaplace", evidence).shape == (2, 10)


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
