"""The command that forks a session with several models, and verifies the files of each fork: `compare`."""

from __future__ import annotations

import json
import shutil
import sys
from decimal import ROUND_UP, Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agentobs.cli.replay.fork import fork_source
from agentobs.cli.replay.live_options import at_option, system_option
from agentobs.cli.replay.workspace_choice import (
    dollars,
    keep_with,
    kept_directory,
    new_directory,
    print_exactness,
    with_links,
)
from agentobs.cli.terminal.home_option import home_option
from agentobs.errors import UsageError, error_kind
from agentobs.records.display import certain_money, money, printable, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentobs.cli.replay.fork_runs import Row, Verification
    from agentobs.effects.workspaces.fork_directories import ForkDirectory
    from replay.fixture.format import Fixture
    from replay.scenario.live_meter import LiveUse
    from replay.workspace.recorded_workspace import RecordedWorkspace

COLUMNS = (
    "model", "run", "verdict", "turns", "tokens", "cost", "time", "files", "session id", "problem",
)  # fmt: skip
CENT_PARTS = Decimal("0.0001")
"""Amounts are shown with this precision, so maxima are rounded up to it."""
RUNS_MAX = 20
"""The maximum number of runs per model. Our choice."""


class _ForksOnly(click.Command):
    """A command whose errors name `agentobs diff`, because the dashboards call its comparison Compare."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        has_models = any(each.partition("=")[0] == "--models" for each in args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            if has_models:
                raise
            message = f"{error.format_message()} To compare two sessions, run: agentobs diff A B"
            raise click.UsageError(message, ctx) from None


@click.command(cls=_ForksOnly)
@click.argument("source", metavar="FIXTURE|SESSION")
@at_option
@click.option("--models", required=True, metavar="A,B,...", help="The models of the forks.")
@click.option(
    "--verify",
    required=True,
    metavar="COMMAND",
    help="The command that decides whether a fork has passed: exit code 0. It runs in the fork's directory, with `sh`.",
)
@click.option(
    "--runs",
    type=click.IntRange(1, RUNS_MAX),
    default=1,
    show_default=True,
    help="The number of forks for each model.",
)
@click.option(
    "--max-usd",
    metavar="X",
    help="Start no fork that could bring the total cost above this number of dollars.",
)
@click.option(
    "--prompt",
    metavar="TEXT",
    help="A text for the models, sent with the tool results of turn N; @FILE reads it from a file.",
)
@system_option
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="KEY=JSON",
    help="Another field of the live requests. May be repeated.",
)
@click.option(
    "--link",
    "links",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Link a path of the current directory into each directory, such as node_modules. May be repeated.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The new directory for the directories of the forks. Default: a temporary directory, which is deleted "
    "when all of its forks are pruned.",
)
@click.option(
    "--verify-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of the command of --verify.",
)
@click.option("--yes", is_flag=True, help="Start without asking for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def compare(
    context: click.Context,
    source: str,
    turn: int,
    models: str,
    verify: str,
    runs: int,
    max_usd: str | None,
    prompt: str | None,
    system: str | None,
    options: tuple[str, ...],
    links: tuple[Path, ...],
    output: Path | None,
    verify_timeout: float,
    yes: bool,
    as_json: bool,
) -> None:
    """Fork a session with several models, and verify the files of each fork with a command.

    FIXTURE is the folder of a fixture, or its recording.jsonl; it must have files (`agentobs freeze --workspace`).
    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name. Its files must have
    been recorded (`--effects files`).

    Each fork runs in its own directory, one after another, and is recorded as a session. First shows the maximum cost
    of all forks, and asks for confirmation. Exits with 1 if a fork did not run to its end.
    """
    from agentobs.cli.replay.fork_runs import Verification, recorded_row
    from replay.command.child_program import stopped_by_signals

    names = _names(models)
    limit = dollars(max_usd)
    fixture, workspace = fork_source(home_option(context), source, turn)
    if workspace is None:
        raise UsageError(
            "this session has no recorded files",
            where=source,
            todo="Record files with `agentobs record --effects files`, or freeze the session with --workspace",
        )
    workspace.at_turn(turn)
    print_exactness(workspace, turn)
    workspace = with_links(workspace, links)
    maxima = _maxima(fixture, turn, names)
    _check_limit(limit, maxima)
    context.with_resource(stopped_by_signals())
    kept: ForkDirectory | None = None
    if output is None:
        kept = kept_directory(home_option(context), "agentobs-compare-")
        folder = kept.path
    else:
        folder = _folder(output)
    verification = Verification(verify, verify_timeout)
    has_started = False
    try:
        first = recorded_row(
            workspace,
            *_recorded(fixture, turn),
            verification,
            folder / "recorded" / workspace.name,
        )
        _print_plan(fixture, turn, runs, maxima, limit, first)
        has_started = yes or (sys.stdin.isatty() and click.confirm("start?", err=True))
    finally:
        if not has_started:
            _delete(folder, kept)
    if not has_started:
        click.echo("not started: pass --yes to start without confirmation", err=True)
        sys.exit(1)
    arguments = _arguments(context, source, turn, prompt, system, options, links)
    rows, is_interrupted = _run_all(
        names, runs, maxima, limit, arguments, workspace, verification, folder
    )
    if kept is not None:
        keep_with(kept, [name for each in rows for name in each.session_ids])
    _print(fixture, turn, [first, *rows], folder, as_json=as_json)
    sys.exit(130 if is_interrupted else int(any(each.problem for each in rows)))


def _names(models: str) -> list[str]:
    names = list(dict.fromkeys(each.strip() for each in models.split(",") if each.strip()))
    if not names:
        raise UsageError("no models given", where="--models", todo="Pass names separated by commas")
    return names


def _maxima(fixture: Fixture, turn: int, names: Sequence[str]) -> dict[str, Decimal]:
    """Return how much a fork may cost at most, in dollars, by model.

    Raises:
        UsageError: a model has no price, so its cost cannot be limited.
    """
    from replay.scenario.live_meter import fork_maximum

    found: dict[str, Decimal] = {}
    for name in names:
        most = fork_maximum(fixture, turn, name)
        if most is None:
            raise UsageError(
                f"no price is known for the model {name}, so its cost cannot be limited",
                where="--models",
                todo="Correct the name, or give it a price in prices.toml",
            )
        found[name] = most.quantize(CENT_PARTS, ROUND_UP)
    if not any(found.values()):
        raise UsageError(
            f"the session has no request after turn {turn}, so a fork has nothing to continue",
            where="--at",
            todo="Choose an earlier turn",
        )
    return found


def _check_limit(limit: Decimal | None, maxima: Mapping[str, Decimal]) -> None:
    least = min(maxima.values())
    if limit is not None and limit < least:
        raise UsageError(
            f"the limit allows no fork: the cheapest one could cost {money(least)}",
            where="--max-usd",
            todo="Nothing was sent. Raise the limit, or choose a later turn or other models",
        )


def _delete(folder: Path, kept: ForkDirectory | None) -> None:
    """Delete the directory of a comparison that has not started."""
    try:
        if kept is None:
            shutil.rmtree(folder)
        else:
            kept.delete()
    except OSError as error:
        where = printable(str(folder))
        click.echo(f"{where} was not deleted completely: {error_kind(error)}", err=True)


def _folder(output: Path) -> Path:
    folder = new_directory(output)
    if folder.exists():
        raise UsageError("this directory exists", where=str(output), todo="Choose a new directory")
    folder.mkdir(parents=True)
    return folder


def _recorded(fixture: Fixture, turn: int) -> tuple[LiveUse, str]:
    """Return what the recorded session used after the turn, and its model."""
    from agentobs.provider.registry import message_of
    from replay.scenario.live_meter import recorded_use

    models = [
        message_of(each.path, each.answer).model for each in fixture.requests if each.turn == turn
    ]
    return recorded_use(fixture, turn), next((each for each in models if each), "recorded")


def _arguments(
    context: click.Context,
    source: str,
    turn: int,
    prompt: str | None,
    system: str | None,
    options: Sequence[str],
    links: Sequence[Path],
) -> list[str]:
    """Return the arguments of `agentobs` for each fork, without its model, limit and directory."""
    home = home_option(context)
    given = [("--prompt", prompt), ("--system", system)]
    return [
        *(["--home", home] if home is not None else []),
        *("fork", source, "--at", str(turn)),
        *(part for name, value in given if value is not None for part in (name, value)),
        *(part for each in options for part in ("--set", each)),
        *(part for each in links for part in ("--link", str(each))),
    ]


def _run_all(
    names: Sequence[str],
    runs: int,
    maxima: Mapping[str, Decimal],
    limit: Decimal | None,
    arguments: Sequence[str],
    workspace: RecordedWorkspace,
    verification: Verification,
    folder: Path,
) -> tuple[list[Row], bool]:
    """Run all forks one after another; return their rows, and whether the user has interrupted them."""
    from agentobs.cli.replay.fork_runs import Row, run_fork

    planned = [Row(name, run) for run in range(1, runs + 1) for name in names]
    spent = Decimal(0)
    for number, row in enumerate(planned, 1):
        most = maxima[row.model]
        if limit is not None and spent + most > limit:
            row.problem = f"not started: {money(spent)} is spent, and it could cost {money(most)}"
            continue
        click.echo(f"fork {number} of {len(planned)}: {printable(row.model)}", err=True)
        root = folder / str(number) / workspace.name
        root.parent.mkdir()
        try:
            run_fork(row, arguments, most, workspace, verification, root)
        except KeyboardInterrupt:
            row.problem = row.problem or "interrupted"
            for each in planned[number:]:
                each.problem = "not started: interrupted"
            return planned, True
        # If the cost is not exact, it may be anything up to the limit of the fork.
        is_exact = row.use.usd is not None and row.use.status == "exact"
        spent += row.use.usd if is_exact and row.use.usd is not None else most
    return planned, False


def _print_plan(
    fixture: Fixture,
    turn: int,
    runs: int,
    maxima: Mapping[str, Decimal],
    limit: Decimal | None,
    first: Row,
) -> None:
    """Print what will run, and what it can cost at most."""
    from replay.scenario.live_meter import MARGIN

    total = runs * sum(maxima.values(), Decimal(0))
    shown = total if limit is None else min(total, limit)
    each = ", ".join(f"{printable(name)} {money(most)}" for name, most in maxima.items())
    if first.verified is not None:
        click.echo(f"verify   recorded session: {first.verified.text()}", err=True)
    count = runs * len(maxima)
    click.echo(
        f"plan     {count} fork{'s' * (count != 1)} of {printable(fixture.name)} after turn {turn}, one after another",
        err=True,
    )
    click.echo(
        f"cost     at most {money(shown)} ({each} for each fork)\n"
        f"         A fork may cost {MARGIN} times the recorded part after turn {turn}, without savings by the cache,\n"
        "         and one more request. It sends no request that could exceed this.",
        err=True,
    )


def _print(
    fixture: Fixture, turn: int, rows: Sequence[Row], folder: Path, *, as_json: bool
) -> None:
    if as_json:
        value = {
            "name": fixture.name,
            "turn": turn,
            "directory": str(folder),
            "rows": [each.as_json() for each in rows],
        }
        click.echo(json.dumps(value, ensure_ascii=False))
        return
    from agentobs.cli.terminal.tables import show_table

    click.echo(f"{printable(fixture.name)}: turns, tokens and cost after turn {turn}")
    show_table(COLUMNS, [_cells(each) for each in rows])
    click.echo(f"files    {printable(str(folder))}: a directory for each fork, by its number")


def _cells(row: Row) -> tuple[object, ...]:
    cost = certain_money(row.use.usd, row.use.status) or "-"
    return (
        row.model,
        "recorded" if row.run is None else row.run,
        row.verified.text() if row.verified else "-",
        row.use.turns,
        row.use.tokens,
        cost,
        seconds(row.duration_ns) or "-",
        row.files_changed,
        " ".join(row.session_ids) or "-",
        printable(row.problem or ""),
    )
