"""Examples of docstrings become code in the reference, the words around them stay."""

from __future__ import annotations

import runpy

import pytest

from tests.docs.markdown import ROOT

pytest.importorskip("griffe", reason="needs the extra 'docs'")
fenced = runpy.run_path(str(ROOT / "docs" / "doctest_fences.py"))["fenced"]


def test_runs_of_examples_are_fenced_once() -> None:
    text = "Adds.\n\n>>> a = [\n...     1]\n>>> a\n[1]\n\nMore.\n\n>>> 2\n2"
    wanted = "Adds.\n\n```pycon\n>>> a = [\n...     1]\n>>> a\n[1]\n```\n\nMore.\n\n```pycon\n>>> 2\n2\n```"
    assert fenced(text) == wanted


@pytest.mark.parametrize("text", ["Nothing to run.", "", "a >>> b is a shift"])
def test_other_text_is_left_alone(text: str) -> None:
    assert fenced(text) == text
