"""The tab of a session with its commands: freeze, replay and fork; and the endpoints that start and cancel them.

Commands run only after a POST, which the guard accepts only from pages of the dashboard. The output of a command may
quote content, so it is content: it is shown on a click.
"""

from __future__ import annotations

import hmac
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from agentobs.errors import UsageError
from agentobs.records.whole_numbers import whole_number
from dashboards.app.commands.command_jobs import Action, Commands, Fixture, Job, JobRunner
from dashboards.app.content_forms import MOST_FIELDS, Fields, content_response, on_click
from dashboards.app.opened_session import OpenedSession, open_session
from dashboards.app.site import page_response, session_named, site_of
from dashboards.app.store_view import Row, View
from dashboards.content.edits import Line, text_lines
from dashboards.content.visible_text import text_of, visible
from dashboards.panels.session_outcomes import content_state
from dashboards.panels.templates import page, segment
from dashboards.panels.trace_tree import TraceTree
from dashboards.report.path_reports import divergence_facts

SHOWN_CHARACTERS = 200_000
"""The maximum number of characters that a page shows at the end of each output. Our choice."""


@dataclass(frozen=True, slots=True)
class ShownFixture:
    """A fixture of a session, and the command that replays it."""

    name: str
    line: str
    test_line: str
    is_command: bool
    entry: str


@dataclass(frozen=True, slots=True)
class ShownJob:
    """A job, without content."""

    job: Job
    facts: Mapping[str, Any] | None
    """The facts about the divergence of a replay."""
    step_id: str | None
    """The step of the trace at which the replay diverged."""


