"""The progress bar: quiet in logs and quick calls, shown on a terminal once patience ends."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from kappaplace import progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that a test moves by hand."""
    now = [100.0]
    monkeypatch.setattr("kappaplace.progress.time.monotonic", lambda: now[0])
    return now


def screen(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> io.StringIO:
    out = io.StringIO()

    def console(*, stderr: bool) -> Console:
        assert stderr  # what a command prints can be piped
        return Console(file=out, force_terminal=terminal, width=80)

    monkeypatch.setattr(progress, "Console", console)
    return out


def test_a_slow_call_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> None:
    out = screen(monkeypatch, terminal=True)
    with progress.track("Embedding", 40) as bar:
        bar.advance(10)
        assert out.getvalue() == ""
        clock[0] += progress.PATIENCE_SECONDS
        bar.advance()
        assert "Embedding" in out.getvalue()
        bar.advance(4)
        shown = bar._bar.tasks[0]  # type: ignore[union-attr]
        assert (shown.completed, shown.total) == (15, 40)  # the first ten count, too
    assert bar._bar is not None
    assert bar._bar.live.is_started is False


@pytest.mark.parametrize(("terminal", "seconds"), [(True, 1.9), (False, 60.0)])
def test_quick_calls_and_logs_stay_quiet(
    monkeypatch: pytest.MonkeyPatch, clock: list[float], terminal: bool, seconds: float
) -> None:
    out = screen(monkeypatch, terminal)
    with progress.track("Embedding", 2) as bar:
        clock[0] += seconds
        bar.advance(2)
    assert out.getvalue() == ""


def test_an_interrupted_call_gives_the_terminal_back(
    monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    out = screen(monkeypatch, terminal=True)
    with pytest.raises(KeyboardInterrupt), progress.track("Embedding", 2) as bar:  # noqa: PT012
        clock[0] += 5
        bar.advance()
        raise KeyboardInterrupt
    shown, hidden = "\x1b[?25h", "\x1b[?25l"
    assert out.getvalue().rfind(shown) > out.getvalue().rfind(hidden) >= 0  # the cursor is back
