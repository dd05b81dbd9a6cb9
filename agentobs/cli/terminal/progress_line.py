"""Progress of a long command: a bar or a spinner on standard error, only on a terminal, and only after a second.

Nothing is drawn for a command that ends sooner, and everything is erased at the end, so the output of a command does
not change. A command must not print while a bar or a spinner is open; `Spinner.show` shows a text in its place.
"""

from __future__ import annotations

import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

import click

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

DELAY_SECONDS = 1.0
"""How long a command runs before its progress appears. Our choice."""


class _Delayed:
    """A drawing that appears after a delay. The packages that draw are imported only then."""

    _HAS_BAR = False

    def __init__(self, text: str) -> None:
        self._text = text
        self._done, self._total = 0, 0
        self._lock = threading.Lock()
        self._bar: Bar | None = None
        self._is_over = False
        self._timer = threading.Timer(DELAY_SECONDS, self._appear)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._bar is not None:
                self._bar.stop()

    def _appear(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = [SpinnerColumn("line"), TextColumn("{task.description}", markup=False)]
        if self._HAS_BAR:
            columns.append(BarColumn())
        bar = Progress(
            *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        with self._lock:
            if not self._is_over:
                bar.add_task(self._description(), total=self._total or None, completed=self._done)
                bar.start()
                self._bar = bar

    def _description(self) -> str:
        return f"{self._done:,} of {self._total:,} {self._text}" if self._total else self._text

    def _update(self) -> None:
        with self._lock:
            if self._bar is not None:
                self._bar.update(
                    self._bar.task_ids[0],
                    description=self._description(),
                    completed=self._done,
                    total=self._total or None,
                )


class Progress(_Delayed):
    """A bar with the number of finished items."""

    _HAS_BAR = True

    def __init__(self, unit: str) -> None:
        """Draw nothing yet.

        Args:
            unit: what is counted, in the plural.
        """
        super().__init__(unit)

    def __call__(self, done: int, total: int) -> None:
        """Show the number of finished items and the total."""
        self._done, self._total = done, total
        self._update()


class Spinner(_Delayed):
    """A spinner with the elapsed time, for work whose amount is not known."""

    def __init__(self, text: str) -> None:
        """Draw nothing yet.

        Args:
            text: what is being done.
        """
        super().__init__(text)

    def show(self, text: str) -> None:
        """Replace the text; without a terminal, print it on standard error."""
        if sys.stderr.isatty():
            self._text = text
            self._update()
        else:
            click.echo(text, err=True)