def command_values(opened: OpenedSession, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the tab."""
    commands = site_of(opened.request).jobs.commands
    about, session_id = opened.about, opened.session_id
    turn = _fork_turn(opened.tree, about, query.get("turn"))
    values: dict[str, Any] = {
        "commands": commands,
        "jobs": shown_jobs(opened),
        "fork_turn": turn,
    }
    if commands is None:
        return values
    folder = commands.freeze_folder(session_id, str(about["name"]))
    where = _shown_path(commands, folder)
    return values | {
        "refusal": refused(opened.view, about),
        "origin": commands.origin_of(session_id),
        "folder": folder,
        "freeze_line": commands.line("freeze", "-o", where, session_id),
        "fixtures": [
            _shown_fixture(commands, each)
            for each in commands.fixtures_of(commands.fixtures, session_id)
        ],
        "fork_line": commands.line("fork", session_id, "--at", str(turn)),
    }


def refused(view: View, about: Row) -> str:
    """Return why a session cannot be frozen, in one sentence; empty if it can."""
    kept = content_state(view.store, str(about["session_id"]))
    if kept["source"] not in (None, "recorded"):
        return "It was imported from a log, which does not contain the requests as sent."
    if kept["content"] == "off":
        return "It was recorded without content."
    if kept["pruned_ns"] is not None:
        return "Its content was deleted."
    if about["status"] == "running":
        return "It is still running."
    return "It has no requests." if not about["attempts"] else ""


def shown_jobs(opened: OpenedSession) -> list[ShownJob]:
    """Return the jobs of a session, newest first."""
    found = []
    for job in site_of(opened.request).jobs.jobs_of(opened.session_id):
        divergence = job.divergence
        facts = None if divergence is None else divergence_facts(divergence)
        place = None if divergence is None else _place(opened.tree, divergence)
        found.append(ShownJob(job, facts, place))
    return found


def diverged_steps(opened: OpenedSession) -> dict[str, str]:
    """Return the steps at which the last replay of each fixture diverged, with the names of the fixtures."""
    last: dict[Path, ShownJob] = {}
    for each in reversed(shown_jobs(opened)):
        if each.job.action == "replay" and each.job.ended_ns is not None:
            last[each.job.target] = each
    return {each.step_id: path.name for path, each in last.items() if each.step_id is not None}


def _place(tree: TraceTree, divergence: Mapping[str, Any]) -> str | None:
    """Return the ID of the step at which a replay diverged; None if the trace has no such step."""
    lane = str(divergence.get("lane") or "main")
    nodes = [tree.node(number) for number in tree.order]
    requests = [each for each in nodes if each.kind == "request" and each.lane == lane]
    turn, number = divergence.get("turn"), divergence.get("number")
    for each in requests:
        if turn is not None and each.turn == turn:
            return each.step_id
    is_known = isinstance(number, int) and 1 <= number <= len(requests)
    return requests[number - 1].step_id if is_known and isinstance(number, int) else None


def start(request: Request, fields: Fields) -> Response:
    """Start or cancel a command, and return to the tab. A command that runs the code of an imported session is first
    shown for confirmation.
    """
    site = site_of(request)
    with site.reader.view() as view:
        session_id = session_named(request, view)
        rows = view.named("internal/session", session_id=session_id)
        [about] = view.texts.replace_in_dicts(rows)
        refusal = refused(view, about)
    runner, commands = site.jobs, site.jobs.commands
    action = fields.get("action")
    back = f"/sessions/{segment(session_id)}?tab=commands"
    if action == "cancel":
        runner.cancel(runner.job(session_id, fields.get("job", "")))
        return RedirectResponse(f"{back}#jobs", 303)
    if commands is None:
        raise UsageError("this dashboard runs no commands", todo="Run the command in a terminal")
    wanted = _wanted(commands, about, refusal, fields)
    question = _question(runner, session_id, wanted)
    if question is not None and not hmac.compare_digest(
        question["confirmation"].encode(), fields.get("confirmed", "").encode()
    ):
        return page_response(
            request,
            "confirm_command.html",
            nav_item="sessions",
            back=back,
            base=f"/sessions/{segment(session_id)}",
            about=about,
            **question,
        )
    _start(request, session_id, wanted)
    return RedirectResponse(f"{back}#jobs", 303)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A command that a form requested."""

    action: Action
    target: Path
    """The folder of the fixture."""
    options: Sequence[str]
    names: Sequence[str]
    """The sessions or fixtures; they come after `--`, so that none of them is an option."""
    fields: Mapping[str, str]
    """The fields of the form that requested it."""
    runs_code: bool
    """Whether it runs the agent."""


def _wanted(commands: Commands, about: Row, refusal: str, fields: Fields) -> _Wanted:
    """Return the requested command.

    Raises:
        UsageError: the session cannot be frozen or has no such fixture, or the action is unknown.
    """
    session_id, action = str(about["session_id"]), fields.get("action")
    if action == "freeze":
        if refusal:
            raise UsageError(f"this session cannot be frozen: {refusal.rstrip('.').lower()}")
        folder = commands.freeze_folder(session_id, str(about["name"]))
        check = {"check": "1"} if "check" in fields else {}
        options = ["-o", str(folder), *([] if check else ["--no-check"])]
        return _Wanted("freeze", folder, options, [session_id], check, bool(check))
    if action == "replay":
        name = fields.get("fixture", "")
        paths = [each.path for each in commands.fixtures_of(commands.fixtures, session_id)]
        path = next((each for each in paths if each.name == name), None)
        if path is None:
            raise UsageError("this session has no such fixture", where=name[:80])
        return _Wanted("replay", path, ["--json"], [str(path)], {"fixture": name}, True)
    raise UsageError("expected freeze, replay or cancel", where=str(action)[:80])


def _question(runner: JobRunner, session_id: str, wanted: _Wanted) -> dict[str, Any] | None:
    """Return what the user must confirm before the code of an imported session runs; None if nothing."""
    commands = runner.commands
    origin = None if commands is None else commands.origin_of(session_id)
    if commands is None or origin is None or not wanted.runs_code:
        return None
    program = commands.program_of(session_id, None if wanted.action == "freeze" else wanted.target)
    line = _line(commands, wanted)
    return {
        "action": wanted.action,
        "fields": wanted.fields,
        "origin": origin,
        "program": visible(program),
        "line": line,
        "directory": commands.directory,
        "confirmation": runner.confirmation(session_id, line, program),
    }


def _line(commands: Commands, wanted: _Wanted) -> str:
    """Return a command as it is typed in the directory in which commands run."""
    where = _shown_path(commands, wanted.target)
    parts = [each for each in (*wanted.options, *wanted.names) if each != "--json"]
    return commands.line(
        wanted.action, *(where if each == str(wanted.target) else each for each in parts)
    )


def _start(request: Request, session_id: str, wanted: _Wanted) -> None:
    runner = site_of(request).jobs
    assert runner.commands is not None
    runner.start(
        session_id,
        wanted.action,
        wanted.target,
        [wanted.action, *wanted.options, "--", *wanted.names],
        _line(runner.commands, wanted),
    )


async def jobs(request: Request) -> Response:
    """Return the jobs of a session as a part of a page, or start a command."""
    if request.method != "POST":
        return await run_in_threadpool(_jobs_part, request)
    async with request.form(max_files=0, max_fields=MOST_FIELDS) as form:
        fields = {key: str(value) for key, value in form.items()}
    return await run_in_threadpool(start, request, fields)


def _jobs_part(request: Request) -> Response:
    with site_of(request).reader.view() as view:
        opened = open_session(request, view, session_named(request, view))
        values = {"session_id": opened.session_id, "jobs": shown_jobs(opened)}
    return HTMLResponse(page("jobs.html", **values))


def output(request: Request, fields: Fields) -> Response:
    """Show the output of a command; of a replay that diverged, its differences word by word."""
    with site_of(request).reader.view() as view:
        session_id = session_named(request, view)
    job = site_of(request).jobs.job(session_id, fields.get("job", ""))
    divergence = job.divergence
    return content_response(
        request,
        "job_output.html",
        title="Output of the command",
        back=f"/sessions/{segment(session_id)}",
        divergence=divergence,
        differences=[] if divergence is None else list(map(_lines, divergence["differences"])),
        outputs=[
            _tail(each.text())
            for each in ((job.program.stdout,) if divergence is None else ())
            + (job.program.stderr,)
        ],
    )


def _lines(difference: Mapping[str, Any]) -> tuple[str, str, list[Line]]:
    """Return the path and the kind of a difference, and its lines with the changed words marked."""
    old, new = difference["expected"], difference["actual"]
    lines = text_lines(*("" if each is None else text_of(each) for each in (old, new)))
    return visible(str(difference["path"])), str(difference["change"]), lines


def _tail(text: str) -> str:
    """Return the last characters of an output."""
    omitted = len(text) - SHOWN_CHARACTERS
    note = f"({omitted:,} characters are not shown)\n" if omitted > 0 else ""
    return note + visible(text[max(omitted, 0) :])


def _shown_fixture(commands: Commands, fixture: Fixture) -> ShownFixture:
    where = _shown_path(commands, fixture.path)
    return ShownFixture(
        fixture.path.name,
        commands.line("replay", where),
        shlex.join(["pytest", where]),
        fixture.is_command,
        fixture.entry,
    )


def _shown_path(commands: Commands, path: Path) -> str:
    """Return a path as it is typed in the directory in which commands run."""
    is_below = path.is_relative_to(commands.directory)
    return str(path.relative_to(commands.directory) if is_below else path)


def _fork_turn(tree: TraceTree, about: Row, requested: str | None) -> int:
    """Return the turn to fork at: the requested turn, the turn of the failed step, or the last turn."""
    if (number := whole_number(requested)) is not None:
        return max(number, 1)
    failing = None if tree.failing is None else tree.node(tree.failing)
    if failing is not None and failing.lane == "main" and failing.turn:
        return failing.turn
    return max(int(about["turns"] or 1), 1)


routes = [
    Route("/sessions/{id:path}/jobs", jobs, methods=["GET", "POST"]),
    Route("/sessions/{id:path}/output", on_click(output), methods=["GET", "POST"]),
]
