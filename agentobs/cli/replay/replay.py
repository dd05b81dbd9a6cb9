"""`agentobs replay`: replay an agent against a fixture and report the first divergence."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agentobs.cli.replay.tool_choice import policy
from agentobs.cli.terminal.progress_line import Progress
from agentobs.cli.terminal.report_file import light_options
from agentobs.errors import AgentobsError, UsageError
from agentobs.records.display import printable

if TYPE_CHECKING:
    from replay import Divergence
    from replay.fixture.format import Fixture
from agentobs.cli.replay.entry_options import entry_fields, rule_names


@click.command()
@click.argument("fixtures", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--tools",
    default="recorded",
    show_default=True,
    help="Which tools run: `recorded` (no tool), `live` (all tools), a list of names, or a policy for "
    "each name: `lookup=verify,*=replay`. Policies: replay, verify, execute.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print divergences as JSON; with several fixtures, all results.",
)
@click.option("--explain", is_flag=True, help="Print the causal chain of a divergence.")
@click.option(
    "--accept-from",
    type=click.IntRange(min=1),
    metavar="N",
    help=(
        "Replace the recorded requests from request N on with the new ones; keep the recorded "
        "responses."
    ),
)
@click.option("--yes", is_flag=True, help="Write without asking for confirmation.")
@click.option(
    "--normalize",
    metavar="RULES",
    help="Rules to apply in addition to the rules of the fixture, separated by commas: uuid, time, tmp_path, ...",
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
    help="Arguments of the entry as JSON: an object (by name) or a list (by position). Default: the recorded "
    "arguments; with --entry, no arguments.",
)
@click.option(
    "--apply",
    is_flag=True,
    help="Write the rules of --normalize into the fixture if the replay matches with them.",
)
@click.option("--trajectory", is_flag=True, help="Print the actions of the agent, one per line.")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="WHAT",
    help="A fault to inject, such as `529 at turn 3`. May be repeated.",
)
@click.option(
    "--pace",
    metavar="recorded|FACTOR",
    help=(
        "Timing of responses: `recorded` pauses as in the recording; a number N plays the responses "
        "N times as fast. Default: no pauses."
    ),
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
    help=(
        "With one fixture: also write a divergence as one HTML file, without prompts and responses."
    ),
)
@click.option("--with-content", is_flag=True, help="With --report: include prompts and responses.")
@light_options
@click.option("--force", is_flag=True, help="With --report: replace an existing file.")
@click.option(
    "-j", "--jobs", type=click.IntRange(min=1), help="Number of fixtures to replay in parallel."
)
@click.option(
    "-v", "--verbose", is_flag=True, help="With several fixtures: print each divergence in full."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=120.0,
    show_default=True,
    help="Timeout per fixture, in seconds, when replaying several.",
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
    light: bool | None,
    force: bool,
    jobs: int | None,
    verbose: bool,
    timeout: float,
) -> None:
    """Replay an agent against a fixture and report the first divergence.

    Each of FIXTURES is the folder of a fixture, its recording.jsonl, or a folder of fixtures. Exits with 1 if a replay
    diverges.
    """
    from replay.fixture.fixture_search import fixtures_in, is_fixture

    rules = rule_names(normalize or "")
    if apply and not rules:
        raise UsageError("no rules to write", where="--apply", todo="Add --normalize RULES")
    trial_options = {
        "faults": faults,
        "pace": _pace(pace),
        "accept_from": accept_from,
        "compare_result": compare_result,
        "normalizers": rules,
    }
    if len(fixtures) == 1 and (is_fixture(fixtures[0]) or not fixtures_in(fixtures[0])):
        if _is_command(fixtures[0]):
            from agentobs.cli.replay.command_output import replay_command

            replay_command(click.get_current_context(), fixtures[0])
        write = _reporting(report, with_content, light, force)
        loaded = _loaded(fixtures[0], entry, arguments)
        _replay_one(loaded, tools, trial_options, as_json, explain, yes, trajectory, write, apply)
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
            raise UsageError(
                "this option requires exactly one fixture", where=name, todo="Pass a single fixture"
            )
    from agentobs.cli.replay.batch import Job, replay_many, show

    found = [each for path in fixtures for each in fixtures_in(path).values() or [path]]
    batch = [
        Job(str(each), tools, faults, _pace(pace), compare_result, timeout)
        for each in dict.fromkeys(found)
    ]
    with Progress("fixtures replayed") as progress:
        done = replay_many(batch, jobs, timeout, progress)
    show(done, as_json=as_json, verbose=verbose)
    sys.exit(any(each.result != "matched" for each in done))


def _is_command(path: Path) -> bool:
    """Return whether a fixture was recorded from a command."""
    from agentobs.determinism.entry import is_command
    from replay import load

    return is_command(load(path).header["entry"])


def _loaded(path: Path, entry: str | None, arguments: str | None) -> Fixture:
    """Return a fixture, with the entry and the arguments from the command line."""
    from replay import load

    loaded = load(path)
    loaded.header |= entry_fields(loaded.header.get("entry"), entry, arguments)
    return loaded


def _replay_one(
    loaded: Fixture,
    tools: str,
    trial_options: dict[str, Any],
    as_json: bool,
    explain: bool,
    yes: bool,
    trajectory: bool,
    write: Callable[[Divergence | None], None],
    apply: bool,
) -> None:
    from agentobs.cli.replay.divergence_output import offer, print_divergence
    from replay import DivergenceError, Replayer, ReplayOptions

    replayed = Replayer(loaded, ReplayOptions(tools=policy(tools, loaded), **trial_options))
    try:
        with replayed:
            replayed.run()
    except DivergenceError as error:
        print_divergence(error.divergence, as_json=as_json, explain=explain)
        write(error.divergence)
        sys.exit(1)
    except AgentobsError:
        raise
    except (Exception, SystemExit) as error:
        raised = replayed.raised(error)
        click.echo(raised.json() if as_json else raised.text())
        sys.exit(1)
    if trial_options["accept_from"] is not None:
        offer(replayed, yes=yes)
    progress = replayed.progress
    if trajectory:
        click.echo(replayed.trajectory, nl=False)
    until = f", up to turn {loaded.until_turn}" if loaded.until_turn is not None else ""
    click.echo(
        f"MATCHED  {printable(loaded.name)}  {progress.requests_matched} of {progress.requests} requests, "
        f"{progress.tools_matched} of {progress.tools} tool calls{until}"
    )
    if (files := replayed.workspace.files) is not None:
        click.echo(f"  {files.line()}")
    if apply:
        _apply(loaded, trial_options["normalizers"])
    write(None)


def _apply(fixture: Fixture, rules: list[str]) -> None:
    from replay.fixture.fixture_folder import add_rules

    named = ", ".join(add_rules(fixture, rules))
    click.echo(f"wrote  {printable(str(fixture.path))}, which now normalizes {printable(named)}")


def _reporting(
    report: Path | None, content: bool, light: bool | None, force: bool
) -> Callable[[Divergence | None], None]:
    """Return the function that writes a divergence to a file. The file is checked before the replay starts."""
    if report is None:
        given = (
            ("--with-content", content),
            ("--light", light is True),
            ("--interactive", light is False),
        )
        for name, is_given in given:
            if is_given:
                raise UsageError("requires --report", where=name, todo="Pass --report FILE")
        return lambda divergence: None
    from agentobs.cli.terminal.report_file import check_report

    check_report(report, force)
    return lambda divergence: _write_divergence(
        report, divergence, content, light is not False, force
    )


def _write_divergence(
    report: Path, divergence: Divergence | None, content: bool, light: bool, force: bool
) -> None:
    from agentobs.cli.terminal.report_file import now, write
    from dashboards.report.path_reports import Texts, divergence_report

    if divergence is None:
        click.echo(f"no divergence: {printable(str(report))} was not written", err=True)
        return
    facts = json.loads(divergence.json())
    texts = Texts(divergence.text(100), divergence.explanation(100)) if content else None
    text = divergence_report(facts, texts, made_ns=now(), light=light)
    write(report, text, force=force, content=content)


def _pace(pace: str | None) -> Any:
    """Parse the value of `--pace`.

    Raises:
        UsageError: the value is neither `recorded` nor a number.
    """
    if pace is None or pace == "recorded":
        return pace
    try:
        return float(pace)
    except ValueError:
        raise UsageError(
            f"expected `recorded` or a number, got {pace!r}",
            where="--pace",
            todo="Pass recorded, or a factor such as 10",
        ) from None
