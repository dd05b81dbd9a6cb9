"""Logged requests: the requests of a session, from the lines in which newer versions of the client log them.

Since 2.1.300, the client logs each request in parts:

    api-request-shape  `shape`: the system prompt and the tools, by `shapeHash`
    api-request-blob   `message`: a message of the history, by `hash`
    api-request        `params`: the other settings; `base` and `keep`: an earlier request, and how many of its
                       messages are repeated; `tail`: the hashes of the messages after them; `cacheControl`: the places
                       of the cache breakpoints

A message that consists of logged entries has no line of its own: its hash is that of the canonical JSON of the message,
whose content is a list of blocks. The log contains neither `metadata`, nor the first block of the system prompt, which
names the client's version, nor whether a content was a list or a string. Source: logs of 2.1.332, compared with the
requests that it sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentobs.importers.claude_code.transcript_entries import OtherLine, as_dict
from agentobs.provider.registry import ANTHROPIC

BASES_MAX = 10_000
"""The maximum number of earlier requests that a request may refer to. Our choice."""


@dataclass(slots=True)
class LoggedRequests:
    """The parts of the requests of a session."""

    shapes: dict[str, dict[str, Any]] = field(default_factory=dict)
    messages: dict[str, Any] = field(default_factory=dict)
    requests: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, line: OtherLine) -> None:
        """Add a line."""
        value = line.value
        match line.kind:
            case "api-request-shape":
                self.shapes[str(value.get("shapeHash"))] = as_dict(value.get("shape"))
            case "api-request-blob":
                self.messages[str(value.get("hash"))] = value.get("message")
            case "api-request":
                self.requests[str(value.get("id"))] = value

    def add_messages(self, role: str, contents: Iterable[Sequence[Mapping[str, Any]]]) -> None:
        """Add messages that consist of logged entries."""
        if self.requests:
            for content in contents:
                message = {"role": role, "content": [dict(block) for block in content]}
                self.messages.setdefault(_hash(message), message)

    def request(self, reference: str | None) -> tuple[dict[str, Any], list[str]] | None:
        """Return the body of a request, and its beta features; None if the log does not contain all parts of it."""
        found = self.requests.get(reference or "")
        if found is None or (shape := self.shapes.get(str(found.get("shapeHash")))) is None:
            return None
        hashes = self._hashes(found)
        if hashes is None or any(each not in self.messages for each in hashes):
            return None
        settings = as_dict(found.get("params"))
        betas = settings.get("betas")
        body = {name: value for name, value in settings.items() if name != "betas"}
        body |= {**shape, "messages": [self.messages[each] for each in hashes]}
        body = _with_breakpoints(body, found.get("cacheControl"))
        return body, [str(each) for each in betas] if isinstance(betas, list) else []

    def _hashes(self, request: Mapping[str, Any]) -> list[str] | None:
        """Return the hashes of all messages of a request; None if an earlier request is missing."""
        tails: list[tuple[int, list[str]]] = []
        link: Mapping[str, Any] | None = request
        while link is not None:
            keep, tail = link.get("keep"), link.get("tail")
            if not isinstance(keep, int) or not isinstance(tail, list) or len(tails) > BASES_MAX:
                return None
            tails.append((keep, [str(each) for each in tail]))
            base = link.get("base")
            if base is None:
                break
            link = self.requests.get(str(base))
        if link is None:
            return None
        hashes: list[str] = []
        for keep, tail in reversed(tails):
            if not 0 <= keep <= len(hashes):
                return None
            hashes = [*hashes[:keep], *tail]
        return hashes


def _with_breakpoints(body: dict[str, Any], breakpoints: Any) -> dict[str, Any]:
    """Return a request with its cache breakpoints, except those whose place does not exist. The parts are shared with
    other requests, so they are copied where they change.
    """
    for each in breakpoints if isinstance(breakpoints, list) else ():
        path = as_dict(each).get("path")
        if isinstance(path, list) and path:
            try:
                body = _changed(body, path, {ANTHROPIC.breakpoint_key: each.get("value")})
            except (KeyError, IndexError, TypeError, ValueError):
                continue
    return body


def _changed(value: Any, path: Sequence[Any], added: Mapping[str, Any]) -> Any:
    """Return a value in which the object at a path has more keys."""
    if not path:
        return {**value, **added}
    step = path[0]
    copied = list(value) if isinstance(value, list) else dict(value)
    copied[step] = _changed(copied[step], path[1:], added)
    return copied


def _hash(message: Mapping[str, Any]) -> str:
    text = json.dumps(message, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
