"""The mutation test itself: what it changes, what it leaves alone, and its list of exceptions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.mutation.mutate import EQUIVALENT, PACKAGES, ROOT, Case, listed, package_of, report
from tests.mutation.operators import mutants


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {"a <= b", "a >= b"}),
        ("a + b * 2", {"a - b * 2", "a + b / 2", "a + b * 3"}),
        ("x = -y", {"x = y"}),
        ("x = a and not b", {"x = a or not b", "x = a and b"}),
        ("x = np.min(y, axis=1)", {"x = np.max(y, axis=1)", "x = np.min(y, axis=2)"}),
        ("x += 1", {"x -= 1", "x += 2"}),
        ("x = 1e6", {"x = 2000000.0"}),
        ("if x:\n    y = z", {"if not x:"}),
        ("def f() -> float:\n    return x", {"return -x"}),
        ("def f() -> str:\n    return x", {"return None"}),
        ("def f(a: int | str = 3) -> str | None:\n    return None", {"def f(a: int | str=4) -> str | None:"}),
        ('raise ValueError(f"{1 + 1} of 2")', set()),
        ('"""At most 3."""', set()),
        ("Clamp = float | None", set()),
    ],
)
def test_every_slip_is_made_once(source: str, expected: set[str]) -> None:
    found = list(mutants(source))
    assert {mutant.after for mutant in found} == expected
    assert len(found) == len(expected)
    for mutant in found:
        assert mutant.after in " ".join(mutant.source.split())
        assert mutant.source != source
        compile(mutant.source, "mutant", "exec")


def test_lines_are_those_of_the_statement_or_its_head() -> None:
    source = "x = (\n    1,\n    2,\n)\nif a < (\n    b\n):\n    y = 3\n"
    assert [mutant.lines for mutant in mutants(source)] == [range(1, 5)] * 2 + [range(5, 8)] * 2 + [
        range(8, 9)
    ]


def test_every_listed_exception_is_a_mutant_and_has_a_reason() -> None:
    blocks = EQUIVALENT.read_text("utf-8").strip().split("\n\n")
    for block in blocks:
        path, before, after, *reason = block.split("\n")
        assert package_of(path) in PACKAGES
        text = (ROOT / "src/kappaplace" / path).read_text("utf-8")
        assert (before[2:], after[2:]) in {(mutant.before, mutant.after) for mutant in mutants(text)}
        assert len(reason) == 1
        assert reason[0].endswith(".")


def test_a_listed_mutant_is_known_again(tmp_path: Path) -> None:
    kept = tmp_path / "survivors.txt"
    first, second = (Case("vmf/distribution.py", mutant) for mutant in mutants("a < b"))
    kept.write_text(f"vmf: 2 mutants\n\n{first}\n  survived, line 1\n", "utf-8")
    assert listed(first, kept)
    assert not listed(second, kept)
    assert not listed(Case("vmf/bessel.py", first.mutant), kept)


def test_a_package_below_the_least_share_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts, killed = Counter({"a/x.py": 10, "a/y.py": 10, "b/z.py": 4}), Counter({"a/x.py": 10, "a/y.py": 7})
    killed["b/z.py"] = 4
    out = tmp_path / "rows.csv"
    assert report(counts, killed, 0.85, out) == 0  # 17 of 20
    assert report(counts, killed, 0.86, None) == 1
    rows = [line.split(",")[:4] for line in out.read_text("utf-8").splitlines()]
    assert rows[0] == ["module", "mutants", "killed", "share"]
    assert rows[2] == ["a/y.py", "10", "7", "0.700"]
    assert rows[4:] == [["a", "20", "17", "0.850"], ["b", "4", "4", "1.000"]]
    assert "a/y.py" in capsys.readouterr().out
