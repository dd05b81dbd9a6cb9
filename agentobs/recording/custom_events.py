"""Noting: events of one's own, beside those that agentobs tells."""

from __future__ import annotations

import re

from agentobs import tracing, world
from agentobs.records.event_catalog import is_taken
from agentobs.records.facts import Event
from agentobs.records.labels import Label, word
from agentobs.records.metadata import Metadata, numbers_and_labels
from agentobs.records.record_factory import maker
from agentobs.sink import sink

METADATA_MAX = 32
"""How much an event may carry. Our choice."""

KNOWN_KINDS = 1024
"""How many kinds are remembered as right; beyond it each is looked at anew. Our choice."""

_KIND = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}\Z")


def event(kind: str, /, **metadata: Metadata) -> None:
    """Note that something happened now, in the session, interaction and turn that the caller is in.

        agentobs.event("cart_priced", items=3, cached=True, shop=agentobs.Label("berlin-2"))

    Outside every session nothing is noted. What is None is left out.

    A text that is handed in is wrong in the program, not in the data of a run: the same call fails each time, so that
    the first test which comes by finds it. Therefore it raises, here in the caller's frame and before anything was
    handed on; a NaN is refused alike. Nothing is ever raised later, in another thread, or for what the recorder does.

    Args:
        kind: what happened: a constant word of letters, digits and `_.:-`, none of the kinds of docs/events.md.
            Kinds with a dot in them can be sampled (`Options.sampling`).
        metadata: what is to be known about it, at most 32 numbers, booleans and labels.

    Raises:
        TypeError: a value is of another type: a text might hold content, whatever it says.
        ValueError: the kind is none, a number is infinite or none (NaN), or a value has no name.
    """
    known = _checked(kind)
    if len(metadata) > METADATA_MAX:
        raise ValueError(
            f"an event carries at most {METADATA_MAX} values, this one {len(metadata)}"
        )
    numbers, labels = numbers_and_labels(metadata)
    here = tracing.place()
    if here is None:
        return
    sink.emit(
        _event(
            here.session_id,
            here.interaction_id,
            here.lane,
            here.turn,
            world.now(),
            known,
            None,
            numbers or {},
            word(here.query_source),
            here.chain_id,
            here.depth,
            labels,
            1.0,
        )
    )


_event = maker(Event)


def _checked(kind: str) -> Label:
    """Return a kind as a label; what is right is looked at once.

    Raises:
        ValueError: it is none, or one of ours.
    """
    known = _kinds.get(kind) if type(kind) is str else None
    if known is not None:
        return known
    if not isinstance(kind, str) or _KIND.match(kind) is None:
        raise ValueError(
            "the kind of an event is a constant word of at most 64 letters, digits and _.:-; what differs from time "
            "to time is metadata"
        )
    if is_taken(kind):
        raise ValueError(f"{kind} is a kind of agentobs' own (docs/events.md): call it app.{kind}")
    known = Label(kind)
    if len(_kinds) < KNOWN_KINDS:
        _kinds[kind] = known
    return known


_kinds: dict[str, Label] = {}
"""Kinds that were looked at."""
