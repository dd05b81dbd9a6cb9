"""The kinds of blocks, events, errors and reasons that the types of the installed SDK define."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

from anthropic import types
from anthropic.types import beta
from anthropic.types.beta import messages, sessions
from anthropic.types.beta.sessions.beta_managed_agents_session_error_event import (
    Error as SessionError,
)
from anthropic.types.beta.sessions.beta_managed_agents_session_status_idle_event import (
    StopReason as SessionStopReason,
)


def members(union: Any) -> Iterator[Any]:
    """Yield the classes in a union, including nested unions."""
    if isinstance(union, type):
        yield union
    else:
        for each in typing.get_args(union):
            if isinstance(each, type) or typing.get_args(each):
                yield from members(each)


def types_of(union: Any) -> set[str]:
    """Return the values of `type` of all classes in a union."""
    return {value for each in members(union) for value in _type_values(each)}


def _type_values(cls: Any) -> Iterator[str]:
    field = getattr(cls, "model_fields", {}).get("type")
    pending = [field.annotation if field else typing.get_type_hints(cls).get("type")]
    while pending:
        for each in typing.get_args(pending.pop()):
            if isinstance(each, str):
                yield each
            else:
                pending.append(each)


SDK_KINDS: dict[str, set[str]] = {
    "block of a response": types_of(types.ContentBlock) | types_of(beta.BetaContentBlock),
    "block of a request": types_of(beta.BetaContentBlockParam),
    "tool of a request": types_of(beta.BetaToolUnionParam),
    "event of a stream": types_of(beta.BetaRawMessageStreamEvent),
    "delta": types_of(beta.BetaRawContentBlockDelta),
    "stop reason": {*typing.get_args(types.StopReason), *typing.get_args(beta.BetaStopReason)},
    "type of error": types_of(types.BetaErrorObject),
    "iteration of usage": types_of(beta.BetaIterationsUsage),
    "result of a batch": types_of(messages.BetaMessageBatchResult),
    "event of a managed agent": types_of(sessions.BetaManagedAgentsStreamSessionEvents),
    "error of a managed agent": types_of(SessionError),
    "stop reason of a managed agent": types_of(SessionStopReason),
}
"""The kinds by what they are kinds of."""
