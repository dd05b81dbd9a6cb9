"""The command that follows sessions live, one line per step: `tail`."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from agentobs import world
from agentobs.cli.inspection.live_steps import LiveSteps, Step
from agentobs.cli.terminal.home_option import home_option
from agentobs.cli.terminal.instants import local_instant, zone_name
from agentobs.cli.terminal.tables import STYLES, console
from agentobs.errors import AgentobsError
from agentobs.recording.journal.segments import segment_ids
from agentobs.records.display import printable

if TYPE_CHECKING:
    from agentobs.recording.journal.home import Home

PAUSE_SECONDS = 0.2
"""The pause between two checks for new facts. Our choice: a recorder writes at least this often."""
SHORT_ID = 12
"""The number of characters of a session ID. IDs start with the time in milliseconds, which has this length."""
INDENT = 22
"""The indent of the other lines of a wrapped step: the length of its time and kind."""
_WHOLE = ("failed", "denied", "crashed")
"""The states of steps that are never cut."""
TEXT_MAX = 400
"""The maximum number of characters of a message, an input or a result. Our choice; `show --content` shows more."""


@click.command()
@click.argument("session", required=False)
@click.option(
    "-n",
    "--steps",
    "earlier",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Print this many earlier steps first.",
)
@click.option("--no-follow", is_flag=True, help="Print the earlier steps and stop.")
@click.option(
    "--content",
    is_flag=True,
    help="Also show prompts, responses and tool data. May show user input.",
)
@click.pass_context
def tail(
    context: click.Context, session: str | None, earlier: int, no_follow: bool, content: bool
) -> None:
    """Follow sessions live, one line per step: requests, tools, results, failures, cost.

    With SESSION, follows it until it ends. Without SESSION, follows all sessions. Ctrl-C stops.

    SESSION is the ID of a session, the start or end of the ID (4 characters or more), or its name.
    """
    from agentobs.ledger import book_of
    from agentobs.recording.journal.followed_segments import FollowedSegments
    from agentobs.recording.journal.home import existing_home

    home = existing_home(home_option(context))
    session_id, segment_ids = _chosen(home, session)
    followed = FollowedSegments(home, segment_ids)
    live = LiveSteps(session_id, book_of(home.path))
    printer = _Printer(home, live, is_single=session_id is not None, content=content)
    try:
        steps = live.steps(followed.look())
        printer.look_up(steps)
        click.echo(_title(session_id, live, printer, no_follow), err=True)
        printer.show(steps[len(steps) - min(earlier, len(steps)) :])
        while not no_follow and not _has_ended(session_id, live, followed):
            sys.stdout.flush()
            world.pause(PAUSE_SECONDS)
            printer.show(live.steps(followed.look()))
    except KeyboardInterrupt:
        return  # the usual end of this command
    if followed.damaged:
        click.echo(
            f"{home.path}: damaged records were left out. `agentobs verify` reports the damage.",
            err=True,
        )
        sys.exit(1)
    elif session_id not in (None, *live.ended) and not any(map(followed.is_written, live.segments)):
        click.echo(
            f"{session_id}: the process of this session has ended without recording its end. "
            "`agentobs verify` reports damage, if there is any.",
            err=True,
        )


def _chosen(home: Home, session: str | None) -> tuple[str | None, list[str]]:
    """Return the ID of the session and its segments."""
    if session is None:
        # The newest segment is read even if it has ended, so that there are earlier steps to print.
        return None, segment_ids(home)[-1:]
    from agentobs.cli.terminal.query_output import session_of
    from agentobs.store.backend import open_store

    with open_store(home, ingest=False) as store:
        session_id = session_of(store, session)
        rows = store.rows("session_segments", session_id=session_id).dicts()
    return session_id, [str(row["segment_id"]) for row in rows]


def _title(session_id: str | None, live: LiveSteps, printer: _Printer, no_follow: bool) -> str:
    name = printer.restored(live.name_of(session_id)) if session_id else ""
    what = f"session {session_id} {name}".rstrip() if session_id else "all sessions"
    end = "" if no_follow else "; Ctrl-C stops"
    return printable(f"{what}; times are {zone_name()}{end}")


def _has_ended(session_id: str | None, live: LiveSteps, followed: Any) -> bool:
    """Return whether no more steps of the session can follow."""
    if session_id is None:
        return False
    return session_id in live.ended or not any(map(followed.is_written, live.segments))


class _Printer:
    """Prints steps, with texts in place of digests, and with content if it is requested."""

    def __init__(self, home: Home, live: LiveSteps, *, is_single: bool, content: bool) -> None:
        self._home, self._live = home, live
        self._is_single = is_single
        self._console = console()
        self._names: dict[str, str | None] = {}
        self._agents: dict[tuple[str, str], str] = {}
        """The printed name of each sub-agent, by session and lane."""
        self._content = _StepContent(home) if content else None

    def show(self, steps: Sequence[Step]) -> None:
        """Print steps, one line each."""
        self.look_up(steps)
        for session_id in dict.fromkeys(step.session_id for step in steps):
            for renamed in self._renamed(session_id):
                self._print(renamed, "dim")
        for step in steps:
            self._print(self._line(step), STYLES.get(step.state, ""), whole=step.state in _WHOLE)
            if self._content is not None:
                for text in self._content.of(step):
                    self._print(f"    {text}", "dim")

    def restored(self, text: str) -> str:
        """Return a text with known texts in place of digests."""
        from agentobs.store.label_texts import DIGEST

        return DIGEST.sub(lambda found: self._names.get(found[0]) or found[0], text)

    def look_up(self, steps: Sequence[Step]) -> None:
        """Read the texts of new digests in steps. The store is opened for them, because it knows where they are."""
        from agentobs.store.backend import open_store
        from agentobs.store.label_texts import DIGEST, LabelTexts

        texts = [each.text for each in steps]
        texts += [self._live.name_of(each.session_id) for each in steps]
        texts += [kind or "" for each in steps for _, kind in self._live.lanes_of(each.session_id)]
        new = {found for text in texts for found in DIGEST.findall(text)} - self._names.keys()
        if not new:
            return
        with open_store(self._home, ingest=False) as store:
            self._names |= {**dict.fromkeys(new), **LabelTexts(store).texts_of(new)}

    def _line(self, step: Step) -> str:
        at = str(local_instant(step.at_ns))[11:]
        place = "" if self._is_single else f"{step.session_id[:SHORT_ID]}  "
        lane = "" if step.lane == "main" else f"{self._agent(step)}  "
        turn = f"turn {step.turn}  " if step.turn is not None else ""
        return f"{at}  {place}{step.kind:<10}  {lane}{turn}{self.restored(step.text)}"

    def _agent(self, step: Step) -> str:
        """Return the display name of the agent of a step."""
        from agentobs.store.analysis.lane_names import name_of_lane

        name = name_of_lane(step.lane, self._lane_names(step.session_id))
        self._agents[step.session_id, step.lane] = name
        return name

    def _lane_names(self, session_id: str) -> dict[str, str]:
        from agentobs.store.analysis.lane_names import lane_names

        lanes = self._live.lanes_of(session_id)
        return lane_names((lane, kind and self.restored(kind)) for lane, kind in lanes)

    def _renamed(self, session_id: str) -> Iterator[str]:
        """Yield the changes of names that were already printed. Agents are numbered in the order of their starts, but a
        request is recorded when it ends.
        """
        printed = {lane: name for (of, lane), name in self._agents.items() if of == session_id}
        names = self._lane_names(session_id) if printed else {}
        changed = [(old, names.get(lane, old), lane) for lane, old in printed.items()]
        for old, new, lane in changed:
            if new != old:
                self._agents[session_id, lane] = new
        if changes := [f"{old} is now {new}" for old, new, _ in changed if new != old]:
            place = "" if self._is_single else f"{session_id[:SHORT_ID]}  "
            yield f"{place}{', '.join(changes)}, because another agent started before it"

    def _print(self, line: str, style: str, *, whole: bool = False) -> None:
        """Print one line. On a terminal, a line that is too long is cut, or wrapped if it must be `whole`."""
        lines = [printable(line)]
        if whole and self._console.is_terminal:
            indent = min(INDENT, self._console.width // 2)
            lines = textwrap.wrap(lines[0], self._console.width, subsequent_indent=" " * indent)
        for each in lines:
            text = Text(each, style=style)
            if self._console.is_terminal:
                text.truncate(self._console.width, overflow="ellipsis")
            self._console.print(text, soft_wrap=True)


class _StepContent:
    """Reads the content of steps from the vault."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._has_runs: set[str] = set()

    def of(self, step: Step) -> Iterator[str]:
        """Yield the content of a step, one line for each message, call or result."""
        if step.source is None:
            return
        try:
            yield from self._of(step)
        except (AgentobsError, ValueError, KeyError, OSError) as error:
            yield f"(its content cannot be read: {error})"

    def _of(self, step: Step) -> Iterator[str]:
        from agentobs.recording.vault.vault import Vault, text_bytes

        assert step.source is not None
        kind, fact = step.source
        if kind == "attempts" and fact["response_content"] is not None:
            vault = Vault(self._home, step.segment_id, step.session_id)
            yield from self._request(vault, fact)
        elif kind == "tool_results" and fact["source"] == "run" and fact["content"] is not None:
            self._has_runs.add(step.session_id)
            vault = Vault(self._home, step.segment_id, step.session_id)
            content = json.loads(text_bytes(vault.value(fact["content"])))
            yield f"result  {_short(content['result'])}"

    def _request(self, vault: Any, fact: dict[str, Any]) -> Iterator[str]:
        """Yield the new messages of a request, and its response."""
        from agentobs.provider.registry import message_of, turns

        question = vault.question(fact["request_content"])
        history = turns(_parsed(question.body))
        if history and history[-1].role == "user":
            for block in history[-1].blocks:
                if block.kind == "text":
                    yield f"user    {_short(block.text)}"
                elif block.kind == "result" and fact["session_id"] not in self._has_runs:
                    yield f"result  {_short(block.text or block.value)}"
        message = message_of(question.path, vault.answer(fact["response_content"]))
        for block in message.blocks:
            if block.kind == "text" and block.text:
                yield f"model   {_short(block.text)}"
            elif block.kind == "call":
                yield f"call    {block.name} {_short(block.value)}"


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return None


def _short(value: Any) -> str:
    """Return a value as one line of limited length."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    line = " ".join(text.split())
    return line if len(line) <= TEXT_MAX else f"{line[: TEXT_MAX - 1]}…"
