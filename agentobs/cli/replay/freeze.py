"""The command that writes fixtures and tests for recorded sessions: `freeze`."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentobs.cli.replay.entry_options import entry_fields, rule_names
from agentobs.cli.replay.trial_output import check
from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.recordings import load_recording
from agentobs.cli.terminal.session_choice import WHERE_HELP
from agentobs.errors import UsageError
from agentobs.installation import install_extra
from agentobs.records.display import printable

if TYPE_CHECKING:
    from agentobs.records.exchanges import Recording
    from replay.freeze.conversion import Frozen, FrozenWorkspace

MATCHES_MAX = 50
"""The maximum number of sessions that `--where` may match. Our choice: each of them is replayed twice."""


@click.command()
@click.argument("sessions", nargs=-1, metavar="[SESSION]...")
@click.option("--last-failed", is_flag=True, help="Freeze the newest session that failed.")
@click.option(
    "--where",
    metavar="CONDITIONS",
    help=f"Freeze all matching sessions that have ended, newest first. If more than {MATCHES_MAX} match, freeze none. "
    f"{WHERE_HELP}",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help=("The folder to write; with several sessions, its parent folder. Default: fixtures/NAME."),
)
@click.option(
    "--until-turn",
    type=click.IntRange(min=1),
    metavar="N",
    help="Leave out everything after the response of turn N, except for the next request.",
)
@click.option(
    "--turn",
    "failing_turn",
    type=click.IntRange(min=1),
    metavar="N",
    help="The turn in which the session failed. Default: determined from the recording. Required for a session that "
    "completed with a wrong answer.",
)
@click.option(
    "--normalize",
    metavar="RULES",
    help="Rules for values that differ in each run, applied at each replay: uuid, time, "
    "tmp_path, ... Default: the rules of an existing fixture.",
)
@click.option(
    "--entry",
    metavar="MODULE:NAME",
    help="The function that a replay calls, if the recording does not name one that can be called.",
)
@click.option(
    "--args",
    "arguments",
    metavar="JSON",
    help="Arguments of the entry as JSON: an object (by name) or a list (by position). "
    "Default: the recorded arguments; with --entry, no arguments.",
)
@click.option(
    "--workspace",
    "with_files",
    is_flag=True,
    help="Store the recorded files with the fixture (`--effects files`): at the start, at each turn and at the end. "
    "Replays start from them, and compare the files at the end. Files with possible secrets are refused. Files of the "
    "git commit at the start are left out if a branch or tag of the repository with the fixture contains this commit.",
)
@click.option(
    "--standalone",
    is_flag=True,
    help="With --workspace: store all files, so that the fixture can be replayed without the git repository.",
)
@click.option(
    "--leave-out",
    "left_out",
    multiple=True,
    metavar="PATTERN",
    help="With --workspace: leave out a file, a directory, or files that match a pattern such as `*.bin`. May be "
    "repeated.",
)
@click.option(
    "--workspace-mib",
    type=click.FloatRange(min=0, min_open=True),
    default=20.0,
    show_default=True,
    metavar="N",
    help="With --workspace: the maximum size of the stored files, in MiB. Each version of a file counts.",
)
@click.option(
    "--apply",
    is_flag=True,
    help="Add the rules that the check proposes to the fixture, and repeat the check.",
)
@click.option(
    "--no-check",
    is_flag=True,
    help="Skip the check. It runs your agent's code at least twice, including all tools that are not wrapped with "
    "record_tool.",
)
@click.option(
    "--check-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Timeout of each replay in the check, in seconds.",
)
@click.pass_context
def freeze(
    context: click.Context,
    sessions: tuple[str, ...],
    last_failed: bool,
    where: str | None,
    output: Path | None,
    until_turn: int | None,
    failing_turn: int | None,
    normalize: str | None,
    entry: str | None,
    arguments: str | None,
    with_files: bool,
    standalone: bool,
    left_out: tuple[str, ...],
    workspace_mib: float,
    apply: bool,
    no_check: bool,
    check_timeout: float,
) -> None:
    """Write fixtures and tests for recorded sessions, and check that each fixture replays.

    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name. Each fixture is
    replayed twice in fresh processes, the second time with a different working directory, date, time zone and hash
    seed. The line `replays` shows whether both replays matched, and what to do if not. A fixture that does not replay
    is kept, and the exit code is 0. A recorded command is run once, with all its tools, in a copy of the current
    directory.
    """
    if bool(sessions) + last_failed + (where is not None) != 1:
        raise UsageError(
            "specify a SESSION, --last-failed or --where", todo="`agentobs sessions` lists sessions"
        )
    if apply and no_check:
        raise UsageError(
            "requires the check, which proposes the rules",
            where="--apply",
            todo="Leave out --no-check",
        )
    for name, is_given in (("--leave-out", bool(left_out)), ("--standalone", standalone)):
        if is_given and not with_files:
            raise UsageError("requires --workspace", where=name, todo="Add --workspace")
    from agentobs.cli.replay.workspace_choice import needed_workspace, print_uncaptured
    from replay.fixture.fixture_redaction import without_secrets
    from replay.freeze.conversion import FrozenWorkspace
    from replay.trial.fixture_trial import Trials

    home, is_complete = home_option(context), until_turn is None
    named = sessions or (_matches(home, where) if where is not None else (None,))
    recordings = [
        without_secrets(load_recording(home, each, has_ended=is_complete)) for each in named
    ]
    with Trials(Path.cwd(), check_timeout) as trials:
        for session, folder in zip(recordings, _folders(recordings, output), strict=True):
            recording = dataclasses.replace(
                session, **entry_fields(session.entry, entry, arguments)
            )
            files = (
                FrozenWorkspace(
                    needed_workspace(home, recording),
                    left_out,
                    int(workspace_mib * 2**20),
                    standalone,
                )
                if with_files
                else None
            )
            if files is not None:
                print_uncaptured(files.recorded)
            frozen = _freeze(recording, folder, until_turn, failing_turn, normalize, files)
            is_callable = True
            if not no_check:
                entry_choices = {"--entry": entry, "--args": arguments}
                is_callable = check(
                    recording, frozen, home, trials, apply=apply, entry_choices=entry_choices
                )
            steps = _next_steps(recording, frozen, folder, is_callable=is_callable)
            for number, line in enumerate(steps):
                click.echo(f"{'       ' if number else 'next   '}{printable(line)}")
            sys.stdout.flush()


def _matches(home: str | None, where: str) -> tuple[str, ...]:
    """Return the IDs of the ended sessions that satisfy a filter, newest first.

    Raises:
        UsageError: the filter is invalid, or no session or too many sessions satisfy it.
    """
    from agentobs.store.backend import open_store
    from agentobs.store.session_filter import matching_sessions, parse_filter

    conditions = parse_filter(where)
    with open_store(home) as store:
        found = matching_sessions(store, conditions)
        listed = store.rows("sessions", session_ids=found, causes=False).dicts()
    running = {row["session_id"] for row in listed if row["status"] == "running"}
    ended = tuple(each for each in found if each not in running)
    if not 0 < len(ended) <= MATCHES_MAX:
        raise UsageError(
            f"{len(ended) or 'no'} sessions that have ended match",
            where=f"--where {where[:120]!r}",
            todo=f"`agentobs sessions --where ...` lists them; freeze accepts 1 to {MATCHES_MAX} at once",
        )
    return ended


def _freeze(
    recording: Recording,
    folder: Path,
    until_turn: int | None,
    failing_turn: int | None,
    normalize: str | None,
    files: FrozenWorkspace | None,
) -> Frozen:
    from agentobs.determinism.values import not_kept_in
    from replay.freeze.conversion import freeze as write
    from replay.freeze.conversion import versions

    named = None if normalize is None else rule_names(normalize)
    frozen = write(recording, folder, versions(), until_turn, named, failing_turn, files)
    part = f", up to turn {frozen.until}" if frozen.until is not None else ""
    counts = f"{frozen.requests} requests, {frozen.tools} tool calls{part}"
    click.echo(f"froze  {recording.session_id}  {counts}")
    if frozen.failure is not None:
        click.echo(
            f"failed in turn {frozen.failure.turn}: {frozen.failure.reason} (use --turn N to choose another turn)"
        )
    if frozen.stored_files is not None:
        click.echo(f"files  stored: {printable(frozen.stored_files)}")
    if frozen.normalizers:
        rules = printable(", ".join(frozen.normalizers))
        click.echo(f"normalizes  {rules}, in each replay")
    for redacted in frozen.redacted:
        click.echo(f"redacted {printable(redacted.text())}")
    for path, is_new in frozen.files:
        click.echo(f"{'wrote' if is_new else 'kept '}  {printable(str(path))}")
    if recording.result and (kind := not_kept_in(recording.result.value)):
        click.echo(f"result  not recorded and not compared: {printable(kind)}")
    sys.stdout.flush()
    return frozen


def _next_steps(
    recording: Recording, frozen: Frozen, folder: Path, *, is_callable: bool
) -> Iterator[str]:
    """Yield the next steps for a fixture: commands that can be copied and run.

    Args:
        recording: the session.
        frozen: the fixture and test that were written.
        folder: the folder of the fixture.
        is_callable: False if the check could not call the entry of the fixture.
    """
    from agentobs.determinism.entry import is_command
    from replay import load
    from replay.agent_code.entry_obstacles import why_not_callable
    from replay.scenario.fork_plan import can_fork
    from replay.workspace.recorded_workspace import KEY

    where = shlex.quote(str(folder))
    if is_command(recording.entry):
        yield _pytest_command(where)
        files = (
            "the recorded files"
            if KEY in load(frozen.fixture).header
            else "a copy of the current directory"
        )
        yield f"agentobs replay {where}   runs the command in {files}"
        if frozen.failure is not None and can_fork(recording, frozen.turn):
            yield f"agentobs fork {where} --at {frozen.turn}   continues with the provider from there"
        return
    problem = why_not_callable(load(frozen.fixture).header)
    if problem is not None:
        imported, call = problem.lines
        yield (
            f"edit {shlex.quote(str(frozen.test))}: add this import, and replace `...` in "
            "replay.run(...) with these arguments:"
        )
        yield f"    {imported}"
        yield f"    {call.removeprefix('replay.run(').removesuffix(')')}"
    if problem is not None or is_callable:
        yield _pytest_command(where)
    if problem is None and is_callable and can_fork(recording, frozen.turn):
        yield f"agentobs fork {where} --at {frozen.turn}   continues live from there"
    if problem is not None or not is_callable:
        yield f"agentobs serve {where}   acts as the provider for any client"


def _pytest_command(where: str) -> str:
    """Return the command that runs the tests of a fixture, and what to install first if pytest is missing."""
    if importlib.util.find_spec("pytest") is not None:
        return f"pytest {where}"
    return f"pytest {where}   needs the extra `pytest`: {install_extra('pytest')}"


def _folders(recordings: list[Recording], output: Path | None) -> list[Path]:
    """Return the folder of each session. If names repeat, a suffix of the session ID makes them unique."""
    if len(recordings) == 1:
        return [output or Path("fixtures") / folder_name(recordings[0].name)]
    names = [folder_name(each.name) for each in recordings]
    return [
        (output or Path("fixtures"))
        / (name if names.count(name) == 1 else f"{name}-{each.session_id[-8:]}")
        for name, each in zip(names, recordings, strict=True)
    ]


def folder_name(name: str) -> str:
    """Return the name of the folder of a fixture, for the name of a session."""
    name = re.sub(r"\[redacted:[a-z0-9_]+(:[0-9a-f]+)?\]", " redacted ", name)
    safe = "".join(c if c.isalnum() or c in "-_." else " " for c in name)
    return "-".join(safe.split())[:80].strip("-.") or "session"
