"""The numbers of README.md and docs/results.md are those of results/."""

from __future__ import annotations

import re
import runpy

import pytest

from tests.docs.markdown import ROOT

MADE = runpy.run_path(str(ROOT / "docs" / "make_results.py"))


@pytest.mark.parametrize("page", MADE["PAGES"], ids=lambda page: page.name)
def test_tables_are_up_to_date(page) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.search(r"<!-- table \w+ -->", text)
    assert MADE["filled"](text) == text, "run: python docs/make_results.py"


def test_every_table_has_numbers() -> None:
    for name, make in MADE["TABLES"].items():
        assert re.search(r"\d", make()), name


def test_rounding() -> None:
    assert [MADE["number"](value) for value in (0.7865, 0.9995, 0.0444, 1.0)] == [
        "0.787",
        "1.000",
        "0.044",
        "1.000",
    ]
