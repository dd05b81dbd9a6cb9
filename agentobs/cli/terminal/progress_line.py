"""Progress of a long command, shown only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click


class Progress:
    """The number of finished items, shown only on a terminal."""

    def __init__(self, unit: str) -> None:
        """Start without showing anything; `unit` is what is counted, in the plural."""
        self._unit = unit
        self._is_shown = sys.stderr.isatty()

    def __enter__(self) -> Callable[[int, int], None]:
        """Return the function that receives the number of finished items and the total."""
        return self._show

    def __exit__(self, *_: object) -> None:
        """Erase the progress line."""
        if self._is_shown:
            click.echo("\r\x1b[K", nl=False, err=True)

    def _show(self, done: int, total: int) -> None:
        if self._is_shown:
            click.echo(f"\r\x1b[K{done} of {total} {self._unit}", nl=False, err=True)
