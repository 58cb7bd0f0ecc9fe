"""CITATION.cff names this version, and the paper."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent


def test_citation() -> None:
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{found["version"]}"' in project
    assert found["license"] == re.search(r'^license = "(.+)"', project, re.MULTILINE)[1]
    assert {"cff-version", "message", "title", "authors"} <= set(found)
    paper = found["preferred-citation"]
    assert [author["family-names"] for author in paper["authors"]] == ["Yanko", "Shavit"]
    assert {"type", "title", "year"} <= set(paper)


def test_the_changelog_names_this_version() -> None:
    version = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
