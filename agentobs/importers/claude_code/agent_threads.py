"""Threads: what each agent of a logged session asked the model, put together from its entries.

One response with several content blocks is several entries; a call that ran beside another has its result in a
branch of its own. What was asked is rebuilt from the entries that come before a response: the system prompt and
the tools are not in the logs, so that it is the conversation alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentobs.importers.claude_code.transcript_entries import Entry
from agentobs.importers.claude_code.transcript_usage import SYNTHETIC


@dataclass(slots=True)
class Response:
    """One answer of the model."""

    message_id: str
    entries: list[Entry]
    """The lines that tell it, one a block."""
    place: int
    """Where the first of them stands among the agent's entries."""
    before: Response | None = None
    """The answer that it goes on from."""
    said: list[Entry] = field(default_factory=list)
    """What was said since: results of tools, prompts, reminders."""

    @property
    def model(self) -> str:
        """The model that answered."""
        return str(self.entries[-1].message.get("model"))

    @property
    def usage(self) -> dict[str, Any] | None:
        """What was used, as its last line counted it."""
        usage = self.entries[-1].message.get("usage")
        return usage if isinstance(usage, dict) else None

    @property
    def stop_reason(self) -> str | None:
        """Why the model stopped; None where the log does not say."""
        told = [entry.message.get("stop_reason") for entry in self.entries]
        return next((reason for reason in reversed(told) if isinstance(reason, str)), None)

    @property
    def request_id(self) -> str | None:
        """The provider's id of the request."""
        found = self.entries[-1].value.get("requestId")
        return found if isinstance(found, str) else None

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """Its content, each block once."""
        found: list[dict[str, Any]] = []
        for entry in self.entries:
            found += [block for block in entry.blocks if block not in found]
        return found

    @property
    def calls(self) -> list[tuple[Entry, dict[str, Any]]]:
        """Its tool calls, each with the line that tells it."""
        found: dict[str, tuple[Entry, dict[str, Any]]] = {}
        for entry in self.entries:
            for block in entry.blocks:
                if block.get("type") == "tool_use" and isinstance(block.get("id"), str):
                    found.setdefault(block["id"], (entry, block))
        return list(found.values())

    @property
    def prompts(self) -> list[Entry]:
        """What a person said before it."""
        return [entry for entry in self.said if is_prompt(entry)]


@dataclass(slots=True)
class Thread:
    """What one agent of a session did."""

    agent_id: str | None
    entries: list[Entry]
    responses: list[Response]
    results: dict[str, tuple[Entry, dict[str, Any]]]
    """The result of each call, with the line that tells it, by tool_use id."""
    own: list[Response] = field(default_factory=list)
    """The responses that no other session has; the others are part of what was said before."""


def thread(agent_id: str | None, entries: Sequence[Entry]) -> Thread:
    """Return what an agent did, from its entries in the order of its log."""
    unique = _unique(entries)
    told = Thread(agent_id, unique, _responses(unique), _results(unique))
    _connect(told)
    return told


def is_prompt(entry: Entry) -> bool:
    """Return whether a person, or whoever started the agent, speaks there: no result, no reminder of the client."""
    if entry.kind != "user" or entry.value.get("isMeta"):
        return False
    return bool(entry.blocks) and not any(b.get("type") == "tool_result" for b in entry.blocks)


def is_summary(entry: Entry) -> bool:
    """Return whether the client put a summary in the place of what was said before."""
    return bool(entry.value.get("isCompactSummary"))


class Requests:
    """The requests of a thread as JSON, each built from the one that it goes on from.

    Each repeats what was said before: what is held is what each adds, and a whole one as long as it is asked for.
    """

    def __init__(self) -> None:
        """Start with none."""
        self._added: dict[int, tuple[bytes, ...]] = {}

    def add(self, response: Response) -> None:
        """Note what was asked for a response, as far as it is new."""
        before: tuple[bytes, ...] = ()
        if response.before is not None:
            before = (_json({"role": "assistant", "content": response.before.blocks}),)
        content = [block for entry in response.said for block in entry.blocks]
        # Results stand first, as the provider wants them.
        content.sort(key=lambda block: block.get("type") != "tool_result")
        said = (_json({"role": "user", "content": content}),) if content else ()
        self._added[id(response)] = (*before, *said)

    def body(self, response: Response) -> bytes:
        """Return what was asked for a response, as far as the log tells; it and those before it must be noted."""
        links: list[tuple[bytes, ...]] = []
        link: Response | None = response
        while link is not None:
            links.append(self._added[id(link)])
            link = link.before
        messages = b",".join(each for added in reversed(links) for each in added)
        return b'{"model":%s,"messages":[%s]}' % (_json(response.model), messages)


def answer_of(response: Response) -> bytes:
    """Return a response as the provider would have sent it, as far as the log tells."""
    return _json(
        {
            "id": response.message_id,
            "type": "message",
            "role": "assistant",
            "model": response.model,
            "content": response.blocks,
            "stop_reason": response.stop_reason,
            "usage": response.usage,
        }
    )


def _unique(entries: Iterable[Entry]) -> list[Entry]:
    """Return entries once each; an agent's own file and its parent's progress tell the same ones."""
    found: dict[str, Entry] = {}
    for entry in entries:
        found.setdefault(entry.uuid, entry)
    return list(found.values())


def _responses(entries: Sequence[Entry]) -> list[Response]:
    found: dict[str, Response] = {}
    for place, entry in enumerate(entries):
        message_id = entry.message.get("id")
        if entry.kind != "assistant" or entry.message.get("model") == SYNTHETIC:
            continue
        if not isinstance(message_id, str):
            continue
        if message_id in found:
            found[message_id].entries.append(entry)
        else:
            found[message_id] = Response(message_id, [entry], place)
    return list(found.values())


def _results(entries: Iterable[Entry]) -> dict[str, tuple[Entry, dict[str, Any]]]:
    found: dict[str, tuple[Entry, dict[str, Any]]] = {}
    for entry in entries:
        for block in entry.blocks if entry.kind == "user" else ():
            tool_use_id = block.get("tool_use_id")
            if block.get("type") == "tool_result" and isinstance(tool_use_id, str):
                found.setdefault(tool_use_id, (entry, block))
    return found


def _connect(told: Thread) -> None:
    """Find for each response the one that it goes on from, and what was said since."""
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
            # Calls that ran beside each other have their results in branches of their own.
            answers = [told.results.get(block["id"]) for _, block in response.before.calls]
            beside = [each[0] for each in answers if each is not None]
            said |= {e.uuid: e for e in beside if places[e.uuid] < response.place}
        response.said = sorted(said.values(), key=lambda entry: places[entry.uuid])


def _parent(entry: Entry, told: Thread, places: dict[str, int]) -> str | None:
    """Return what an entry follows; lines of progress do not say it, and follow each other."""
    place = places[entry.uuid]
    if entry.parent is None and entry.started_by is not None and place > 0:
        return told.entries[place - 1].uuid
    return entry.parent


def _json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")
