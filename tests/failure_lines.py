"""A pytest plugin: the lines that name failed tests contain the reason, even if the output is not a terminal.

pytest prints these lines last, directly above the counts, but cuts them at 80 columns if it writes to a file. The
reason is then missing for most of our tests. `tests/conftest.py` uses this plugin. The option `--force-short-summary`
prevents that a reason has many lines if the variable CI is set.
"""

from __future__ import annotations

import pytest
from _pytest.terminal import TerminalReporter

COLUMNS = 240
"""The width of these lines in a file. The longest ID of a test has about 150 characters."""


@pytest.hookimpl(tryfirst=True)
def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Widen the output between the tracebacks, which pytest prints earlier, and the names of the tests."""
    if not terminalreporter.isatty:
        terminalreporter._tw.fullwidth = COLUMNS
