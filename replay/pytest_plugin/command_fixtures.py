"""The pytest fixture of a replayed command: a function that runs it and checks the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentobs.errors import UsageError
from replay.command.command_replay import CommandReplay, run_command
from replay.fixture.format import load
from replay.pytest_plugin.marker import Mark, located, paths_of
from replay.workspace.recorded_workspace import workspace_of

OPTIONS = frozenset(inspect.signature(run_command).parameters) - {"fixture"}
"""The options of a marker and of the function."""


def command_runner(
    mark: Mark | None, test_folder: Path, root: Path, *, may_be_live: bool, is_renewed: bool
) -> Callable[..., CommandReplay]:
    """Return the function that runs the command of the fixture in a marker.

    Args:
        mark: the marker of the test; None if it has none.
        test_folder: the folder of the test.
        root: pytest's root directory.
        may_be_live: whether runs that continue with the provider are made, and others skipped (`--replay-live`).
        is_renewed: whether fixtures are recorded again (`--replay-update`), which is not possible for commands.

    Raises:
        UsageError: there is no marker, it contains no path, or an option does not exist.
    """
    if mark is None:
        raise UsageError('name the fixture: @pytest.mark.replay_command("fixtures/NAME")')
    [path, *_] = paths_of(mark)
    fixture = located(path, test_folder, root)
    _check(mark.kwargs)

    def run(*, check: bool = True, allow_drift: bool = False, **options: Any) -> CommandReplay:
        _check(options)
        chosen = {**mark.kwargs, **options}
        if "cwd" not in chosen and not _starts_from_files(fixture, chosen):
            chosen["cwd"] = root
        is_live = not isinstance(chosen.get("then", ()), Sequence)
        if is_renewed or (may_be_live and not is_live):
            pytest.skip("a recorded command is only replayed: run it live with `agentobs record`")
        if is_live and not may_be_live:
            pytest.skip("continues with the provider, which costs money: run it with --replay-live")
        ran = run_command(fixture, **chosen)
        if check:
            ran.check(allow_drift=allow_drift)
        return ran

    return run


def _starts_from_files(fixture: Path, options: Mapping[str, Any]) -> bool:
    """Return whether a command runs in recorded files."""
    if options.get("in_place"):
        return False
    return options.get("workspace") is not None or workspace_of(load(fixture)) is not None


def _check(options: Mapping[str, Any]) -> None:
    if unknown := sorted(options.keys() - OPTIONS):
        raise UsageError(
            f"unknown options: {', '.join(unknown)}",
            where="@pytest.mark.replay_command",
            todo=f"Valid options: {', '.join(sorted(OPTIONS))}",
        )
