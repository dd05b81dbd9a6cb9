"""The commands that the dashboard offers on session pages, and how it starts them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentobs import world

if TYPE_CHECKING:
    from dashboards.app.commands.command_jobs import Commands, Fixture, Program

_CHILD = "agentobs.cli.child_command"
"""The module that runs a command of `agentobs` until it ends or the dashboard ends."""


def dashboard_commands(home: Path, fixtures: Path) -> Commands:
    """Return the commands for a home.

    Args:
        home: the directory of the recordings.
        fixtures: the folder for new fixtures.
    """
    from dashboards.app.commands.command_jobs import Commands

    directory = Path.cwd()
    fixtures = (directory / fixtures).resolve()
    try:
        from agentobs.cli.replay.freeze import folder_name
        from replay.command.child_program import ChildProgram
    except ImportError as error:
        problem = f"the package {error.name} is not installed; install agentobs-kit again"
        return Commands(home, directory, fixtures, None, problem)

    def start(arguments: Sequence[str]) -> Program:
        # `-P`: no module of the directory replaces one of our modules, as for the command `agentobs`.
        command = [sys.executable, "-P", "-m", _CHILD, f"--home={home}", *arguments]
        environment = {**world.environment(), "PYTHONUNBUFFERED": "1", "COLUMNS": "100"}
        return ChildProgram(command, directory, environment, stdin=None)

    return Commands(
        home,
        directory,
        fixtures,
        start,
        folder_name=folder_name,
        fixtures_of=_fixtures_of,
    )


def _fixtures_of(folder: Path, session_id: str) -> list[Fixture]:
    """Return the fixtures in a folder that were frozen from a session."""
    from agentobs.determinism.entry import is_command
    from dashboards.app.commands.command_jobs import Fixture
    from replay.fixture.fixture_search import headers_in

    return [
        Fixture(path, is_command(header.get("entry")), str(header.get("entry") or ""))
        for path, header in headers_in(folder).items()
        if header.get("session_id") == session_id
    ]
