"""Prefixes: a digest of each zone of a prompt, and what changed before what is new, so that the cache misses.

A prompt is cached from its start: betas, model, tools, system, parameters, then message after message. A request
is compared with the earlier one whose messages it repeats, else with the one that shares the most bytes. Only
values are read that are parsed anyway, and each zone or message is hashed once, when it is new. No text leaves
this module; its digests are keyed, so that nobody guesses a short prompt from one.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from agentobs.provider.messages import blocks
from agentobs.recording.vault.body_deltas import Body
from agentobs.records.facts import Prefix, Zones
from agentobs.records.labels import Label

Changed = Literal["betas", "model", "tools", "system", "parameters", "system_dynamic", "messages"]

KEPT = 16
"""How many earlier prompts of a session are kept to compare with: as many as there are bodies."""

_ZONES: tuple[tuple[Changed, tuple[str, ...]], ...] = (
    ("betas", ()),
    ("model", ("model", "speed")),
    ("tools", ("tools",)),
    ("system", ()),
    ("parameters", ("tool_choice", "thinking")),
    ("system_dynamic", ()),
)
"""The zones before the messages, in the order in which a prompt is cached, with the fields that make them.

The betas are a header; the system prompt ends with its first mark, and what follows is its dynamic part. Source:
provider documentation, 2026-11 (platform.claude.com/docs/en/build-with-claude/prompt-caching, what invalidates
the cache)."""


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


class _Zone(NamedTuple):
    value: Any
    digest: str | None
    """None where the request has no such zone."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, as it is compared with later ones."""

    attempt_id: str
    lane: str
    zones: tuple[_Zone, ...]
    messages: Sequence[bytes] | None
    """After each message the digest of all up to it; None where an earlier body is not known any more."""


class Prefixes:
    """The last prompts of one session."""

    def __init__(self, key: bytes) -> None:
        """Start with none; `key` is the home's own."""
        self.key = key
        """That key; the likeness of inputs is keyed with it, too."""
        self._kept: OrderedDict[str, Prompt] = OrderedDict()
        self._messages: OrderedDict[str, list[bytes]] = OrderedDict()

    def see(
        self, body: Body, betas: str | None, session_id: str, attempt_id: str, lane: Label
    ) -> tuple[Prompt, Prompt | None, Zones]:
        """Return a prompt, the earlier one that it is to be compared with, and the digests of its zones."""
        before = self._before(body, lane)
        zones = self._zones(_values(body.head, betas), before.zones if before else None)
        prompt = Prompt(attempt_id, lane, zones, self._chain(body))
        told = {name: zone.digest for (name, _), zone in zip(_ZONES, zones, strict=True)}
        repeated = _last(before.messages) if before else 0
        fact = Zones(
            session_id=session_id,
            attempt_id=attempt_id,
            compared_attempt_id=before.attempt_id if before else None,
            betas=told["betas"],
            model=told["model"],
            tools=told["tools"],
            system=told["system"],
            parameters=told["parameters"],
            system_dynamic=told["system_dynamic"],
            messages=_digest_at(prompt.messages, _last(prompt.messages)),
            repeated_messages=repeated or None,
            repeated=_digest_at(prompt.messages, repeated),
        )
        return prompt, before, fact

    def know(self, body: Body) -> None:
        """Remember the messages of a body that is no prompt, such as one whose tokens are counted."""
        self._chain(body)

    def compare(
        self,
        body: Body,
        session_id: str,
        prompt: Prompt,
        before: Prompt | None,
        message: Mapping[str, Any],
        label: Callable[[str], Label],
    ) -> Prefix | None:
        """Return what there is to say of a prompt that was answered with `message`, and keep the prompt."""
        changed, number = _difference(body, before, prompt) if before else (None, None)
        self._keep(body.content_id, prompt)
        reason, missed = _told(message)
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
        """Return the prompt to compare with; None where a conversation begins."""
        if body.origin and body.origin in self._kept:
            return self._kept[body.origin]
        if body.base and body.shared_messages and body.base in self._kept:
            return self._kept[body.base]
        if (body.message_count or 0) < 2:
            return None
        of_lane = (prompt for prompt in reversed(self._kept.values()) if prompt.lane == lane)
        return next(of_lane, None)

    def _keep(self, content_id: str, prompt: Prompt) -> None:
        self._kept.pop(content_id, None)
        self._kept[content_id] = prompt
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def _zones(self, values: Sequence[Any], before: Sequence[_Zone] | None) -> tuple[_Zone, ...]:
        """Return the zones; those that are as before are the same objects, so that they weigh and cost once."""
        zones = []
        for at, value in enumerate(values):
            if before is not None and _is_same(before[at].value, value):
                zones.append(before[at])
            else:
                zones.append(_Zone(value, self._digest(b"", value) if _has(value) else None))
        if before is not None and _is_same_system(before, zones):
            for at in (_SYSTEM, _DYNAMIC):  # only the marks are elsewhere
                zones[at] = before[at]
        return tuple(zones)

    def _chain(self, body: Body) -> list[bytes] | None:
        """Return the digests of the messages, each over the one before it; those of shared ones are known."""
        chain: list[bytes] = []
        if body.shared_messages:
            known = self._messages.get(body.base or "")
            if known is None or len(known) < body.shared_messages:
                return None
            chain = known[: body.shared_messages]
        for message in body.new_messages:
            digest = self._digest(chain[-1] if chain else b"", _bare(message))
            chain.append(bytes.fromhex(digest))
        self._messages[body.content_id] = chain
        self._messages.move_to_end(body.content_id)
        if len(self._messages) > KEPT:
            self._messages.popitem(last=False)
        return chain

    def _digest(self, before: bytes, value: Any) -> str:
        """Return a keyed digest; the order of keys counts, for it does to the cache."""
        try:
            text = _ENCODER.encode(_unmarked(value))
        except RecursionError:
            text = "nested too deep to be written"
        data = text.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(before + data, key=self.key, digest_size=16).hexdigest()


