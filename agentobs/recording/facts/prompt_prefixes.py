"""Prompt prefixes: a digest of each zone of a prompt, and the first change in its cached prefix, which causes a miss.

A prompt is cached from its start: betas, model, tools, system, parameters, then message by message. A request is
compared with the earlier request whose messages it repeats, or else with the request that shares the most bytes. Only
values that have already been parsed for other purposes are read, and each zone or message is hashed once, when it is
new. No text leaves this module, and its digests are keyed, so that a short prompt cannot be guessed from them.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from agentobs.provider.dialect import CACHE_ZONES, Dialect
from agentobs.recording.vault.body_deltas import Body
from agentobs.records.facts import Prefix, Zones
from agentobs.records.labels import Label

Changed = Literal["betas", "model", "tools", "system", "parameters", "system_dynamic", "messages"]

PROMPTS_MAX = 16
"""The maximum number of earlier prompts of a session that are kept for comparison; the same number as for bodies."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class _Zone(NamedTuple):
    value: Any
    digest: str | None
    """The keyed digest of the value; None if the request does not have this zone."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt in a form that can be compared with later prompts."""

    attempt_id: str
    lane: str
    zones: tuple[_Zone, ...]
    messages: Sequence[bytes] | None
    """For each message a digest of all messages up to it; None if an earlier body is no longer in memory."""


class Prefixes:
    """The last prompts of one session."""

    def __init__(self, key: bytes) -> None:
        """Start without prompts; `key` is the home's key."""
        self.key = key
        """The home's key; the similarity numbers of inputs use it as well."""
        self._kept: OrderedDict[str, Prompt] = OrderedDict()
        self._messages: OrderedDict[str, list[bytes]] = OrderedDict()

    def prompt_of(
        self,
        body: Body,
        headers: Mapping[str, str],
        session_id: str,
        attempt_id: str,
        lane: Label,
        dialect: Dialect,
    ) -> tuple[Prompt, Prompt | None, Zones]:
        """Return the prompt of a request, the earlier prompt to compare it with, and the digests of its zones."""
        before = self._before(body, lane)
        values = dialect.cache_zones(body.settings, headers)
        zones = self._zones(values, before.zones if before else None, dialect)
        prompt = Prompt(attempt_id, lane, zones, self._chain(body, dialect))
        digests = {name: zone.digest for name, zone in zip(CACHE_ZONES, zones, strict=True)}
        repeated = _count(before.messages) if before else 0
        fact = Zones(
            session_id=session_id,
            attempt_id=attempt_id,
            compared_attempt_id=before.attempt_id if before else None,
            betas=digests["betas"],
            model=digests["model"],
            tools=digests["tools"],
            system=digests["system"],
            parameters=digests["parameters"],
            system_dynamic=digests["system_dynamic"],
            messages=_digest_at(prompt.messages, _count(prompt.messages)),
            repeated_messages=repeated or None,
            repeated=_digest_at(prompt.messages, repeated),
        )
        return prompt, before, fact

    def histories(self, body: Body, dialect: Dialect) -> list[bytes] | None:
        """Return a digest for each message of a body, which includes the digests of all messages before it; None if an
        earlier body is no longer in memory. The digests are remembered.
        """
        return self._chain(body, dialect)

    def compare(
        self,
        body: Body,
        session_id: str,
        prompt: Prompt,
        before: Prompt | None,
        cache_miss: tuple[str | None, int | None],
        label: Callable[[str], Label],
    ) -> Prefix | None:
        """Return the change in the cached prefix of an answered prompt, if any; keep the prompt for comparisons."""
        changed, number = _difference(body, before, prompt) if before else (None, None)
        self._keep(body.content_id, prompt)
        reason, missed = cache_miss
        if changed is None and reason is None:
            return None
        return Prefix(
            session_id=session_id,
            attempt_id=prompt.attempt_id,
            compared_attempt_id=before.attempt_id if before else None,
            changed=changed,
            changed_message=number,
            miss_reason=label(reason) if reason else None,
            missed_tokens=missed,
        )

    def _before(self, body: Body, lane: str) -> Prompt | None:
        """Return the prompt to compare with; None at the start of a conversation."""
        if body.origin and body.origin in self._kept:
            return self._kept[body.origin]
        if body.base and body.shared_messages and body.base in self._kept:
            return self._kept[body.base]
        if (body.message_count or 0) < 2:
            return None
        in_lane = (prompt for prompt in reversed(self._kept.values()) if prompt.lane == lane)
        return next(in_lane, None)

    def _keep(self, content_id: str, prompt: Prompt) -> None:
        self._kept.pop(content_id, None)
        self._kept[content_id] = prompt
        if len(self._kept) > PROMPTS_MAX:
            self._kept.popitem(last=False)

    def _zones(
        self, values: Sequence[Any], before: Sequence[_Zone] | None, dialect: Dialect
    ) -> tuple[_Zone, ...]:
        """Return the zones of a prompt; unchanged zones are the same objects, to save memory and time."""
        zones = []
        for at, value in enumerate(values):
            if before is not None and _is_same(before[at].value, value, dialect):
                zones.append(before[at])
            else:
                zones.append(
                    _Zone(value, self._digest(b"", value, dialect) if _is_set(value) else None)
                )
        if before is not None and _is_same_system(before, zones, dialect):
            for at in (_SYSTEM, _DYNAMIC):  # only the breakpoints have moved
                zones[at] = before[at]
        return tuple(zones)

    def _chain(self, body: Body, dialect: Dialect) -> list[bytes] | None:
        """Return a digest for each message, which includes the previous digest; the digests of shared messages are
        reused.
        """
        if (chain := self._messages.get(body.content_id)) is not None:
            return chain
        chain = []
        if body.shared_messages:
            known = self._messages.get(body.base or "")
            if known is None or len(known) < body.shared_messages:
                return None
            chain = known[: body.shared_messages]
        for message in body.new_messages:
            digest = self._digest(chain[-1] if chain else b"", message, dialect)
            chain.append(bytes.fromhex(digest))
        self._messages[body.content_id] = chain
        self._messages.move_to_end(body.content_id)
        if len(self._messages) > PROMPTS_MAX:
            self._messages.popitem(last=False)
        return chain

    def _digest(self, before: bytes, value: Any, dialect: Dialect) -> str:
        """Return a keyed digest; key order counts, because it matters to the cache."""
        try:
            text = _ENCODER.encode(dialect.without_breakpoints(value))
        except RecursionError:
            text = "nested too deep to be written"
        data = text.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(before + data, key=self.key, digest_size=16).hexdigest()


