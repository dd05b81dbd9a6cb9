"""The command that reports the failure signatures of a session: diagnose."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.instants import WHEN
from agentobs.cli.terminal.query_output import (
    as_dicts,
    fetched,
    open_store,
    print_rows,
    rows_of,
    session_of,
)
from agentobs.cli.terminal.tables import show_table
from agentobs.errors import UsageError
from agentobs.records.display import pretty, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentobs.cli.inspection.contradictions import Judgment
    from agentobs.store.analysis.diagnosis import Verdict


@click.command(help="Report the failure signatures of a session, and what to do about them.")
@click.argument("session", required=False)
@click.option("--all", "every", is_flag=True, help="Show a table over all sessions instead.")
@click.option(
    "--since",
    type=WHEN,
    metavar="WHEN",
    help=(
        "With --all: only sessions that started at or after this time: 30m, 12h, 7d, 2w ago, "
        "or a day in UTC."
    ),
)
@click.option(
    "--judge",
    metavar="MODEL",
    help="Also ask this model whether answers contradict the tool results.",
)
@click.option("--fail", is_flag=True, help="Exit with 1 if a signature is found.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object per line.")
@click.pass_context
def diagnose(
    context: click.Context,
    session: str | None,
    every: bool,
    since: int | None,
    judge: str | None,
    fail: bool,
    as_json: bool,
) -> None:
    """Diagnose SESSION: its ID, a suffix of it (4 characters or more), or its name."""
    if bool(session) == every:
        raise UsageError("expected one session, or --all", todo="Pass a SESSION or --all")
    if (since is not None and not every) or (judge and every):
        raise UsageError(
            "--since requires --all, and --judge requires a SESSION",
            todo="`agentobs diagnose --help` explains the options",
        )
    fires = (
        _all(context, since, as_json) if session is None else _one(context, session, judge, as_json)
    )
    if fail and fires:
        sys.exit(1)


def _all(context: click.Context, since: int | None, as_json: bool) -> bool:
    from agentobs.store.analysis.diagnosis import diagnose_all

    with open_store(context) as store:
        rows = fetched(diagnose_all(store, since))
    print_rows(rows, _FIRES, "json" if as_json else "table")
    return bool(rows[1])


def _one(context: click.Context, session: str, judge: str | None, as_json: bool) -> bool:
    from agentobs.store.analysis.diagnosis import diagnose as verdicts_of

    with open_store(context) as store:
        session_id = session_of(store, session)
        verdicts = verdicts_of(store, session_id)
        started = as_dicts(rows_of(store, "internal/session_start", session_id=session_id))
    name, kept = (started[0]["name"], started[0]["content"]) if started else (None, None)
    if judge and kept == "off":
        raise UsageError(
            "the content of this session was not recorded, so a model cannot judge it",
            where=f"--judge {judge[:80]}",
            todo="Leave out --judge; all signatures work without content",
        )
    judged = _judged(context, session_id, judge) if judge else []
    if as_json:
        _print_json(session_id, verdicts, judged)
    else:
        click.echo(printable(" ".join(filter(None, (session_id, name)))))
        _print_verdicts(verdicts)
        for each in judged:
            _print_judgment(each)
    return any(verdict.fires for verdict in verdicts) or any(each.contradicts for each in judged)


def _judged(context: click.Context, session_id: str, model: str) -> Sequence[Judgment]:
    from agentobs.cli.inspection.contradictions import judge
    from agentobs.cli.terminal.recordings import recorded

    home = home_option(context)
    return judge(recorded(home, session_id), model, home)


_FIRES = ("started_ns", "session_id", "name", "signature", "times", "strength", "about", "detail")
_EVIDENCE = ("at_ns", "lane", "turn", "about", "detail", "strength")
SHOWN = 5
"""How many rows of evidence are shown for each signature; `--json` shows all."""


def _print_verdicts(verdicts: Sequence[Verdict]) -> None:
    from agentobs.store.analysis.diagnosis import SIGNATURES

    meaning = {signature.name: signature.fires for signature in SIGNATURES}
    for verdict in verdicts:
        if not verdict.fires:
            continue
        strongest = sorted(verdict.evidence, key=lambda row: -row["strength"])[:SHOWN]
        times = len(verdict.evidence)
        click.echo(f"\n{verdict.signature}: {meaning[verdict.signature]}")
        rows = [[pretty(name, row[name]) for name in _EVIDENCE] for row in strongest]
        show_table([_HEADINGS.get(name, name) for name in _EVIDENCE], rows)
        if times > SHOWN:
            click.echo(f"... and {times - SHOWN:,} more")
        click.echo(f"do: {verdict.todo}.")
    quiet = [v.signature for v in verdicts if not v.fires and not v.cannot_tell]
    if quiet:
        click.echo(f"\nnot found: {', '.join(quiet)}")
    for verdict in verdicts:
        if verdict.cannot_tell:
            click.echo(f"could not be checked: {verdict.signature} ({verdict.cannot_tell})")


_HEADINGS = {"at_ns": "at (UTC)", "strength": "x threshold"}


def _print_judgment(judged: Judgment) -> None:
    outcome = "contradicts its results" if judged.contradicts else "agrees with its results"
    if judged.contradicts is None:
        outcome = "was not judged: the reply was neither CONTRADICTS nor AGREES"
    click.echo(
        f"\njudge {printable(judged.model)}: the answer of turn {judged.turn} in {judged.lane} {outcome}"
    )


def _print_json(session_id: str, verdicts: Sequence[Verdict], judged: Sequence[Judgment]) -> None:
    columns = ["session_id", *(field.name for field in dataclasses.fields(verdicts[0]))]
    rows: list[dict[str, Any]] = [dataclasses.asdict(verdict) for verdict in verdicts]
    rows += [
        {
            "signature": "judged_contradictions",
            "fires": bool(each.contradicts),
            "strength": 1.0 if each.contradicts else 0.0,
            "evidence": [dataclasses.asdict(each)],
            "cannot_tell": "the reply was neither CONTRADICTS nor AGREES"
            if each.contradicts is None
            else None,
            "todo": "Compare the answer with the results: agentobs show SESSION --content",
        }
        for each in judged
    ]
    values = [(session_id, *(row[name] for name in columns[1:])) for row in rows]
    print_rows((columns, values), (), "json")
