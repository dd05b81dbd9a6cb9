"""The command that reports the failure signatures of a session: `diagnose`."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.inspection.failure_output import failed_steps_of, failure_of, print_outcome
from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.instants import WHEN, zone_name
from agentobs.cli.terminal.progress_line import Spinner
from agentobs.cli.terminal.query_output import (
    as_dicts,
    open_store,
    print_rows,
    readable,
    rows_of,
    rows_of_table,
    session_of,
    with_lane_names,
)
from agentobs.cli.terminal.tables import print_line, show_table
from agentobs.errors import UsageError
from agentobs.records.display import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentobs.cli.inspection.contradictions import Judgment
    from agentobs.store.analysis.diagnosis import Verdict
    from agentobs.store.port import Store


@click.command()
@click.argument("session", required=False)
@click.option(
    "--all",
    "all_sessions",
    is_flag=True,
    help="Show a table of all sessions instead of one session.",
)
@click.option(
    "--since",
    type=WHEN,
    metavar="WHEN",
    help=(
        "With --all: only sessions that started at or after this time, given as a duration before "
        "now (30m, 12h, 7d, 2w) or as a local day or time."
    ),
)
@click.option(
    "--judge",
    metavar="MODEL",
    help="Also ask this model whether final answers contradict the tool results.",
)
@click.option("--fail", is_flag=True, help="Exit with 1 if a failure signature is found.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
@click.pass_context
def diagnose(
    context: click.Context,
    session: str | None,
    all_sessions: bool,
    since: int | None,
    judge: str | None,
    fail: bool,
    as_json: bool,
) -> None:
    """Report why a session failed, its failure signatures, and what to do about them.

    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name.
    """
    if bool(session) == all_sessions:
        raise UsageError("expected one session, or --all", todo="Pass a SESSION or --all")
    if (since is not None and not all_sessions) or (judge and all_sessions):
        raise UsageError(
            "--since requires --all, and --judge requires a SESSION",
            todo="`agentobs diagnose --help` explains the options",
        )
    is_found = (
        _all(context, since, as_json) if session is None else _one(context, session, judge, as_json)
    )
    if fail and is_found:
        sys.exit(1)


def _all(context: click.Context, since: int | None, as_json: bool) -> bool:
    from agentobs.store.analysis.diagnosis import diagnose_all

    with open_store(context) as store:
        with Spinner("searching for failure signatures"):
            rows = rows_of_table(diagnose_all(store, since), store)
    print_rows(rows, _FINDINGS, "json" if as_json else "table")
    return any(row["signature"] != "failure" for row in as_dicts(rows))


def _one(context: click.Context, session: str, judge: str | None, as_json: bool) -> bool:
    from agentobs.store.analysis.diagnosis import diagnose as verdicts_of

    with open_store(context) as store:
        session_id = session_of(store, session)
        with Spinner("searching for failure signatures"):
            verdicts = verdicts_of(store, session_id)
            failure = failure_of(store, session_id)
        started = as_dicts(rows_of(store, "internal/session_start", session_id=session_id))
        start = started[0] if started else dict.fromkeys(("name", "content", "source"))
        if judge and start["content"] == "off":
            raise UsageError(
                "the content of this session was not recorded, so a model cannot judge it",
                where=f"--judge {judge[:80]}",
                todo="Leave out --judge; all signatures work without content",
            )
        if not as_json:
            verdicts = [_with_agents(each, store, session_id) for each in verdicts]
            click.echo(printable(" ".join(filter(None, (session_id, start["name"])))))
            _print_outcome(store, session_id, failure)
    todo = FAILURE_TODO if start["source"] in (None, "recorded") else LOG_TODO
    todo = todo.replace(" SESSION", f" {session_id}")
    judgments = _judgments(context, session_id, judge) if judge else []
    if as_json:
        _print_json(session_id, failure, todo, verdicts, judgments)
    else:
        if failure is not None:
            print_line(f"what to do: {todo}.")
        _print_verdicts(verdicts)
        for each in judgments:
            _print_judgment(each)
    return any(verdict.is_found for verdict in verdicts) or any(
        each.contradicts for each in judgments
    )


def _print_outcome(store: Store, session_id: str, failure: dict[str, Any] | None) -> None:
    """Print the status of a session, and what failed."""
    [about] = as_dicts(rows_of(store, "internal/session", session_id=session_id))
    turns = as_dicts(rows_of(store, "session_turns", session_id=session_id))
    groups = failed_steps_of(store, session_id, turns)
    click.echo()
    print_outcome(store, session_id, failure, str(about["status"]), groups, with_status=True)


def _with_agents(verdict: Verdict, store: Store, session_id: str) -> Verdict:
    """Return a verdict whose evidence has the display names of lanes in place of the lanes."""
    rows = verdict.evidence
    if not rows:
        return verdict
    named = with_lane_names(
        (list(rows[0]), [tuple(row.values()) for row in rows]), store, session_id
    )
    return dataclasses.replace(verdict, evidence=tuple(as_dicts(named)))


def _judgments(context: click.Context, session_id: str, model: str) -> Sequence[Judgment]:
    from agentobs.cli.inspection.contradictions import judge
    from agentobs.cli.terminal.recordings import load_recording

    home = home_option(context)
    with Spinner("waiting for the judgment"):
        return judge(load_recording(home, session_id), model, home)


FAILURE_TODO = (
    "Read the messages with `agentobs show SESSION --content`, and turn the failure into a test with "
    "`agentobs freeze SESSION`"
)
LOG_TODO = (
    "Read the messages with `agentobs show SESSION --content`. A session that was imported from a log cannot be "
    "replayed; record the agent to turn its next failure into a test"
)
_FINDINGS = (
    "started_ns",
    "session_id",
    "name",
    "signature",
    "times",
    "strength",
    "about",
    "detail",
)
_EVIDENCE = ("at_ns", "lane", "turn", "about", "detail")
SHOWN = 5
"""The maximum number of rows of evidence that are shown for each signature; `--json` shows all."""


def _print_verdicts(verdicts: Sequence[Verdict]) -> None:
    from agentobs.store.analysis.diagnosis import SIGNATURES

    meaning = {signature.name: signature.meaning for signature in SIGNATURES}
    for verdict in verdicts:
        if not verdict.is_found:
            continue
        strongest = sorted(verdict.evidence, key=lambda row: -row["strength"])[:SHOWN]
        times = len(verdict.evidence)
        click.echo(f"\n{verdict.signature}: {meaning[verdict.signature]}")
        rows = [[readable(name, row[name]) for name in _EVIDENCE] for row in strongest]
        show_table([_heading(name) for name in _EVIDENCE], rows, keys=_EVIDENCE)
        if times > SHOWN:
            click.echo(f"... and {times - SHOWN:,} more")
        print_line(f"what to do: {verdict.todo}.")
    not_found = [v.signature for v in verdicts if not v.is_found and not v.unknown_reason]
    if not_found:
        click.echo()
        print_line(f"not found: {', '.join(not_found)}")
    for verdict in verdicts:
        if verdict.unknown_reason:
            click.echo(f"could not be checked: {verdict.signature} ({verdict.unknown_reason})")


def _heading(column: str) -> str:
    return f"at ({zone_name()})" if column == "at_ns" else column


def _print_judgment(judgment: Judgment) -> None:
    outcome = "contradicts its results" if judgment.contradicts else "agrees with its results"
    if judgment.contradicts is None:
        outcome = "was not judged: the reply was neither CONTRADICTS nor AGREES"
    click.echo(
        f"\njudge {printable(judgment.model)}: the answer of turn {judgment.turn} in {judgment.lane} {outcome}"
    )


def _print_json(
    session_id: str,
    failure: dict[str, Any] | None,
    todo: str,
    verdicts: Sequence[Verdict],
    judgments: Sequence[Judgment],
) -> None:
    columns = ["session_id", *(field.name for field in dataclasses.fields(verdicts[0]))]
    rows: list[dict[str, Any]] = [
        {
            "signature": "failure",
            "is_found": failure is not None,
            "strength": 1.0 if failure is not None else 0.0,
            "evidence": [failure] if failure is not None else [],
            "unknown_reason": None,
            "todo": todo,
        }
    ]
    rows += [dataclasses.asdict(verdict) for verdict in verdicts]
    rows += [
        {
            "signature": "judged_contradictions",
            "is_found": bool(each.contradicts),
            "strength": 1.0 if each.contradicts else 0.0,
            "evidence": [dataclasses.asdict(each)],
            "unknown_reason": "the reply was neither CONTRADICTS nor AGREES"
            if each.contradicts is None
            else None,
            "todo": f"Compare the answer with the results: agentobs show {session_id} --content",
        }
        for each in judgments
    ]
    values = [(session_id, *(row[name] for name in columns[1:])) for row in rows]
    print_rows((columns, values), (), "json")
