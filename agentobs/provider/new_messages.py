"""Which messages of a request are new: those that neither the previous request nor its response contains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from agentobs.provider.dialect import Dialect, Turn


class NewMessages(NamedTuple):
    """The place of the new messages of a request among all of its messages."""

    first: int
    """The position of the first new message: the number of earlier messages."""
    rewritten: int
    """The number of messages of the previous request that are missing or changed."""


def new_messages(
    old: Sequence[Any], response: Mapping[str, Any] | None, new: Sequence[Any], dialect: Dialect
) -> NewMessages:
    """Return which messages of a request are new.

    A message that repeats the response to the previous request is not new. A moved cache breakpoint does not change a
    message.

    Args:
        old: the messages of the previous request of the lane; empty if there is none.
        response: the response to it; None or empty if there is none.
        new: the messages of the request.
        dialect: the dialect of the provider.
    """
    kept = _unchanged_count(old, new, dialect)
    is_repeated = (
        response and kept == len(old) and kept < len(new) and _is_echo(new[kept], response, dialect)
    )
    return NewMessages(kept + bool(is_repeated), len(old) - kept)


def _unchanged_count(old: Sequence[Any], new: Sequence[Any], dialect: Dialect) -> int:
    """Return the number of identical messages at the start."""
    without = dialect.without_breakpoints
    for at, (one, other) in enumerate(zip(old, new, strict=False)):
        if one != other and without(one) != without(other):
            return at
    return min(len(old), len(new))


def _is_echo(value: Any, response: Mapping[str, Any], dialect: Dialect) -> bool:
    """Return whether a message of a request repeats a response without changes."""
    turn = dialect.turn(value)
    return turn.role == "assistant" and _comparable(turn) == _comparable(
        dialect.turn(dict(response))
    )


def _comparable(turn: Turn) -> list[Any]:
    return [
        [b.type, b.text, b.name, b.value if b.kind in ("call", "provider_call") else None]
        for b in turn.blocks
    ]
