"""The README's Python example runs as it stands, and its shapes are true."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

README = Path(__file__).parent.parent / "README.md"


def test_the_python_example_runs(
    pictures: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = ["a.jpg", "b.jpg", *(f"{row}.jpg" for row in range(12))]
    for name, picture in zip(names, np.concatenate([pictures] * 3), strict=False):
        Image.fromarray(picture).save(name)
    known: dict[str, object] = {"reference_paths": names[2:]}
    exec(compile(example, "README.md", "exec"), known)
    score, evidence, matches = known["score_named"]("kappaplace"), known["evidence"], known["matches"]
    assert known["queries"].descriptor.shape == (2, 512)
    assert matches.indices.shape == (2, 10)
    assert score.query(evidence).shape == (2,)
    assert score.match(evidence).shape == (2, 10)


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)", README.read_text(encoding="utf-8")):
        assert (README.parent / link).exists(), link
