"""`agentobs replay` for the fixture of a command: run it against the fixture, and print how it compares."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from agentobs.errors import UsageError
from agentobs.records.display import printable

if TYPE_CHECKING:
    from agentobs.cli.replay.fork_result import ForkResult
    from replay import Fixture, Live
    from replay.workspace.recorded_workspace import RecordedWorkspace

APPLICABLE = frozenset(("fixtures", "as_json", "faults", "pace", "timeout", "verbose", "explain"))
"""The options of `agentobs replay` that apply to a command."""


def replay_command(context: click.Context, path: Path) -> NoReturn:
    """Run the command of a fixture in a copy of the current directory, print the result, and exit.

    The exit code is 0 if all requests are exact and the command ended as recorded, otherwise 1.

    Raises:
        UsageError: an option applies only to Python agents.
    """
    from replay import run_command

    _check(context)
    options = context.params
    ran = run_command(
        path,
        faults=options["faults"],
        pace=_pace(options["pace"]),
        timeout=options["timeout"],
    )
    click.echo(ran.json() if options["as_json"] else ran.text(explain=options["explain"]))
    sys.exit(0 if ran.is_exact else 1)


def fork_command(
    fixture: Fixture,
    turn: int,
    live: Live,
    *,
    in_place: bool,
    workspace: RecordedWorkspace | None,
    output: Path | None,
    result: ForkResult,
) -> NoReturn:
    """Run the command of a fixture up to a turn, then with the real provider, and exit.

    The exit code is that of the command; 1 if it took another path before the turn.
    """
    from replay import run_command

    ran = run_command(
        fixture,
        until_turn=turn,
        then=live,
        timeout=None,
        in_place=in_place,
        workspace=workspace,
        output=output,
    )
    result.session_ids, result.restored = list(ran.session_ids), ran.restored
    result.exit_code = ran.exit_code
    click.echo(ran.stdout, nl=False)
    click.echo(ran.stderr, nl=False, err=True)
    if not (ran.is_reached and ran.matched):
        result.problem = "another path before the turn"
        click.echo(ran.text())
        sys.exit(1)
    click.echo(
        f"forked  {printable(fixture.name)} after turn {turn}: {ran.verdict.line()}", err=True
    )
    result.print_files(turn)
    for each in ran.session_ids:
        click.echo(f"next    agentobs show {each} | agentobs freeze {each}", err=True)
    sys.exit(ran.exit_code)


def command_outcome(
    path: str, faults: tuple[str, ...], pace: Any, timeout_s: float
) -> Mapping[str, Any]:
    """Return the fields of a row for the fixture of a command, among several fixtures."""
    from replay import run_command

    ran = run_command(path, faults=faults, pace=_pace(pace), timeout=timeout_s)
    problems = ran.problems()
    return {
        "result": "diverged" if problems else "matched",
        "message": problems[0] if problems else "",
        "requests_matched": ran.verdict.count("exact"),
        "requests": ran.verdict.total,
        "report": ran.text() if problems else "",
        "divergence": ran.as_json() if problems else None,
    }


def check_command(fixture: Path, timeout_s: float) -> list[str]:
    """Return whether a command replays: `yes` with the number of requests, or `no` with the first problem."""
    from replay import run_command

    ran = run_command(fixture, timeout=timeout_s)
    if ran.is_exact:
        return [f"yes, {ran.verdict.served} of {ran.verdict.total} requests are exact"]
    return [f"no, because {ran.problems()[0]}", f"agentobs replay {fixture.parent} shows more"]


def _check(context: click.Context) -> None:
    for parameter in context.command.params:
        name = parameter.name or ""
        is_default = context.get_parameter_source(name) is click.core.ParameterSource.DEFAULT
        if name not in APPLICABLE and not is_default:
            raise UsageError(
                "this option is for Python agents, and the fixture was recorded from a command",
                where=parameter.opts[0],
                todo="Leave it out",
            )


def _pace(pace: Any) -> float | None:
    """Return the pace of the server: 1 as recorded; None for the default."""
    return 1.0 if pace == "recorded" else None if pace is None else float(pace)
