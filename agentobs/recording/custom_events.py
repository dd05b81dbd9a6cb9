"""Custom events: events that a program emits in addition to the built-in ones."""

from __future__ import annotations

import re

from agentobs import tracing, world
from agentobs.records.event_catalog import is_built_in
from agentobs.records.facts import Event
from agentobs.records.labels import Label, constant_label
from agentobs.records.metadata import Metadata, numbers_and_labels
from agentobs.records.record_factory import maker
from agentobs.runtime import process
from agentobs.sink import sink

METADATA_MAX = 32
"""The maximum number of fields of an event. Our choice."""

KNOWN_KINDS = 1024
"""The maximum number of valid kinds that are cached; a kind beyond this limit is validated each time. Our choice."""

_KIND = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}\Z")


def event(kind: str, /, **metadata: Metadata) -> None:
    """Emit an event in the session, interaction and turn of the caller.

        agentobs.event("cart_priced", items=3, cached=True, shop=agentobs.Label("berlin-2"))

    Outside a session nothing is recorded. Fields that are None are omitted.

    Passing a plain string is an error in the program, not in its data: the same call fails each time, so the first test
    that reaches it finds the error. The error is therefore raised immediately, before anything is emitted. NaN is
    rejected in the same way. Nothing is raised later, in another thread, or because of the recorder.

    Args:
        kind: the kind of the event: a constant word of letters, digits and `_.:-` that is not a built-in kind (see
            docs/events.md). Kinds that contain a dot can be sampled (`Options.sampling`).
        metadata: fields of the event, at most 32 numbers, booleans and labels.

    Raises:
        TypeError: a value has another type. Plain strings are rejected because they might contain content.
        ValueError: the kind is invalid, a number is infinite or NaN, or a field has no name.
    """
    known = _kind_label(kind)
    if len(metadata) > METADATA_MAX:
        raise ValueError(
            f"an event can carry at most {METADATA_MAX} values, this one has {len(metadata)}"
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
            constant_label(here.query_source),
            here.chain_id,
            here.depth,
            labels,
            1.0,
        )
    )


_event = maker(Event)


def _kind_label(kind: str) -> Label:
    """Return the kind of an event as a label; a valid kind is checked only once.

    Raises:
        ValueError: the kind is invalid or reserved for built-in events.
    """
    seen = process.state(KnownKinds)
    known = seen.kinds.get(kind) if type(kind) is str else None
    if known is not None:
        return known
    if not isinstance(kind, str) or _KIND.match(kind) is None:
        raise ValueError(
            "the kind of an event must be a constant of at most 64 letters, digits and "
            "_.:-; put variable values into the metadata"
        )
    if is_built_in(kind):
        raise ValueError(f"{kind} is a built-in event kind (docs/events.md); use app.{kind}")
    known = Label(kind)
    if len(seen.kinds) < KNOWN_KINDS:
        seen.kinds[kind] = known
    return known


class KnownKinds:
    """Kinds that have been checked."""

    def __init__(self) -> None:
        self.kinds: dict[str, Label] = {}
