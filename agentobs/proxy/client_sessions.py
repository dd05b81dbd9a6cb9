"""Client sessions: which session of agentobs a request through the proxy belongs to.

Clients send the ID of their session in a header (Claude Code: `x-claude-code-session-id`), or in `metadata.user_id` of
the body. Each such ID is one session; requests without an ID belong to the main session, which is the first one. A
session starts with its first request, because its links to earlier sessions are only known then.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentobs import world
from agentobs.errors import error_kind, warn_once
from agentobs.provider.registry import credentials, turns
from agentobs.recording.session import Link, Session
from agentobs.records.canonical_json import parse
from agentobs.records.exchanges import Place

SESSION_HEADER = "x-agentobs-session"
"""With this header, any client can name the session of a request. It is not forwarded."""
CLIENT_HEADER = "x-claude-code-session-id"
"""The header with the session of Claude Code (2.1) and of the Claude Agent SDKs, which start it."""
CLIENT_TAG = "client_session"
"""The tag of a session with the client's own ID of it."""
NAMED = "name:"
"""The start of the key of a session that the client named."""
_ID = re.compile(r"[A-Za-z0-9._:@-]{1,128}")
PARSED_BYTES = 1024 * 1024
"""The longest body that is parsed without a thread. Our choice: that takes about 5 ms."""
_METADATA = b'"metadata"'
"""Bytes that occur in each body with an ID."""
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

OpenSession = Callable[[str | None, str | None, Link, Sequence[str]], Session]
"""Opens a session, given the client's ID of it, the name that the client gave it, the earlier session that it
continues, and the credentials of its first request.
"""
FindEarlier = Callable[[str, list[str]], Link]
"""Finds the recorded session that a conversation continues, given the client's ID and the IDs of its tool calls."""


@dataclass(slots=True)
class _Opened:
    session: Session
    last_ns: int
    """When the last request began, on the monotonic clock."""
    in_progress: int = 0


@dataclass(slots=True)
class ClientSessions:
    """The sessions of one proxy, by the client's ID; safe to share between threads."""

    open_session: OpenSession
    find_earlier: FindEarlier
    _opened: dict[str, _Opened] = field(default_factory=dict)
    """The open sessions by the client's ID, or by "" without an ID; the first one is the main session."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def known_place_of(
        self, headers: Mapping[str, str], body: bytes | None
    ) -> tuple[Place, str] | None:
        """Return the place of a request, and the key with which to report its end, without waiting.

        Args:
            headers: the request headers, with names in lower case.
            body: the request body; None if it is streamed.

        Returns:
            None if the session is not open, if any session is being opened, or if the body is long.
        """
        key = _id_in_headers(headers)
        if key is None:
            if body is not None and len(body) > PARSED_BYTES:
                return None
            key = (_id_in_body(_parsed(body)) if body and _METADATA in body else None) or ""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            opened = self._opened.get(key)
            return None if opened is None else (_begun(opened), key)
        finally:
            self._lock.release()

    def place_of(self, headers: Mapping[str, str], body: bytes | None) -> tuple[Place, str]:
        """Return the place of a request, and the key with which to report its end; a new session is opened.

        Args:
            headers: the request headers, with names in lower case.
            body: the request body; None if it is streamed.
        """
        parsed = _parsed(body)
        key = _id_in_headers(headers) or _id_in_body(parsed) or ""
        with self._lock:
            return _begun(self._session(key, parsed, headers)), key

    def latest_place(self) -> Place | None:
        """Return the place of the session with the last request; None if no session has started."""
        with self._lock:
            latest = max(self._opened.values(), key=lambda each: each.last_ns, default=None)
            return latest.session.place() if latest is not None else None

    def ended(self, key: str) -> None:
        """Receive the notice that a request has ended; `key` is from `place_of`."""
        with self._lock:
            if (opened := self._opened.get(key)) is not None:
                opened.in_progress -= 1
                opened.last_ns = world.monotonic()

    def _session(self, key: str, parsed: Any, headers: Mapping[str, str]) -> _Opened:
        if key in self._opened:
            return self._opened[key]
        named = key.removeprefix(NAMED) if key.startswith(NAMED) else None
        main = next(iter(self._opened.values()), None)
        if main is not None and (not key or (set(self._opened) == {""} and not named)):
            opened = main
        else:
            link = self._earlier(key, parsed)
            keys = [each for each in credentials(headers) if each]
            session = self.open_session(None if named else key or None, named, link, keys)
            opened = _Opened(session, world.monotonic())
        self._opened[key] = opened
        return opened

    def _earlier(self, client_id: str, parsed: Any) -> Link:
        """Return the recorded session that a new conversation continues; None if it does not start with a history."""
        try:
            history = turns(parsed)
            if not any(turn.role == "assistant" for turn in history):
                return None
            calls = [call.id for turn in history for call in turn.calls if call.id]
            return self.find_earlier(client_id, calls)
        except Exception as error:
            warn_once(f"the session before a resumed one was not found: {error_kind(error)}")
            return None

    def close_idle(self, seconds: float) -> None:
        """Close the sessions without a request for `seconds`; a later request opens a new session."""
        now = world.monotonic()
        with self._lock:
            idle = [
                key
                for key, each in self._opened.items()
                if each.in_progress <= 0 and now - each.last_ns > seconds * 1e9
            ]
            closing = [self._opened.pop(key).session for key in idle]
        for session in closing:
            session.close()

    def sessions(self) -> list[Session]:
        """Return the open sessions in the order of their first requests."""
        with self._lock:
            return list({id(each): each.session for each in self._opened.values()}.values())


def _parsed(body: bytes | None) -> Any:
    if not body:
        return None
    try:
        return parse(body)
    except (ValueError, RecursionError):
        return None


def _begun(opened: _Opened) -> Place:
    """Note that a request of a session has begun, and return its place."""
    opened.last_ns = world.monotonic()
    opened.in_progress += 1
    return opened.session.place()


def _id_in_headers(headers: Mapping[str, str]) -> str | None:
    """Return the key of the session that the headers name; None if they name none."""
    if named := headers.get(SESSION_HEADER, "").strip()[:128]:
        return NAMED + named
    told = headers.get(CLIENT_HEADER, "").strip()
    return told if _ID.fullmatch(told) else None


def _id_in_body(parsed: Any) -> str | None:
    """Return the client's ID of the session in the metadata of a request; None if the client does not send it."""
    metadata = parsed.get("metadata") if isinstance(parsed, dict) else None
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    return _id_in_user(user) if isinstance(user, str) else None


def _id_in_user(user: str) -> str | None:
    """Return the session in `metadata.user_id`: Claude Code writes JSON there (2.1), or `user_..._session_ID` (1.0).

    Other clients identify a person there, which is not a session.
    """
    value = _parsed(user.encode("utf-8", "surrogatepass"))
    if isinstance(value, dict) and isinstance(found := value.get("session_id"), str):
        return found if _ID.fullmatch(found) else None
    _, separator, last = user.rpartition("_session_")
    return last if separator and _UUID.fullmatch(last) else None
