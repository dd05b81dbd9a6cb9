"""Credentials of open sessions: the keys in their requests, kept only in memory.

A key of an unknown format can only be recognized because a request contains it in a header. Other parts of a session
(its reason, its result, its name and its arguments) may contain the same key.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

SESSIONS_MAX = 1_000
"""The maximum number of open sessions whose credentials are kept. Our choice."""
SECRETS_MAX = 64
"""The maximum number of credentials that are kept for one session; if there are more, the oldest are forgotten. Our
choice.
"""
STARTS_BYTES = 16 * 1024 * 1024
"""The total size of the start lines of open sessions that are kept until their ends. Our choice."""


class Credentials:
    """The credentials of each open session, and its start line, which was written before they were known."""

    def __init__(self) -> None:
        """Start without credentials."""
        self._secrets: OrderedDict[str, dict[bytes, None]] = OrderedDict()
        self._starts: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0

    def __repr__(self) -> str:
        """Return a text without the credentials."""
        return f"Credentials(sessions={len(self._secrets)})"

    def begin(self, session_id: str, written: bytes) -> None:
        """Keep the content of the start line of a session, unless it is too large."""
        self._forget_start(session_id)
        if len(written) > STARTS_BYTES:
            return
        self._starts[session_id] = written
        self._size += len(written)
        while self._size > STARTS_BYTES or len(self._starts) > SESSIONS_MAX:
            self._forget_start(next(iter(self._starts)))

    def add(self, session_id: str, secrets: Iterable[bytes]) -> None:
        """Add the credentials of a request."""
        for secret in secrets:
            known = self._secrets.setdefault(session_id, {})
            known.pop(secret, None)
            known[secret] = None
            if len(known) > SECRETS_MAX:
                del known[next(iter(known))]
            self._secrets.move_to_end(session_id)
            if len(self._secrets) > SESSIONS_MAX:
                self._secrets.popitem(last=False)

    def of(self, session_id: str) -> tuple[bytes, ...]:
        """Return the credentials of a session."""
        return tuple(self._secrets.get(session_id, ()))

    def start_of(self, session_id: str) -> bytes | None:
        """Return the content of the start line of a session; None if it was not kept."""
        return self._starts.get(session_id)

    def forget(self, session_id: str) -> None:
        """Forget a session that has ended."""
        self._secrets.pop(session_id, None)
        self._forget_start(session_id)

    def _forget_start(self, session_id: str) -> None:
        self._size -= len(self._starts.pop(session_id, b""))
