"""Sampling of events: which kinds can be sampled, and which events are kept."""

from __future__ import annotations

import hashlib

from agentobs.records.event_catalog import ROW_KINDS, TABLE_KINDS, VIEW_KINDS


def sampling_error(kind: str, rate: object) -> str | None:
    """Return why a sampling rate is not valid for a kind, as a text; None if it is valid.

    Custom kinds can be sampled if their name contains a dot, which built-in names do not.
    """
    known = ROW_KINDS.get(kind)
    if known is not None and known.is_required:
        return f"the kind {kind!r} cannot be sampled, because every event of it is needed"
    if kind in TABLE_KINDS or kind in VIEW_KINDS:
        return f"the kind {kind!r} cannot be sampled, because it has its own table"
    if known is None and "." not in kind:
        return f"there is no kind of event {kind[:80]!r}"
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
        return f"the sampling rate of {kind!r} must be a number from 0 to 1"
    return None


def is_kept(session_id: str, sequence: int, rate: float) -> bool:
    """Return whether sampling keeps the event with a sequence number in its session.

    The decision depends only on a hash of the session and the number, so every reader of a session keeps the same
    events.
    """
    if rate >= 1:
        return True
    hashed = hashlib.blake2b(f"{session_id}:{sequence}".encode(), digest_size=8).digest()
    return int.from_bytes(hashed, "big") < rate * 2.0**64
