"""The commands that the dashboard offers on session pages, and how it starts them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentobs import world
from agentobs.records.display import printable

if TYPE_CHECKING:
    from dashboards.app.commands.command_jobs import Commands, Fixture, Origin, Program

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
        origin_of=partial(_origin_of, home),
        program_of=partial(_program_of, home),
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


def _origin_of(home: Path, session_id: str) -> Origin | None:
    """Return the bundle from which a session was imported; None if it was recorded in this home."""
    from agentobs.importers.bundle import bundle_origin
    from agentobs.recording.journal.home import Home
    from dashboards.app.commands.command_jobs import Origin

    found = bundle_origin(Home(home), session_id)
    if found is None:
        return None
    source = f"the bundle {printable(found.file)}" if found.file else "a bundle"
    return Origin(source, found.imported_ns)


def _program_of(home: Path, session_id: str, fixture: Path | None) -> str:
    """Return what a session or its fixture runs: the function with its arguments, or the command line."""
    from agentobs.cli.terminal.recordings import load_recording
    from agentobs.determinism.entry import is_command
    from replay import load

    if fixture is None:
        recording = load_recording(str(home), session_id)
        entry, arguments = recording.entry, recording.arguments
    else:
        header = load(fixture).header
        entry, arguments = header["entry"], header["arguments"]
    values = arguments or {}
    argv = values.get("argv")
    if is_command(entry) and isinstance(argv, list):
        return shlex.join(map(str, argv))
    return f"{entry or 'the agent'} {json.dumps(values, ensure_ascii=False)}"
