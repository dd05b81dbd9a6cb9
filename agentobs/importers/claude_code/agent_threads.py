"""Agent threads: the requests of each agent of a logged session, rebuilt from the agent's entries.

A response with several content blocks consists of several entries, and the results of concurrent calls are in separate
branches. A request is rebuilt from the entries before its response. The logs do not contain the system prompt and the
tools, so only the conversation is rebuilt.
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

_COMPACTIONS = ("compact_boundary", "microcompact_boundary")


@dataclass(slots=True)
class Response:
    """One response of the model."""

    message_id: str
    entries: list[Entry]
    """Its log lines, one per block."""
    place: int
    """The position of its first entry among the agent's entries."""
    before: Response | None = None
    """The previous response of the conversation."""
    new_messages: list[Entry] = field(default_factory=list)
    """The messages after the previous response: tool results, prompts, reminders."""
    compactions: list[Entry] = field(default_factory=list)
    """The entries about compactions between the previous response and this one."""

    @property
    def sent_ns(self) -> int:
        """When its request was sent, in nanoseconds since 1970, as far as the log shows: after its last new message and
        the last compaction before it, but not after its own first line.
        """
        first = self.entries[0].at_ns or 0
        before = [entry.at_ns or 0 for entry in (*self.new_messages, *self.compactions)]
        return min(max(before, default=first), first)

    @property
    def model(self) -> str:
        """The model that generated the response."""
        return str(self.entries[-1].message.model)

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """Its usage, taken from its last line."""
        return self.entries[-1].message.usage

    @property
    def stop_reason(self) -> str | None:
        """Why the model stopped; None if the log does not contain it."""
        reasons = [entry.message.stop_reason for entry in self.entries]
        return next((reason for reason in reversed(reasons) if reason is not None), None)

    @property
    def request_id(self) -> str | None:
        """The provider's ID of the request."""
        found = self.entries[-1].value.get("requestId")
        return found if isinstance(found, str) else None

    @property
    def request_reference(self) -> str | None:
        """The ID of the logged request (since 2.1.300); None if the log does not contain it."""
        found = self.entries[-1].value.get("requestRef")
        return found if isinstance(found, str) else None

    @property
    def blocks(self) -> list[Block]:
        """Its content blocks, without duplicates."""
        found: list[Block] = []
        for entry in self.entries:
            known = [each.raw for each in found]
            found += [block for block in entry.blocks if block.raw not in known]
        return found

    @property
    def calls(self) -> list[tuple[Entry, Block]]:
        """Its tool calls, each with its entry."""
        found: dict[str, tuple[Entry, Block]] = {}
        for entry in self.entries:
            for call in entry.message.calls:
                if call.id is not None:
                    found.setdefault(call.id, (entry, call))
        return list(found.values())

    @property
    def prompts(self) -> list[Entry]:
        """The prompts among its new messages."""
        return [entry for entry in self.new_messages if is_prompt(entry)]


@dataclass(slots=True)
class Thread:
    """The entries of one agent of a session, with its responses and tool results."""

    agent_id: str | None
    entries: list[Entry]
    responses: list[Response]
    results: dict[str, tuple[Entry, Block]]
    """The result of each tool call, with its entry, by tool_use ID."""
    own_responses: list[Response] = field(default_factory=list)
    """The responses that count in this session; responses of other sessions are only part of the history."""


def build_thread(agent_id: str | None, entries: Sequence[Entry]) -> Thread:
    """Return the thread of an agent, given its entries in the order of its log."""
    unique = _unique(entries)
    result = Thread(agent_id, unique, _responses(unique), _results(unique))
    _connect(result)
    return result


def is_prompt(entry: Entry) -> bool:
    """Return whether an entry is a prompt, from a person or from the code that started the agent. Tool results and
    reminders are not prompts.
    """
    if entry.kind != "user" or entry.value.get("isMeta"):
        return False
    return bool(entry.blocks) and not entry.message.results


def is_compaction(entry: Entry) -> bool:
    """Return whether an entry marks a place at which the client shortened the conversation."""
    return entry.kind == "system" and entry.value.get("subtype") in _COMPACTIONS


def content_of(entry: Entry) -> list[Mapping[str, Any]]:
    """Return the content of an entry's message as a list of JSON objects; a plain string becomes one object."""
    return [block.raw for block in entry.blocks]


def is_summary(entry: Entry) -> bool:
    """Return whether an entry is a summary with which the client replaced the history."""
    return bool(entry.value.get("isCompactSummary"))


class Requests:
    """The requests of a thread as JSON.

    Each request repeats the history. Only the new messages of each request are kept in memory; a complete request is
    built when it is needed.
    """

    def __init__(self) -> None:
        """Start without any requests."""
        self._added: dict[int, tuple[bytes, ...]] = {}

    def add(self, response: Response) -> None:
        """Add the new messages of the request for a response."""
        before: tuple[bytes, ...] = ()
        if response.before is not None:
            before = (encoded(ANTHROPIC.request_message("assistant", response.before.blocks)),)
        content = [block for entry in response.new_messages for block in entry.blocks]
        new = (encoded(ANTHROPIC.request_message("user", content)),) if content else ()
        self._added[id(response)] = (*before, *new)

    def body(self, response: Response) -> bytes:
        """Return the logged part of the request for a response. The response and all previous responses of
        its conversation must have been added before.
        """
        links: list[tuple[bytes, ...]] = []
        link: Response | None = response
        while link is not None:
            links.append(self._added[id(link)])
            link = link.before
        entries = [each for added in reversed(links) for each in added]
        return ANTHROPIC.request_body(response.model, entries)


def response_body(response: Response) -> bytes:
    """Return the logged part of the body of a response, in the form in which the provider would have sent it."""
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
    """Return the entries without duplicates. An agent's file and its parent's progress lines may contain the same
    entries.
    """
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


def _connect(thread: Thread) -> None:
    """Set the previous response and the new messages of each response."""
    nodes = {entry.uuid: entry for entry in thread.entries}
    places = {entry.uuid: place for place, entry in enumerate(thread.entries)}
    owners = {entry.uuid: each for each in thread.responses for entry in each.entries}
    for response in thread.responses:
        new: dict[str, Entry] = {}
        seen: set[str] = set()
        at = _parent(response.entries[0], thread, places)
        while at is not None and at not in seen and at in nodes:
            seen.add(at)
            owner = owners.get(at)
            if owner is not None and owner.place < response.place:
                response.before = owner
                break
            if nodes[at].kind == "user" and places[at] < response.place:
                new[at] = nodes[at]
            if is_compaction(nodes[at]):
                response.compactions.append(nodes[at])
            at = None if is_summary(nodes[at]) else _parent(nodes[at], thread, places)
        if response.before is not None:
            # Concurrent calls have their results in separate branches.
            results = [thread.results.get(str(block.id)) for _, block in response.before.calls]
            result_entries = [each[0] for each in results if each is not None]
            new |= {e.uuid: e for e in result_entries if places[e.uuid] < response.place}
        response.new_messages = sorted(new.values(), key=lambda entry: places[entry.uuid])


def _parent(entry: Entry, thread: Thread, places: dict[str, int]) -> str | None:
    """Return the `uuid` of the previous entry. Progress lines may lack it; then the previous line is used."""
    place = places[entry.uuid]
    if entry.parent is None and entry.started_by is not None and place > 0:
        return thread.entries[place - 1].uuid
    return entry.parent


def encoded(value: Any) -> bytes:
    """Return a value as compact JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")
