"""Threads: the requests of each agent of a logged session, rebuilt from its entries.

A response with several content blocks is several entries, and the result of a concurrent call is in a separate branch.
A request is rebuilt from the entries before its response. The system prompt and the tools are not in the logs, so only
the conversation is rebuilt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentobs.importers.claude_code.transcript_entries import Entry
from agentobs.importers.claude_code.transcript_usage import SYNTHETIC
from agentobs.provider.dialect import Block, Draft
from agentobs.provider.registry import ANTHROPIC


@dataclass(slots=True)
class Response:
    """One response of the model."""

    message_id: str
    entries: list[Entry]
    """Its log lines, one per block."""
    place: int
    """The position of the first of them among the agent's entries."""
    before: Response | None = None
    """The response that it continues."""
    said: list[Entry] = field(default_factory=list)
    """The messages since then: tool results, prompts, reminders."""

    @property
    def model(self) -> str:
        """The model that answered."""
        return str(self.entries[-1].message.model)

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """Its usage, as counted by its last line."""
        return self.entries[-1].message.usage

    @property
    def stop_reason(self) -> str | None:
        """Why the model stopped; None if the log does not contain it."""
        told = [entry.message.stop_reason for entry in self.entries]
        return next((reason for reason in reversed(told) if reason is not None), None)

    @property
    def request_id(self) -> str | None:
        """The provider's ID of the request."""
        found = self.entries[-1].value.get("requestId")
        return found if isinstance(found, str) else None

    @property
    def blocks(self) -> list[Block]:
        """Its content, each block once."""
        found: list[Block] = []
        for entry in self.entries:
            known = [each.raw for each in found]
            found += [block for block in entry.blocks if block.raw not in known]
        return found

    @property
    def calls(self) -> list[tuple[Entry, Block]]:
        """Its tool calls, each with its log line."""
        found: dict[str, tuple[Entry, Block]] = {}
        for entry in self.entries:
            for call in entry.message.calls:
                if call.id is not None:
                    found.setdefault(call.id, (entry, call))
        return list(found.values())

    @property
    def prompts(self) -> list[Entry]:
        """The prompt before it."""
        return [entry for entry in self.said if is_prompt(entry)]


@dataclass(slots=True)
class Thread:
    """The activity of one agent of a session."""

    agent_id: str | None
    entries: list[Entry]
    responses: list[Response]
    results: dict[str, tuple[Entry, Block]]
    """The result of each call, with its log line, by tool_use ID."""
    own: list[Response] = field(default_factory=list)
    """The responses that belong to no other session; the others are part of the history."""


def thread(agent_id: str | None, entries: Sequence[Entry]) -> Thread:
    """Return the activity of an agent, from its entries in the order of its log."""
    unique = _unique(entries)
    told = Thread(agent_id, unique, _responses(unique), _results(unique))
    _connect(told)
    return told


def is_prompt(entry: Entry) -> bool:
    """Return whether an entry is a prompt by a person or by the code that started the agent, not a result or a
    reminder.
    """
    if entry.kind != "user" or entry.value.get("isMeta"):
        return False
    return bool(entry.blocks) and not entry.message.results


def is_summary(entry: Entry) -> bool:
    """Return whether the client replaced the history by a summary."""
    return bool(entry.value.get("isCompactSummary"))


class Requests:
    """The requests of a thread as JSON, each built from the one that it continues.

    Each request repeats the history. Only the additions are kept in memory, and a complete request exists only while
    it is used.
    """

    def __init__(self) -> None:
        """Start with none."""
        self._added: dict[int, tuple[bytes, ...]] = {}

    def add(self, response: Response) -> None:
        """Add the new messages of the request for a response."""
        before: tuple[bytes, ...] = ()
        if response.before is not None:
            before = (_json(ANTHROPIC.request_message("assistant", response.before.blocks)),)
        content = [block for entry in response.said for block in entry.blocks]
        said = (_json(ANTHROPIC.request_message("user", content)),) if content else ()
        self._added[id(response)] = (*before, *said)

    def body(self, response: Response) -> bytes:
        """Return the request for a response, as far as the log contains it; it and its predecessors must have been
        added.
        """
        links: list[tuple[bytes, ...]] = []
        link: Response | None = response
        while link is not None:
            links.append(self._added[id(link)])
            link = link.before
        entries = [each for added in reversed(links) for each in added]
        return ANTHROPIC.request_body(response.model, entries)


def answer_of(response: Response) -> bytes:
    """Return a response as the provider would have sent it, as far as the log contains it."""
    return ANTHROPIC.response_body(
        Draft(
            response.message_id,
            response.model,
            response.blocks,
            stop_reason=response.stop_reason,
            usage=response.usage,
            is_logged=True,
        )
    )


def _unique(entries: Iterable[Entry]) -> list[Entry]:
    """Return entries without duplicates; an agent's own file and its parent's progress lines contain the same ones."""
    found: dict[str, Entry] = {}
    for entry in entries:
        found.setdefault(entry.uuid, entry)
    return list(found.values())


def _responses(entries: Sequence[Entry]) -> list[Response]:
    found: dict[str, Response] = {}
    for place, entry in enumerate(entries):
        message_id = entry.message.id
        if entry.kind != "assistant" or entry.message.model == SYNTHETIC:
            continue
        if message_id is None:
            continue
        if message_id in found:
            found[message_id].entries.append(entry)
        else:
            found[message_id] = Response(message_id, [entry], place)
    return list(found.values())


def _results(entries: Iterable[Entry]) -> dict[str, tuple[Entry, Block]]:
    found: dict[str, tuple[Entry, Block]] = {}
    for entry in entries:
        for result in entry.message.results if entry.kind == "user" else ():
            if result.id is not None:
                found.setdefault(result.id, (entry, result))
    return found


def _connect(told: Thread) -> None:
    """Find for each response the one that it continues, and the messages since then."""
    nodes = {entry.uuid: entry for entry in told.entries}
    places = {entry.uuid: place for place, entry in enumerate(told.entries)}
    owners = {entry.uuid: each for each in told.responses for entry in each.entries}
    for response in told.responses:
        said: dict[str, Entry] = {}
        seen: set[str] = set()
        at = _parent(response.entries[0], told, places)
        while at is not None and at not in seen and at in nodes:
            seen.add(at)
            owner = owners.get(at)
            if owner is not None and owner.place < response.place:
                response.before = owner
                break
            if nodes[at].kind == "user" and places[at] < response.place:
                said[at] = nodes[at]
            at = None if is_summary(nodes[at]) else _parent(nodes[at], told, places)
        if response.before is not None:
            # Concurrent calls have their results in separate branches.
            answers = [told.results.get(str(block.id)) for _, block in response.before.calls]
            beside = [each[0] for each in answers if each is not None]
            said |= {e.uuid: e for e in beside if places[e.uuid] < response.place}
        response.said = sorted(said.values(), key=lambda entry: places[entry.uuid])


def _parent(entry: Entry, told: Thread, places: dict[str, int]) -> str | None:
    """Return the predecessor of an entry; progress lines do not name it, and follow each other."""
    place = places[entry.uuid]
    if entry.parent is None and entry.started_by is not None and place > 0:
        return told.entries[place - 1].uuid
    return entry.parent


def _json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")
