"""Every tutorial and walk-through from its first block to its last, as it stands but for the port.

They run in a folder with photos.

A ``text`` block right after one that ran is what that prints; … stands for anything. On some pages decimals
may differ by `NEAR`: training amplifies rounding, and rounding depends on the machine.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shutil
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from docs.reference import pages

from tests.docs.markdown import ROOT, WALK, without_tabs
from tests.docs.photos import write_photos, write_walk

DOCS = ROOT / "docs"
TUTORIALS = [
    DOCS / "quickstart.md",
    *sorted((DOCS / "tutorials").glob("*.md")),
    *(page for page in sorted(DOCS.glob("*.md")) if WALK.search(page.read_text(encoding="utf-8"))),
]
_BLOCK = re.compile(r"^```(bash|python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CHECKER = doctest.OutputChecker()
PORT = "8642"
"""Of the service, in the pages; here a free one takes its place, for another test may have that."""
LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NUMERIC = {"compare_methods", "quickstart"}
"""Pages with numbers of models: their words must be equal, their decimals nearly."""
NEAR = 0.35
"""Largest difference of a decimal on these pages, absolute below 1 and relative above."""
_NUMBER = re.compile(r"[-+]?\d+\.\d+|\(\d+ s\)")


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    write_photos(folder)
    write_walk(folder / "walk.mp4")
    return folder


@pytest.fixture
def workplace(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with photos, in which the commands run."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAPPAPLACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda file: file.stem)
def test_a_tutorial_runs(tutorial: Path, workplace: Path) -> None:
    if tutorial.stem == "slam":
        pytest.importorskip("gtsam")
    run(tutorial)


@pytest.mark.slow
def test_the_readme_shows_what_its_commands_print(workplace: Path) -> None:
    shutil.copy("drive/0116.jpg", "query.jpg")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    ((commands, output),) = re.findall(
        r"^```bash\n(kappaplace map build .*?)^```\n\n```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
    )
    assert near(output, _bash(commands))


@pytest.mark.slow
def test_the_first_tutorials_run_in_their_order_in_one_folder(workplace: Path) -> None:
    """As the documentation lists them: each finds what the one before has left."""
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    order = re.findall(r": ((?:quickstart|tutorials/\w+)\.md)", navigation.partition("nav:")[2])
    first = ["quickstart.md", "tutorials/calibrate_and_risk.md", "tutorials/kappa_on_your_encoder.md"]
    assert order[:3] == first
    for name in first:
        run(DOCS / name)


def run(tutorial: Path) -> None:
    """Run every block of a tutorial, and compare what it prints."""
    known: dict[str, object] = {"__name__": "tutorial"}
    port = _free_port()
    printed, ran = "", 0
    text = without_tabs(tutorial.read_text(encoding="utf-8"))
    for language, block in _BLOCK.findall("".join(WALK.findall(text)) or text):
        if language == "text":
            if printed:
                wanted = block.replace("…", "...")
                same = near if tutorial.stem in NUMERIC else partial(CHECKER.check_output, optionflags=LOOSE)
                assert same(wanted, printed), f"wanted:\n{block}\ngot:\n{printed}"
            printed = ""
            continue
        block = block.replace(PORT, port)
        printed = _bash(block) if language == "bash" else _python(block, tutorial, known)
        ran += 1
    assert ran >= 3


def near(wanted: str, printed: str) -> bool:
    """Whether the words are equal, and the decimals in between nearly so."""
    words, output = " ".join(wanted.split()), " ".join(printed.split())
    parts = [re.escape(part).replace(re.escape("..."), ".*?") for part in _NUMBER.split(words)]
    found = re.fullmatch(f"({_NUMBER.pattern})".join(parts), output, re.DOTALL)
    return found is not None and all(
        one.endswith("s)") or abs(float(one) - float(other)) <= NEAR * max(1.0, abs(float(one)))
        for one, other in zip(_NUMBER.findall(words), found.groups(), strict=True)
    )


def test_decimals_of_trained_pages_may_differ_a_little() -> None:
    assert near("R@1 0.517  (7 s)\n...\nend 1.5", "R@1 0.60 (40 s) whatever 7 end 1.4")
    assert not near("R@1 0.517", "R@1 0.9")
    assert not near("R@1 0.517", "R@5 0.517")
    assert not near("loss 17.9 end", "loss 17.9")


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def _bash(block: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _python(block: str, tutorial: Path, known: dict[str, object]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(block, tutorial.name, "exec"), known)
    return printed.getvalue()


def test_every_link_between_pages_leads_somewhere() -> None:
    generated = {(DOCS / name).resolve() for name in pages()}
    for file in DOCS.rglob("*.md"):
        for link in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", file.read_text(encoding="utf-8")):
            target = (file.parent / link).resolve()
            assert target.exists() or target in generated, f"{file.name}: {link}"


def test_every_page_is_in_the_navigation_and_ends_with_next() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    written = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert written | set(pages()) == set(re.findall(r"([\w/]+\.md)$", navigation, re.MULTILINE))
    for page in written - {"architecture.md"}:  # written by tools/architecture.py
        last = (DOCS / page).read_text(encoding="utf-8").rstrip().splitlines()[-1]
        assert last.startswith("**Next:** "), page


def test_a_moved_page_leads_to_its_new_place() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    moved = re.findall(r"^        ([\w/]+\.md): ([\w/]+\.md)$", settings, re.MULTILINE)
    assert len(moved) > 20
    for old, new in moved:
        assert not (DOCS / old).exists()
        assert (DOCS / new).exists()
