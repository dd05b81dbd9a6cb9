"""Progress of long commands: drawn on standard error of a terminal, and only there."""

from __future__ import annotations

import sys

import pytest

from agentobs.cli.terminal.progress_line import Progress, Spinner
from tests.cli.pseudo_terminal import program_on_terminal

LONG = """
from agentobs.cli.terminal import progress_line
progress_line.DELAY_SECONDS = 0.01
with progress_line.Progress("files") as progress:
    progress(3, 7)
    while progress._bar is None:
        pass
    progress(4, 7)
    progress._bar.refresh()
with progress_line.Spinner("sending [red]") as spinner:
    while spinner._bar is None:
        pass
    spinner.show("waiting")
    spinner._bar.refresh()
print("done")
"""
"""A command that ends when its progress has been drawn."""
SHORT = """
from agentobs.cli.terminal import progress_line
progress_line.DELAY_SECONDS = 3600
with progress_line.Progress("files") as progress, progress_line.Spinner("sending"):
    progress(3, 7)
print("done")
"""


def test_a_long_command_shows_its_progress() -> None:
    """A terminal shows the number of items or what is being done, and erases it at the end."""
    shown = program_on_terminal([sys.executable, "-c", LONG])
    assert shown.code == 0
    for text in ("3 of 7 files", "4 of 7 files", "sending [red]", "waiting"):
        assert text in shown.raw
    assert shown.raw.rindex("\x1b[2K") > shown.raw.rindex("waiting")
    assert shown.raw.endswith("done\n")


def test_a_short_command_shows_nothing() -> None:
    """A command that ends before the delay writes only its output."""
    assert program_on_terminal([sys.executable, "-c", SHORT]).raw == "done\n"


def test_without_a_terminal_only_texts_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, nothing is drawn. A text that must be shown is a line on standard error."""
    with Progress("files") as progress, Spinner("sending") as spinner:
        progress(3, 7)
        spinner.show("waiting for the collector")
    assert capsys.readouterr() == ("", "waiting for the collector\n")


def test_an_error_ends_the_progress() -> None:
    """If the work fails, the error passes through."""
    with pytest.raises(ValueError, match="broken"), Progress("files"):
        raise ValueError("broken")
