"""results/README.md lists every file of results/ with a command that exists; no tool left files in git."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.docs.markdown import ROOT

FOLDER = ROOT / "results"
ROWS = [
    line.strip("|").split("|")
    for line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| `")
]
COMMANDS = {name: row[2] for row in ROWS for name in re.findall(r"`([^`]+)`", row[0])}


def test_every_file_is_listed() -> None:
    files = {path.name for path in FOLDER.iterdir()} - {"README.md"}
    assert set(COMMANDS) == files
    assert len(ROWS) > 20


@pytest.mark.parametrize("name", COMMANDS)
def test_its_command_exists(name: str) -> None:
    command = COMMANDS[name]
    scripts = re.findall(r"`(?:\w+=\S+ )?python (\S+\.py)", command)
    targets = re.findall(r"`make (\w+)", command)
    assert scripts or targets or "`kappaplace evaluate" in command
    for script in scripts:
        assert (ROOT / script).is_file(), script
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in targets:
        assert f"\n{target}:" in makefile


def test_numbers_of_an_older_state_are_not_kept() -> None:
    assert not [name for name in COMMANDS if re.search(r"(^|[_.-])(before|old|backup)([_.-]|$)", name)]


def test_no_tool_leaves_files_under_version_control() -> None:
    answer = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if answer.returncode:
        pytest.skip("not a git checkout")
    left = (
        r"(^|/)(__pycache__|\.\w+_cache|\.hypothesis|\.coverage|\.DS_Store|\.venv|build|dist)(/|$)"
        r"|\.(pyc|orig|rej|bak|swp|log|tmp)$|~$"
    )
    assert not [name for name in answer.stdout.splitlines() if re.search(left, name)]
