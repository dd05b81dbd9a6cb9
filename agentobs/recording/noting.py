"""Noting: events of one's own, beside those that agentobs tells."""

from __future__ import annotations

import re

from agentobs import tracing, world
from agentobs.records.events import is_taken
from agentobs.records.facts import Event
from agentobs.records.labels import Label, unchecked
from agentobs.records.metadata import Metadata, numbers_and_labels
from agentobs.sink import sink

METADATA_MAX = 32
"""How much an event may carry. Our choice."""

_KIND = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}\Z")


def event(kind: str, /, **metadata: Metadata) -> None:
    """Note that something happened now, in the session, interaction and turn that the caller is in.

        agentobs.event("cart_priced", items=3, cached=True, shop=agentobs.Label("berlin-2"))

    Outside every session nothing is noted. What is None is left out.

    A text that is handed in is wrong in the program, not in the data of a run: the same call fails each time, so that the
    first test which comes by finds it. Therefore it raises, here in the caller's frame and before anything was
    handed on. Nothing is ever raised later, in another thread, or for what the recorder does.

    Args:
        kind: what happened: a constant word of letters, digits and `_.:-`, none of the kinds of docs/events.md.
            Kinds with a dot in them can be sampled (`Options.sampling`).
        metadata: what is to be known about it, at most 32 numbers, booleans and labels.

    Raises:
        TypeError: a value is of another type: a text might hold content, whatever it says.
        ValueError: the kind is none, a number is infinite or none (NaN), or a value has no name.
    """
    _check_kind(kind)
    if len(metadata) > METADATA_MAX:
        raise ValueError(
            f"an event carries at most {METADATA_MAX} values, this one {len(metadata)}"
        )
    numbers, labels = numbers_and_labels(metadata)
    here = tracing.place()
    if here is None:
        return
    sink.emit(
        Event(
            session_id=here.session_id,
            interaction_id=here.interaction_id,
            lane=unchecked(here.lane),
            turn=here.turn,
            at_ns=world.now(),
            kind=Label(kind),
            label=None,
            numbers=numbers or {},
            query_source=Label(here.query_source),
            chain_id=here.chain_id,
            depth=here.depth,
            labels=labels,
        )
    )


def _check_kind(kind: object) -> None:
    if not isinstance(kind, str) or _KIND.match(kind) is None:
        raise ValueError(
            "the kind of an event is a constant word of at most 64 letters, digits and _.:-; what differs from time "
            "to time is metadata"
        )
    if is_taken(kind):
        raise ValueError(f"{kind} is a kind of agentobs' own (docs/events.md): call it app.{kind}")