_SYSTEM, _DYNAMIC = CACHE_ZONES.index("system"), CACHE_ZONES.index("system_dynamic")


def _is_set(value: Any) -> bool:
    return any(value) if isinstance(value, tuple) else bool(value)


def _is_same(old: Any, new: Any, dialect: Dialect) -> bool:
    without = dialect.without_breakpoints
    return old is new or old == new or without(old) == without(new)


def _is_same_system(before: Sequence[_Zone], zones: Sequence[_Zone], dialect: Dialect) -> bool:
    """Return whether the complete system prompt is unchanged, and only its first breakpoint has moved."""
    if before[_SYSTEM] is zones[_SYSTEM] and before[_DYNAMIC] is zones[_DYNAMIC]:
        return False
    old, new = _complete_system(before), _complete_system(zones)
    return bool(dialect.without_breakpoints(old) == dialect.without_breakpoints(new))


def _complete_system(zones: Sequence[_Zone]) -> Any:
    static, dynamic = zones[_SYSTEM].value, zones[_DYNAMIC].value
    return [*static, *(dynamic or ())] if isinstance(static, list) else static or []


def _count(messages: Sequence[bytes] | None) -> int:
    return len(messages) if messages else 0


def _digest_at(messages: Sequence[bytes] | None, count: int) -> str | None:
    """Return the digest of the first `count` messages; None if there are fewer messages, or the digest is unknown."""
    if messages is None or not 0 < count <= len(messages):
        return None
    return messages[count - 1].hex()


def _difference(body: Body, before: Prompt, prompt: Prompt) -> tuple[Changed | None, int | None]:
    """Return the first zone that changed, and the first message that changed, from 1."""
    for zone, old, new in zip(CACHE_ZONES, before.zones, prompt.zones, strict=True):
        if old is not new:
            return zone, None
    if body.origin or body.shared_messages == body.message_count:
        return None, None  # the new prompt continues the earlier prompt, or repeats a part of it
    return "messages", body.shared_messages + 1
