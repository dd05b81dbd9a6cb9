"""Fact places: fills in the position of facts from the record that they were derived from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from agentobs.records.canonical_json import size
from agentobs.records.clear_text import declared_label
from agentobs.records.exchanges import ModelExchange, Place, ToolExchange, WorldExchange
from agentobs.records.facts import (
    Attempt,
    Fact,
    InteractionEnd,
    InteractionStart,
    ProviderToolResult,
    ProviderToolUse,
    SpanStart,
    ToolResult,
    ToolUse,
)
from agentobs.records.labels import Label, unchecked


def placed(facts: Iterable[Fact], record: object) -> Iterable[Fact]:
    """Return the facts of a record, each with its query source, its interaction and its turn."""
    match record:
        case ToolExchange():
            return [_with_call(fact, record) for fact in facts]
        case WorldExchange():
            return [_with_query_source(fact, record.place) for fact in facts]
        case ModelExchange():
            return _with_attempt(list(facts), record.place)
        case _:
            return facts


def _with_attempt(facts: Sequence[Fact], place: Place) -> Iterator[Fact]:
    """Yield the facts of an attempt; results in its request belong to the previous turn."""
    attempt = next((fact for fact in facts if isinstance(fact, Attempt)), None)
    source = attempt.query_source if attempt is not None else Label(place.query_source)
    for fact in facts:
        if isinstance(fact, ToolResult) and attempt is not None:
            turn = attempt.turn - 1 if attempt.turn and fact.lane == attempt.lane else None
            yield dataclasses.replace(
                _with_query_source(fact, place, source),
                interaction_id=fact.interaction_id or attempt.interaction_id,
                turn=fact.turn or turn or None,
            )
        elif isinstance(fact, InteractionStart):
            yield dataclasses.replace(fact, query_source=source)
        elif isinstance(fact, SpanStart) and attempt is not None:
            inner: SpanStart = _with_query_source(fact, place, source)
            yield dataclasses.replace(
                inner, interaction_id=attempt.interaction_id, turn=attempt.turn
            )
        elif isinstance(fact, InteractionEnd):
            lane = fact.lane or unchecked(place.lane)
            yield dataclasses.replace(fact, lane=lane, query_source=source)
        else:
            is_call = isinstance(fact, ToolUse | ProviderToolUse | ProviderToolResult)
            yield _with_query_source(fact, place, source) if is_call else fact


def _with_query_source(fact: Any, place: Place, source: Label | None = None) -> Any:
    if fact.query_source is not None:
        return fact  # a call of an agent that the provider runs
    return dataclasses.replace(
        fact,
        query_source=source or Label(place.query_source),
        chain_id=place.chain_id,
        depth=place.depth,
    )


def _with_call(fact: Any, exchange: ToolExchange) -> Any:
    """Return the result of a call that the agent loop executed, with the sizes of its requested and executed input."""
    if not isinstance(fact, ToolResult):
        return fact
    requested = (
        exchange.question.input if exchange.requested_input is None else exchange.requested_input
    )
    executed = exchange.executed_input
    return dataclasses.replace(
        _with_query_source(fact, exchange.place),
        interaction_id=exchange.place.interaction_id,
        turn=exchange.place.turn,
        tool=declared_label(exchange.tool) if exchange.tool is not None else None,
        requested_bytes=size(requested),
        executed_bytes=None if executed is None else size(executed),
        coerced=exchange.coerced,
    )