_SYSTEM = [name for name, _ in _ZONES].index("system")
_DYNAMIC = [name for name, _ in _ZONES].index("system_dynamic")


def _values(head: Mapping[str, Any], betas: str | None) -> tuple[Any, ...]:
    """Return the values of the zones."""
    static, dynamic = _split(head.get("system"))
    own = {"betas": betas, "system": static, "system_dynamic": dynamic}
    return tuple(
        own[zone] if zone in own else tuple(head.get(name) for name in names)
        for zone, names in _ZONES
    )


def _split(system: Any) -> tuple[Any, Any]:
    """Return a system prompt up to its first mark, and what follows; without marks all of it stays."""
    if isinstance(system, list):
        for at, block in enumerate(system[:-1], 1):
            if isinstance(block, dict) and block.get("cache_control"):
                return system[:at], system[at:]
    return system, None


def _has(value: Any) -> bool:
    return any(value) if isinstance(value, tuple) else bool(value)


def _is_same(old: Any, new: Any) -> bool:
    return old is new or old == new or _unmarked(old) == _unmarked(new)


def _is_same_system(before: Sequence[_Zone], zones: Sequence[_Zone]) -> bool:
    """Return whether the whole system prompt is as before, wherever its first mark stands."""
    if before[_SYSTEM] is zones[_SYSTEM] and before[_DYNAMIC] is zones[_DYNAMIC]:
        return False
    old = [*_listed(before[_SYSTEM].value), *_listed(before[_DYNAMIC].value)]
    new = [*_listed(zones[_SYSTEM].value), *_listed(zones[_DYNAMIC].value)]
    return [_without_mark(block) for block in old] == [_without_mark(block) for block in new]


def _listed(system: Any) -> list[Any]:
    if isinstance(system, str):
        return [{"type": "text", "text": system}]
    return system if isinstance(system, list) else []


def _last(messages: Sequence[bytes] | None) -> int:
    return len(messages) if messages else 0


def _digest_at(messages: Sequence[bytes] | None, count: int) -> str | None:
    """Return the digest of so many messages; None where there are not so many, or nothing is known."""
    if messages is None or not 0 < count <= len(messages):
        return None
    return messages[count - 1].hex()


def _difference(body: Body, before: Prompt, prompt: Prompt) -> tuple[Changed | None, int | None]:
    """Return the first zone that changed, and of messages the first that did, from 1."""
    for (zone, _), old, new in zip(_ZONES, before.zones, prompt.zones, strict=True):
        if old is not new:
            return zone, None
    if body.origin or body.shared_messages == body.message_count:
        return None, None  # it goes on from the earlier prompt, or goes back in it
    return "messages", body.shared_messages + 1


def _bare(message: Any) -> Any:
    """Return a message without the marks of the cache; a mark makes a list of what was a string."""
    if not isinstance(message, dict):
        return message
    content = [_without_mark(block) for block in blocks(message)]
    return {**message, "content": content}


def _unmarked(value: Any) -> Any:
    """Return tools or a system prompt without the marks of the cache; a mark makes a list of what was text."""
    if isinstance(value, tuple):
        return tuple(_unmarked(each) for each in value)
    if isinstance(value, list):
        plain = [_without_mark(each) for each in value]
        only = plain[0] if len(plain) == 1 and isinstance(plain[0], dict) else {}
        return only["text"] if only.keys() == {"type", "text"} else plain
    return value


def _without_mark(value: Any) -> Any:
    if not isinstance(value, dict) or "cache_control" not in value:
        return value
    return {key: inner for key, inner in value.items() if key != "cache_control"}


def _told(message: Mapping[str, Any]) -> tuple[str | None, int | None]:
    """Return the provider's reason of a miss and the tokens that it names."""
    diagnostics = message.get("diagnostics")
    reason = diagnostics.get("cache_miss_reason") if isinstance(diagnostics, dict) else None
    if not isinstance(reason, dict) or not isinstance(reason.get("type"), str):
        return None, None
    missed = reason.get("cache_missed_input_tokens")
    is_count = isinstance(missed, int) and not isinstance(missed, bool) and 0 <= missed <= 10**12
    return reason["type"] or None, missed if is_count else None
