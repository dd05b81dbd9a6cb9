"""Recorded sessions: the sessions that a proxy opens, and the line that each prints at its end."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentobs.determinism.entry import COMMAND, Entry
from agentobs.proxy.client_sessions import CLIENT_TAG, ClientSessions
from agentobs.proxy.command import Ending
from agentobs.recording.journal.home import Home
from agentobs.recording.session import Link, Session
from agentobs.records.backend import WrittenFact
from agentobs.records.clear_text import id_label
from agentobs.records.display import money
from agentobs.records.facts import Attempt
from agentobs.records.labels import Label, is_label
from agentobs.store.backend import open_store
from agentobs.store.session_lookup import id_in_facts

REDACTED = "[redacted:key]"
KEY_LENGTH = 8
"""The minimum length of a credential that is replaced in arguments; shorter ones are dummies. Our choice."""
CALLS_MAX = 200
"""The maximum number of tool calls at the start of a conversation that are looked up. Our choice: one of them is
enough.
"""


@dataclass(slots=True)
class TurnCounter:
    """A backend that counts the turns of each session, as the view `turns` does."""

    exports_spans = False
    kinds = ("attempt",)
    turns: Counter[str] = field(default_factory=Counter)

    def __call__(self, written: WrittenFact) -> None:
        """Receive a fact."""
        fact = written.fact
        if isinstance(fact, Attempt) and fact.makes_turns and fact.outcome == "ok":
            self.turns[fact.session_id] += 1


def command_entry(
    command: Sequence[str],
    environment: Mapping[str, str],
    variables: Sequence[str] = (),
    *,
    redirects_node: bool = False,
) -> Entry:
    """Return the entry of the sessions of a command.

    Args:
        command: the program and its arguments, which are content.
        environment: its environment; only the names of the variables are recorded.
        variables: the names of the variables with base URLs that agentobs does not know by itself.
        redirects_node: whether the requests of Node.js programs were redirected.
    """
    name = Path(command[0]).name
    arguments = {
        "argv": list(command),
        "directory": str(Path.cwd()),
        "environment": sorted(environment),
        **({"base_url_variables": list(variables)} if variables else {}),
        **({"redirects_node": True} if redirects_node else {}),
    }
    return Entry(COMMAND + (name if is_label(name) else "command"), arguments, {"kind": "command"})


def client_sessions(
    home: Home,
    name: str,
    entry: Entry,
    *,
    content: Any = None,
    tags: Mapping[str, str] | None = None,
    may_join: bool = True,
) -> ClientSessions:
    """Return the sessions of a proxy.

    Args:
        home: where to record, and where to look for earlier sessions.
        name: the name of sessions that their client does not name.
        entry: how the sessions were started.
        content: where their content is written; see `agentobs.session`.
        tags: labels of all sessions.
        may_join: whether they may be part of the session of the process that started this one.
    """

    def open_session(
        client_id: str | None, named: str | None, link: Link, keys: Sequence[str]
    ) -> Session:
        told = {CLIENT_TAG: id_label(client_id)} if client_id else {}
        session = Session(
            named or name,
            {**(tags or {}), **told},
            None,
            link=link,
            content=content,
            entry=_without_keys(entry, keys),
            may_join=may_join,
        )
        session.open()
        return session

    def find_earlier(client_id: str, tool_use_ids: list[str]) -> Link:
        with open_store(home) as store:
            found = store.rows(
                "internal/continued_session",
                client_id=id_in_facts(client_id, home.key()),
                tool_use_ids=[id_in_facts(e, home.key()) for e in tool_use_ids[:CALLS_MAX]],
            ).rows
        return (found[0][1], str(found[0][0])) if found else None

    return ClientSessions(open_session, find_earlier)


def _without_keys(entry: Entry, keys: Sequence[str]) -> Entry:
    """Return an entry without the credentials of requests in the arguments of its command."""
    if entry.arguments is None:
        return entry
    argv = entry.arguments["argv"]
    for key in keys:
        argv = [each.replace(key, REDACTED) if len(key) >= KEY_LENGTH else each for each in argv]
    return dataclasses.replace(entry, arguments={**entry.arguments, "argv": argv})


def close_all(
    sessions: Sequence[Session], ending: Ending, *, was_interrupted: bool = False
) -> None:
    """Close the sessions of a command that has ended.

    A command with another exit code than 0 has failed, unless it was stopped on purpose.
    """
    for session in sessions:
        session.result({"exit_code": ending.exit_code})
        error: BaseException | None = None
        if ending.is_interrupted or was_interrupted:
            error = KeyboardInterrupt()
        elif ending.exit_code:
            code = ending.exit_code
            session.fail(
                Label(f"signal:{ending.signal_name}" if ending.signal_name else f"exit:{code}")
            )
        session.close(error)


def summary(session: Session, turns: int) -> str:
    """Return one line about a session that has just ended: its ID, turns and cost."""
    spent = session.cost()
    text = f"{session.session_id} ({session.name}): {turns} turn{'s' * (turns != 1)}"
    if spent is None:
        return text
    cost = money(spent.usd, spent.status) or "unknown"
    certainty = "" if spent.status == "exact" else f" ({spent.status.replace('_', ' ')})"
    return f"{text}, {cost}{certainty}"
