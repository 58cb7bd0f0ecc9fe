"""Shell completion: scripts for the common shells, and the words that they are given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(sys.executable).parent / "kappaplace"


def complete(line: str) -> set[str]:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    environment = os.environ | words | {"_KAPPAPLACE_COMPLETE": "complete_bash"}
    answer = subprocess.run([PROGRAM], env=environment, capture_output=True, text=True)
    return set(answer.stdout.split())


def test_commands_verbs_and_options() -> None:
    assert {"map", "models"} <= complete("kappaplace m")
    assert complete("kappaplace models pu") == {"push", "pull"}
    assert "--storage" in complete("kappaplace map build --st")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell: str) -> None:
    answer = subprocess.run(
        [PROGRAM, "--show-completion", shell],
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "_KAPPAPLACE_COMPLETE" in answer.stdout
