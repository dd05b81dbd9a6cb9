"""Commands that bring a session back: freeze it, replay it, serve it."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli import home_option
from agentobs.cli.replay.trial_output import check
from agentobs.errors import AgentobsError, RecordingError, UsageError
from agentobs.records.display import printable

if TYPE_CHECKING:
    from agentobs.records.exchanges import Recording
    from replay import Divergence
    from replay.fixture.format import Fixture
    from replay.freeze.conversion import Frozen


@click.command(
    help="""Write fixtures and tests for recorded sessions, and check that each fixture replays.

    SESSION is an ID, a suffix of it (4 characters or more), or a name. Each fixture is replayed twice in fresh
    processes, the second time with another working directory, date, time zone and hash seed. The line `replays` shows
    whether both replays matched, and what to do if not. A fixture that does not replay is kept, and the exit code is 0.
    """
)
@click.argument("sessions", nargs=-1, metavar="[SESSION]...")
@click.option("--last-failed", is_flag=True, help="Take the newest session that failed.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The folder to write; of several sessions, the one for their folders. Default: fixtures/NAME.",
)
@click.option(
    "--until-turn",
    type=click.IntRange(min=1),
    metavar="N",
    help="Leave out what came after the answer of turn N, but for the next request.",
)
@click.option(
    "--turn",
    "failing_turn",
    type=click.IntRange(min=1),
    metavar="N",
    help="The turn in which the session failed. Default: found from the recording. Needed for a session that completed "
    "with a wrong answer.",
)
@click.option(
    "--normalize",
    metavar="RULES",
    help="Rules for values that are new in each run, applied whenever it is replayed: uuid, time, tmp_path, ... "
    "Default: those of the fixture that is there.",
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
    help="Arguments of the entry as JSON: an object (by name) or a list (by position). Default: the recorded ones; "
    "with --entry, none.",
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
    output: Path | None,
    until_turn: int | None,
    failing_turn: int | None,
    normalize: str | None,
    entry: str | None,
    arguments: str | None,
    apply: bool,
    no_check: bool,
    check_timeout: float,
) -> None:
    """Freeze each session, and check that its fixture replays unless `no_check` is set."""
    if bool(sessions) == last_failed:
        raise UsageError("one session is needed", todo="Name a SESSION, or say --last-failed")
    if apply and no_check:
        raise UsageError(
            "the rules come from the check", where="--apply", todo="Leave --no-check out"
        )
    from replay.fixture.fixture_redaction import without_secrets
    from replay.trial.fixture_trial import Trials

    home, whole = home_option(context), until_turn is None
    named = sessions or (None,)
    found = [without_secrets(recorded(home, each, has_ended=whole)) for each in named]
    with Trials(Path.cwd(), check_timeout) as trials:
        for session, folder in zip(found, _folders(found, output), strict=True):
            recording = dataclasses.replace(session, **_started(session.entry, entry, arguments))
            frozen = _freeze(recording, folder, until_turn, failing_turn, normalize)
            is_callable = True
            if not no_check:
                started = {"--entry": entry, "--args": arguments}
                is_callable = check(recording, frozen, home, trials, apply=apply, started=started)
            steps = _next_steps(recording, frozen, folder, is_callable=is_callable)
            for number, line in enumerate(steps):
                click.echo(f"{'       ' if number else 'next   '}{printable(line)}")
            sys.stdout.flush()


def _freeze(
    recording: Recording,
    folder: Path,
    until_turn: int | None,
    failing_turn: int | None,
    normalize: str | None,
) -> Frozen:
    from agentobs.determinism.values import not_kept_in
    from replay.freeze.conversion import freeze as write
    from replay.freeze.conversion import versions

    named = None if normalize is None else _names(normalize)
    frozen = write(recording, folder, versions(), until_turn, named, failing_turn)
    part = f", up to turn {frozen.until}" if frozen.until is not None else ""
    counts = f"{frozen.asks} requests, {frozen.tools} tool calls{part}"
    click.echo(f"froze  {recording.session_id}  {counts}")
    if frozen.failure is not None:
        click.echo(
            f"failed in turn {frozen.failure.turn}: {frozen.failure.reason} (--turn N for another one)"
        )
    if frozen.normalisers:
        rules = printable(", ".join(frozen.normalisers))
        click.echo(f"normalizes  {rules}, in each replay")
    for redacted in frozen.redacted:
        click.echo(f"took out  {printable(redacted.text())}")
    for path, is_new in frozen.files:
        click.echo(f"{'wrote' if is_new else 'kept '}  {printable(str(path))}")
    if recording.result and (kind := not_kept_in(recording.result.value)):
        click.echo(f"result  not kept, and not compared: {printable(kind)}")
    sys.stdout.flush()
    return frozen


def _next_steps(
    recording: Recording, frozen: Frozen, folder: Path, *, is_callable: bool
) -> Iterator[str]:
    """Yield the next steps for a fixture: commands that work for this session, ready to be copied.

    Args:
        recording: the session.
        frozen: what was written.
        folder: the folder of the fixture.
        is_callable: False if the check could not call the entry of the fixture.
    """
    from replay import load
    from replay.agent_code.entry_obstacles import why_not_callable
    from replay.scenario.fork_plan import can_fork

    where = shlex.quote(str(folder))
    problem = why_not_callable(load(frozen.fixture).header)
    if problem is not None:
        imported, call = problem.lines
        yield f"edit {shlex.quote(str(frozen.test))}: add the import, and replace the dots with the second line"
        yield f"    {imported}"
        yield f"    {call.removeprefix('replay.run(').removesuffix(')')}"
    if problem is not None or is_callable:
        yield f"pytest {where}"
    if problem is None and is_callable and can_fork(recording, frozen.turn):
        yield f"agentobs fork {where} --at {frozen.turn}   continues live from there"
    if problem is not None or not is_callable:
        yield f"agentobs serve {where}   answers any client in the provider's place"


def _started(recorded: str | None, entry: str | None, arguments: str | None) -> dict[str, Any]:
    """Return the fields of a recording that change if the command line names the entry or its arguments.

    Raises:
        UsageError: the entry is not `module:name`, the arguments are not JSON, or there is no entry to call.
    """
    if entry is None and arguments is None:
        return {}
    name = entry or recorded
    if name is None or not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", name):
        raise UsageError(
            f"{name!r} does not name a function" if name else "the recording names no function",
            where="--entry",
            todo="Write module:name, such as my_agent:main or my_agent:Agent.answer",
        )
    try:
        given = json.loads(arguments or "{}")
    except ValueError as error:
        raise UsageError(f"expected JSON: {error}", where="--args", todo=_ARGS) from None
    if not isinstance(given, dict | list):
        raise UsageError(
            f"expected an object or a list, got {arguments}", where="--args", todo=_ARGS
        )
    named = given if isinstance(given, dict) else {"*": given}
    return {"entry": name, "arguments": named, "obstacle": None}


_ARGS = """Write an object by name, such as '{"city": "Oslo"}', or a list by position, such as '["Oslo"]'"""


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]


def _folders(found: list[Recording], output: Path | None) -> list[Path]:
    """Return the folder of each session; two of one name get the ends of their ids."""
    if len(found) == 1:
        return [output or Path("fixtures") / _folder_name(found[0].name)]
    names = [_folder_name(each.name) for each in found]
    return [
        (output or Path("fixtures"))
        / (name if names.count(name) == 1 else f"{name}-{each.session_id[-8:]}")
        for name, each in zip(names, found, strict=True)
    ]


@click.command(help="Rerun agents against fixtures and show where they part from them.")
@click.argument("fixtures", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--tools",
    default="recorded",
    show_default=True,
    help="`recorded`: no tool runs; `live`: all run; or names with commas, of tools that run, or each with what "
    "becomes of it: `lookup=verify,*=replay`, also `execute`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a divergence as JSON; of many, all.")
@click.option("--explain", is_flag=True, help="Follow a divergence back, step by step.")
@click.option(
    "--accept-from",
    type=click.IntRange(min=1),
    metavar="N",
    help="Write what is asked now into the fixture, from its request N on; the recorded answers stay.",
)
@click.option("--yes", is_flag=True, help="Write without asking.")
@click.option(
    "--normalize",
    metavar="RULES",
    help="Rules to apply in addition to those of the fixture, separated by commas: uuid, time, tmp_path, ...",
)
@click.option(
    "--entry",
    metavar="MODULE:NAME",
    help="The function to call instead of the recorded one. Its file must be under the current directory.",
)
@click.option(
    "--args",
    "arguments",
    metavar="JSON",
    help="Arguments of the entry as JSON: an object (by name) or a list (by position). Default: the recorded ones; "
    "with --entry, none.",
)
@click.option(
    "--apply",
    is_flag=True,
    help="Write the rules of --normalize into the fixture if the replay matches with them.",
)
@click.option("--trajectory", is_flag=True, help="Print what the agent did, one line a step.")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="WHAT",
    help="A failure to make, as in `529 at turn 3`; may be repeated.",
)
@click.option(
    "--pace",
    metavar="recorded|FACTOR",
    help="Let the recorded time pass, or that many times as fast. Default: none passes.",
)
@click.option(
    "--compare-result/--no-compare-result",
    default=True,
    show_default=True,
    help="Compare the result of the session with the recorded result.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Of one: write a divergence as one HTML file, too, without what was said.",
)
@click.option("--with-content", is_flag=True, help="Put what was said into that file, too.")
@click.option("--light", is_flag=True, help="Make that file small, without any script.")
@click.option("--force", is_flag=True, help="Replace the file of --report where it exists.")
@click.option("-j", "--jobs", type=click.IntRange(min=1), help="Of many: how many at once.")
@click.option("-v", "--verbose", is_flag=True, help="Of many: show each divergence whole.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="Of many: seconds after which one that has not ended is stopped.",
)
def replay(
    fixtures: tuple[Path, ...],
    tools: str,
    as_json: bool,
    explain: bool,
    accept_from: int | None,
    yes: bool,
    normalize: str | None,
    entry: str | None,
    arguments: str | None,
    apply: bool,
    trajectory: bool,
    faults: tuple[str, ...],
    pace: str | None,
    compare_result: bool,
    report: Path | None,
    with_content: bool,
    light: bool,
    force: bool,
    jobs: int | None,
    verbose: bool,
    timeout: float,
) -> None:
    """Replay each FIXTURE, a folder or its recording.jsonl, or all in a folder of fixtures.

    Exits with 1 where a path parts.
    """
    from replay.fixture.fixture_search import fixtures_in, is_one

    rules = _names(normalize or "")
    if apply and not rules:
        raise UsageError(
            "there are no rules to write", where="--apply", todo="Add --normalize RULES"
        )
    given = {
        "faults": faults,
        "pace": _pace(pace),
        "accept_from": accept_from,
        "compare_result": compare_result,
        "normalisers": rules,
    }
    if len(fixtures) == 1 and (is_one(fixtures[0]) or not fixtures_in(fixtures[0])):
        write = _reporting(report, with_content, light, force)
        loaded = _loaded(fixtures[0], entry, arguments)
        _replay_one(loaded, tools, given, as_json, explain, yes, trajectory, write, apply)
        return
    for name, value in {
        "--explain": explain,
        "--accept-from": accept_from,
        "--trajectory": trajectory,
        "--normalize": normalize,
        "--entry": entry,
        "--args": arguments,
        "--report": report,
    }.items():
        if value:
            raise UsageError("is about one fixture", where=name, todo="Name that fixture alone")
    from agentobs.cli.replay.batch import Asked, replay_many, show

    found = [each for path in fixtures for each in fixtures_in(path).values() or [path]]
    asked = [
        Asked(str(each), tools, faults, _pace(pace), compare_result)
        for each in dict.fromkeys(found)
    ]
    done = replay_many(asked, jobs, timeout)
    show(done, as_json=as_json, verbose=verbose)
    sys.exit(any(each.result != "matched" for each in done))


def _loaded(path: Path, entry: str | None, arguments: str | None) -> Fixture:
    """Return a fixture, with the entry and the arguments from the command line."""
    from replay import load

    loaded = load(path)
    loaded.header |= _started(loaded.header.get("entry"), entry, arguments)
    return loaded


def _replay_one(
    loaded: Fixture,
    tools: str,
    given: dict[str, Any],
    as_json: bool,
    explain: bool,
    yes: bool,
    trajectory: bool,
    write: Callable[[Divergence | None], None],
    apply: bool,
) -> None:
    from agentobs.cli.replay.divergence_output import offer, tell
    from replay import DivergenceError, Replayer, ReplayOptions

    replayed = Replayer(loaded, ReplayOptions(tools=policy(tools, loaded), **given))
    try:
        with replayed:
            replayed.run()
    except DivergenceError as error:
        tell(error.divergence, as_json=as_json, explain=explain)
        write(error.divergence)
        sys.exit(1)
    except AgentobsError:
        raise
    except (Exception, SystemExit) as error:
        raised = replayed.raised(error)
        click.echo(raised.json() if as_json else raised.text())
        sys.exit(1)
    if given["accept_from"] is not None:
        offer(replayed, yes=yes)
    done = replayed.progress
    if trajectory:
        click.echo(replayed.trajectory, nl=False)
    until = f", up to turn {loaded.until}" if loaded.until is not None else ""
    click.echo(
        f"MATCHED  {printable(loaded.name)}  {done.requests_matched} of {done.requests} requests, "
        f"{done.tools_matched} of {done.tools} tool calls{until}"
    )
    if apply:
        _apply(loaded, given["normalisers"])
    write(None)


def _apply(fixture: Fixture, rules: list[str]) -> None:
    from replay.fixture.fixture_folder import add_rules

    named = ", ".join(add_rules(fixture, rules))
    click.echo(f"wrote  {printable(str(fixture.path))}, which now normalizes {printable(named)}")


def _reporting(
    report: Path | None, content: bool, light: bool, force: bool
) -> Callable[[Divergence | None], None]:
    """Return what writes a divergence to a file; a file that cannot be is refused before anything runs."""
    if report is None:
        for name, is_said in (("--with-content", content), ("--light", light)):
            if is_said:
                raise UsageError("goes with --report", where=name, todo="Say --report FILE")
        return lambda divergence: None
    from agentobs.cli.inspection.report import check_report

    check_report(report, force)
    return lambda divergence: _write_divergence(report, divergence, content, light, force)


def _write_divergence(
    report: Path, divergence: Divergence | None, content: bool, light: bool, force: bool
) -> None:
    from agentobs.cli.inspection.report import now, write
    from dashboards.report.path_reports import Texts, divergence_report

    if divergence is None:
        click.echo(f"no divergence: {printable(str(report))} was not written", err=True)
        return
    told = json.loads(divergence.json())
    texts = Texts(divergence.text(100), divergence.explanation(100)) if content else None
    text = divergence_report(told, texts, made_ns=now(), light=light)
    write(report, text, force=force, content=content)


def _pace(told: str | None) -> Any:
    """Return the pace that was asked for.

    Raises:
        UsageError: it is neither `recorded` nor a number.
    """
    if told is None or told == "recorded":
        return told
    try:
        return float(told)
    except ValueError:
        raise UsageError(
            f"{told!r} is no pace", where="--pace", todo="Say recorded, or a factor such as 10"
        ) from None


@click.command(help="Answer over loopback HTTP from a recording, in the provider's place.")
@click.argument("recording")
@click.option("--port", default=0, show_default="a free one", help="The port on 127.0.0.1.")
@click.option(
    "--match",
    type=click.Choice(["question", "order"]),
    default="question",
    show_default=True,
    help="Answer the exchange that asks the same, or simply the next one.",
)
@click.option(
    "--chunk",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Send bodies in pieces of so many bytes.",
)
@click.option(
    "--pace",
    type=click.FloatRange(min=0),
    default=0.0,
    help="1 waits between chunks as long as recorded, 2 half as long, 0 (default) not at all.",
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="WHAT@N",
    help="status:529@2 or cut:3@1; may be repeated.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Refuse conversations that the real provider would not take either.",
)
@click.pass_context
def serve(
    context: click.Context,
    recording: str,
    port: int,
    match: Any,
    chunk: int | None,
    pace: float,
    faults: tuple[str, ...],
    strict: bool,
) -> None:
    """Serve RECORDING: a recorded session, a fixture, or a file of exchanges (JSON lines)."""
    from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions, parse_fault

    made = tuple(parse_fault(fault) for fault in faults)
    options = ServeOptions(match, chunk, pace, made, strict)
    provider = ServedProvider(_servable(home_option(context), recording), options, port)
    click.echo(f"serving {len(provider.script.exchanges)} exchanges; stop with Ctrl-C")
    click.echo(f"export ANTHROPIC_BASE_URL={provider.url} NO_PROXY=127.0.0.1")
    sys.stdout.flush()
    provider.serve_forever()


def policy(tools: str, fixture: Fixture) -> Any:
    """Return which tools run, as a replay wants to know it.

    Raises:
        UsageError: a named tool is not in the fixture.
    """
    if tools in ("recorded", "live"):
        return tools
    told = dict(each.partition("=")[::2] for each in tools.split(","))
    known = {tool.question.name for tool in fixture.tools}
    if unknown := sorted(told.keys() - known - ({"*"} if "=" in tools else set())):
        raise UsageError(
            f"no tool {', '.join(unknown)} in the recording",
            where="--tools",
            todo=f"It has {', '.join(sorted(known)) or 'none'}; or say recorded or live",
        )
    if "=" not in tools:
        return frozenset(told)
    return {name: word or "execute" for name, word in told.items()}


def recorded(home: str | None, session: str | None, *, has_ended: bool = False) -> Recording:
    """Return a recorded session whole; None means the newest one that failed.

    Args:
        home: where it was recorded; None: the default.
        session: its id, an end of it, or its name.
        has_ended: whether one that still runs is refused.

    Raises:
        RecordingError: it still runs.
        UsageError: there is no such session.
    """
    from agentobs.recording.journal.home import existing_home
    from agentobs.recording.vault.vault import read_session
    from agentobs.store.duckdb.connection import connect, find_session, named

    found = existing_home(home)
    with connect(found) as connection:
        if session is None:
            failed = named(connection, "last_failed").fetchone()
            if failed is None:
                raise UsageError(
                    "no session failed", where=str(found.path), todo="agentobs sessions lists them"
                )
            session_id = str(failed[0])
        else:
            session_id = find_session(connection, session, key=found.key())
        asked = "SELECT status FROM sessions WHERE session_id = ?"
        if has_ended and connection.execute(asked, [session_id]).fetchone() == ("running",):
            raise RecordingError(
                f"session {session_id} still runs",
                todo="Wait for its end, or freeze what there is: --until-turn N",
            )
        segments = [
            row[0]
            for row in named(connection, "session_segments", session_id=session_id).fetchall()
        ]
    return read_session(found, session_id, segments)


def _servable(home: str | None, named: str) -> Recording:
    path = Path(named)
    if path.is_file() and not _is_fixture(path):
        from agentobs.recording.wire.exchange_file import read_wire_file

        return read_wire_file(path)
    if path.exists():
        from replay.fixture.format import as_recording, load

        return as_recording(load(path))
    return recorded(home, named)


def _is_fixture(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(64).lstrip().startswith(b'{"agentobs_fixture"')


def _folder_name(name: str) -> str:
    name = re.sub(r"\[redacted:[a-z0-9_]+(:[0-9a-f]+)?\]", " redacted ", name)
    safe = "".join(c if c.isalnum() or c in "-_." else " " for c in name)
    return "-".join(safe.split())[:80].strip("-.") or "session"
