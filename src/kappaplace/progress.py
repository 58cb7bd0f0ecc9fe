"""A progress bar that appears only on a terminal and only after two seconds."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PATIENCE_SECONDS = 2.0


class track:
    """Progress bar, used as ``with track("Embedding", total) as bar: bar.advance()``.

    Args:
        task: Text before the bar.
        total: Number of items.
    """

    def __init__(self, task: str, total: int) -> None:
        self.task, self.total, self.done = task, total, 0
        self._console = Console(stderr=True)
        self._bar: Progress | None = None

    def __enter__(self) -> track:
        self._start = time.monotonic()
        return self

    def advance(self, count: int = 1) -> None:
        """Count finished items."""
        self.done += count
        if self._bar is None and self._console.is_terminal:
            if time.monotonic() - self._start < PATIENCE_SECONDS:
                return
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), console=self._console, transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self.task, total=self.total)
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
