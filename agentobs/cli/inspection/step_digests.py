"""Digests of the content of two sessions, step by step, so that a comparison finds differences without showing texts.

If the texts of both sessions can be read, their digests decide. Otherwise only prompts can be compared, by the digests
in the facts, which are keyed with the secret key of the home. Digests of two homes differ even if the texts are equal,
so they are not compared.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from agentobs.errors import AgentobsError

if TYPE_CHECKING:
    from agentobs.records.exchanges import Exchange, ModelExchange
    from agentobs.store.port import Store

Step = tuple[str, str]
"""The kind and the ID of a step."""
Gap = Literal["content_missing", "different_homes"]
"""Why parts of two sessions cannot be compared."""
_CONTENT = ("response", "input", "result")
_PROMPT = ("system_prompt", "tools", "parameters", "beta_headers")
_MESSAGES = "messages"
"""The messages that a prompt adds. Their keyed digest is known for the first request of a conversation."""


@dataclass(slots=True)
class StepDigests:
    """The digests of the content of a session, by step and by the name of the part."""

    digests: dict[Step, dict[str, str]] = field(default_factory=dict)
    ids: dict[Step, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    """The IDs in each part, in order."""

    def add(self, step: Step, name: str, value: Any, session_ids: Sequence[str]) -> None:
        """Add a part of a step."""
        from replay.divergence.session_diff import content_digest

        found, ids = content_digest(value, session_ids)
        self.digests.setdefault(step, {})[name] = found
        self.ids.setdefault(step, {})[name] = ids


@dataclass(frozen=True, slots=True)
class NotCompared:
    """Parts of the content that cannot be compared."""

    parts: tuple[str, ...]
    reason: Gap
    missing_in: tuple[str, ...] = ()
    """The sessions whose content is missing: `a`, `b`, or both."""

    def json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "parts": list(self.parts),
            "reason": self.reason,
            "missing_in": list(self.missing_in),
        }


def step_digests(
    store: Store, session_ids: Sequence[str]
) -> tuple[list[StepDigests], list[NotCompared]]:
    """Return the digests of both sessions that can be compared, and what cannot be compared."""
    keyed = [_keyed_prompts(store, session_id) for session_id in session_ids]
    found = [
        _of_content(store, session_id, prompts)
        for session_id, prompts in zip(session_ids, keyed, strict=True)
    ]
    if all(each is not None for each in found):
        return [each for each in found if each is not None], []
    missing = tuple(name for name, each in zip("ab", found, strict=True) if each is None)
    gaps = [NotCompared(_CONTENT, "content_missing", missing)]
    prompts = _comparable(store, session_ids, keyed)
    if prompts is None:
        different = NotCompared((*_PROMPT, _MESSAGES), "different_homes")
        return [StepDigests(), StepDigests()], [*gaps, different]
    return prompts, gaps


def _comparable(
    store: Store, session_ids: Sequence[str], keyed: Sequence[_Prompts]
) -> list[StepDigests] | None:
    """Return the keyed digests as digests of steps; None if they have different keys."""
    if not _is_same_key(store, session_ids, keyed):
        return None
    return [
        StepDigests({("request", attempt_id): dict(zones) for attempt_id, zones in each.items()})
        for each in keyed
    ]


_Prompts = Mapping[str, Mapping[str, str]]
"""The keyed digests of the parts of the prompt of each attempt; an empty text for a missing part. Messages whose digest
is not known are left out.
"""


def _keyed_prompts(store: Store, session_id: str) -> _Prompts:
    zones = store.rows("internal/prompt_zones", session_id=session_id).dicts()
    return {
        str(row["attempt_id"]): {name: row[name] or "" for name in _PROMPT}
        | ({_MESSAGES: row[_MESSAGES]} if row[_MESSAGES] else {})
        for row in zones
    }


def _is_same_key(store: Store, session_ids: Sequence[str], keyed: Sequence[_Prompts]) -> bool:
    """Return whether the digests of both sessions have the same key. Digests of different keys are never equal."""
    from agentobs.importers.bundle import bundle_origin

    if all(bundle_origin(store.home, each) is None for each in session_ids):
        return True
    a, b = ({digest for zones in each.values() for digest in zones.values()} for each in keyed)
    return bool((a & b) - {""})


def _of_content(store: Store, session_id: str, keyed: _Prompts) -> StepDigests | None:
    """Return the digests of a session's content; None if the content is missing.

    Only one request is read for each different prompt, because requests can be large.
    """
    from agentobs.records.exchanges import ModelExchange

    examples: dict[tuple[str, ...], str] = {}
    for attempt_id, zones in keyed.items():
        examples.setdefault(_prompt_key(zones), attempt_id)
    own_ids = session_id, _with_dashes(session_id)
    found = StepDigests()
    prompts = StepDigests()
    try:
        exchanges = store.content(session_id, bodies=set(examples.values())).exchanges
        _add_messages(found, store, session_id, own_ids)
    except (AgentobsError, OSError):
        return None
    for exchange in exchanges:
        _add(found, exchange, own_ids)
        if isinstance(exchange, ModelExchange) and exchange.question.body:
            _add_prompt(prompts, exchange, own_ids)
    for attempt_id, zones in keyed.items():
        example = "request", examples[_prompt_key(zones)]
        found.digests.setdefault(("request", attempt_id), {}).update(
            prompts.digests.get(example, {})
        )
    return found


def _prompt_key(zones: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(zones[name] for name in _PROMPT)


def _add_messages(
    found: StepDigests, store: Store, session_id: str, own_ids: Sequence[str]
) -> None:
    """Add the messages of the prompts. Only one request is in memory at a time, because requests can be large.

    Raises:
        AgentobsError: the content is missing or damaged.
    """
    from agentobs.recording.vault.vault import Vault
    from replay.divergence.session_diff import prompt_messages
    from replay.fixture.body_parts import value_of

    vaults: dict[str, Vault] = {}
    for row in store.rows("internal/prompt_requests", session_id=session_id).dicts():
        segment_id = str(row["segment_id"])
        if segment_id not in vaults:
            vaults = {segment_id: Vault(store.home, segment_id, session_id)}
        body = value_of(vaults[segment_id].body(str(row["request_content"])))
        if isinstance(body, dict):
            messages = prompt_messages(body, is_first=row["is_first"])
            found.add(("request", str(row["attempt_id"])), _MESSAGES, messages, own_ids)


def _with_dashes(session_id: str) -> str:
    """Return the form of an ID in which programs write UUIDs."""
    ends = (0, 8, 12, 16, 20, len(session_id))
    return "-".join(session_id[a:b] for a, b in itertools.pairwise(ends))


def _add(found: StepDigests, exchange: Exchange, own_ids: Sequence[str]) -> None:
    """Add a response with its calls, or a tool that ran."""
    from agentobs.provider.registry import message_of
    from agentobs.records.exchanges import ModelExchange, ToolExchange
    from replay.divergence.session_diff import response_parts

    if isinstance(exchange, ModelExchange):
        message = message_of(exchange.question.path, exchange.answer)
        step = "request", exchange.attempt_id
        found.add(step, "response", response_parts(message), own_ids)
        for call in message.calls:
            found.add(("tool_call", str(call.id)), "input", call.value, own_ids)
    elif isinstance(exchange, ToolExchange):
        step = "tool_call", exchange.question.tool_use_id
        found.add(step, "input", exchange.question.input, own_ids)
        found.add(step, "result", exchange.answer.content, own_ids)


def _add_prompt(found: StepDigests, exchange: ModelExchange, own_ids: Sequence[str]) -> None:
    """Add the parts of the prompt of a request, without cache breakpoints."""
    from agentobs.provider.dialect import CACHE_ZONES
    from agentobs.provider.registry import dialect_of
    from replay.fixture.body_parts import value_of

    dialect = dialect_of(exchange.question.path)
    body = value_of(exchange.question.body)
    if not isinstance(body, dict):
        return
    headers = exchange.question.headers
    zones = dict(zip(CACHE_ZONES, dialect.cache_zones(body, headers), strict=True))
    system = zones["system"]
    if isinstance(system, list):
        system = [*system, *(zones["system_dynamic"] or ())]
    values = (system, zones["tools"], zones["parameters"], zones["betas"])
    for name, value in zip(_PROMPT, values, strict=True):
        plain = list(value) if isinstance(value, tuple) else value
        with contextlib.suppress(RecursionError):
            text = dialect.without_breakpoints(plain)
            found.add(("request", exchange.attempt_id), name, text, own_ids)
