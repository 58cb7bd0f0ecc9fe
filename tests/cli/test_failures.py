"""What nobody nearer had words for still ends as one sentence and an exit code."""

from __future__ import annotations

import errno
import os

import pytest

from kappaplace.cli import main as command_line


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (
            MemoryError(),
            2,
            "kappaplace: Out of memory. Pass a smaller --batch-size, or fewer images at a time.",
        ),
        (
            OSError(errno.ENOSPC, "whatever", "map/data.bin"),
            2,
            f"kappaplace: {os.strerror(errno.ENOSPC)} (map/data.bin).",
        ),
        (PermissionError(errno.EACCES, "whatever"), 2, f"kappaplace: {os.strerror(errno.EACCES)}."),
        (KeyboardInterrupt(), 130, command_line.STOPPED),
    ],
    ids=["memory", "disk", "permission", "ctrl-c"],
)
def test_a_failure_is_one_sentence(
    error: BaseException,
    code: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(command_line, "app", fail)
    with pytest.raises(SystemExit) as stop:
        command_line.main()
    assert stop.value.code == code
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", f"{sentence}\n")


def test_an_error_of_the_program_itself_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("no number: not the disk's")

    monkeypatch.setattr(command_line, "app", fail)
    with pytest.raises(OSError, match="no number"):
        command_line.main()
