"""Reading in the background: the store is read in a thread, and the result is shown by the application."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from textual.screen import Screen
from textual.worker import get_current_worker

from agentobs.errors import AgentobsError, error_kind
from agentobs.records.display import printable

T = TypeVar("T")


def read_and_show(
    screen: Screen[None],
    read: Callable[[], T],
    show: Callable[[T], None],
    show_error: Callable[[str], None],
) -> None:
    """Read a value in the thread of a worker, and show it, or why it cannot be read.

    Nothing is shown if the screen was closed meanwhile. Errors never end the application: a later check may succeed.
    """
    worker = get_current_worker()
    try:
        value = read()
    except AgentobsError as error:
        text = printable(str(error))
        _deliver(screen, lambda: show_error(text), worker.is_cancelled)
    except Exception as error:
        kind = f"cannot be read: {error_kind(error)}"
        _deliver(screen, lambda: show_error(kind), worker.is_cancelled)
    else:
        _deliver(screen, lambda: show(value), worker.is_cancelled)


def _deliver(screen: Screen[None], call: Callable[[], None], is_cancelled: bool) -> None:
    def call_if_open() -> None:
        if screen.is_attached:
            call()

    if is_cancelled:
        return
    try:
        screen.app.call_from_thread(call_if_open)
    except RuntimeError:  # the application has ended
        return
