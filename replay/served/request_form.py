"""The form of a request in which it is compared: its conversation (the spine), and the rest of its body.

Clients send the same conversation in several ways: with cache breakpoints at other places, one message for each content
block or one for all, results in the order in which tools ended. In the form of this module, adjacent messages of one
role are one message, results have the order of their calls, and cache breakpoints and text that the client inserted are
left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentobs.provider.dialect import Block, Dialect, Turn
from agentobs.provider.registry import dialect_of, history
from agentobs.records.canonical_json import canonical, digest, parse
from agentobs.records.exchanges import Question
from replay.comparison.placeholders import bare
from replay.served.client_text import (
    IDENTITY_KEY,
    with_sorted_notifications,
    without_inserted_text,
    without_notifications,
)
from replay.served.substitutions import mapped

_MARK = re.compile("\ufe0e([\ufe00-\ufe0f]{3})")


def mark(number: int) -> str:
    """Return an invisible text of four variation selectors that encodes a number below 4096, see `mark_in`."""
    return "\ufe0e" + "".join(chr(0xFE00 + (number >> shift & 15)) for shift in (8, 4, 0))


def mark_in(text: str) -> int | None:
    """Return the number of the first mark in a text; None if it has no mark."""
    found = _MARK.search(text)
    if found is None:
        return None
    high, middle, low = (ord(each) - 0xFE00 for each in found[1])
    return high << 8 | middle << 4 | low


def without_marks(text: str) -> str:
    """Return a text without marks."""
    return _MARK.sub("", text) if "\ufe0e" in text else text


_MARK_BYTES = re.compile(
    rb"\xef\xb8\x8e(?:\xef\xb8[\x80-\x8f]){3}|\\ufe0e(?:\\ufe0[0-9a-f]){3}", re.IGNORECASE
)
_MARK_IN_JSON = re.compile(
    "\ufe0e[\ufe00-\ufe0f]{3}|\\\\ufe0e(?:\\\\ufe0[0-9a-f]){3}", re.IGNORECASE
)


def bytes_without_marks(body: bytes) -> bytes:
    """Return the JSON text of a request without marks."""
    return _MARK_BYTES.sub(b"", body)


def mark_spans(text: str) -> list[tuple[int, int]]:
    """Return where a text, or the JSON text of an input, contains marks."""
    return [found.span() for found in _MARK_IN_JSON.finditer(text)]


@dataclass(frozen=True, slots=True)
class RequestForm:
    """A request in the form in which it is compared."""

    method: str
    route: str
    """The path without the prefix of a gateway, and without a query."""
    body: Any = field(repr=False)
    """The body in the form of this module; the text of a body that is not JSON."""
    spine: tuple[str, ...]
    """The route, and a digest for each message of the conversation, without the contents of results; empty if there is
    no conversation."""
    anchor: tuple[str, ...] | None
    """The IDs of the calls in the last response that the conversation contains, or a digest of its text if it made no
    call; None if it contains no response: it is the first request of a lane."""
    tail: tuple[str, ...]
    """The part of the spine after that response."""
    has_tools: bool
    prompt: str = field(repr=False)
    """The text of the user in the first message."""
    results: frozenset[str]
    """The IDs of the calls that are answered after the last response."""
    errors: frozenset[str] = frozenset()
    """The paths of the results that are errors, such as `$.conversation[2].content[0]`."""

    @property
    def is_conversation(self) -> bool:
        """Whether the request carries a conversation."""
        return bool(self.spine)

    @property
    def is_anchored_by_id(self) -> bool:
        """Whether the last response is known by the IDs of its calls, which are unique."""
        return self.anchor is not None and not self.anchor[0].startswith("text ")

    def parts(self) -> list[str]:
        """Return the parts of the body except the conversation, each in canonical form, to count equal parts."""
        if not isinstance(self.body, dict):
            return []
        return [canonical([key, value]) for key, value in self.body.items() if key != CONVERSATION]


CONVERSATION = "conversation"
"""The key of the conversation in the form of a body, for any provider."""


def parsed(body: bytes) -> Any:
    """Return the JSON value of a request body, or its text if it is not JSON."""
    try:
        return parse(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")


def form_of(question: Question, value: Any, change: Callable[[str], str]) -> RequestForm:
    """Return the form of a request.

    Args:
        question: the request.
        value: its parsed body, see `parsed`.
        change: is applied to each text first; it replaces live values by recorded ones.
    """
    dialect = dialect_of(question.path)
    route = dialect.route(question.path).partition("?")[0]
    has_history = isinstance(value, dict) and isinstance(value.get(dialect.history_key), list)
    if not has_history:
        body = mapped(value, lambda text: without_inserted_text(without_marks(change(text))))
        return RequestForm(question.method, route, body, (), None, (), False, "", frozenset())
    messages = list(_messages(dialect, value, change))
    spoken = [message for message in messages if message.role != "other"]
    spine = (route, *map(_spine_part, spoken))
    last = max((at for at, each in enumerate(spoken) if each.role == "assistant"), default=None)
    tail = spoken if last is None else spoken[last + 1 :]
    return RequestForm(
        method=question.method,
        route=route,
        body=_body(dialect, value, messages, change),
        spine=spine,
        anchor=None if last is None else _anchor(spoken[last]),
        tail=spine[len(spine) - len(tail) :],
        has_tools=bool(dialect.tool_names(value)),
        prompt=next((each.text for each in spoken if each.role == "user"), ""),
        results=frozenset(str(b.id) for each in tail for b in each.blocks if b.kind == "result"),
        errors=frozenset(_error_paths(messages)),
    )


def _error_paths(messages: list[_Message]) -> Iterator[str]:
    for at, message in enumerate(messages):
        for number, block in enumerate(message.blocks):
            if block.kind == "result" and block.is_error:
                yield f"$.{CONVERSATION}[{at}].content[{number}]"


@dataclass(slots=True)
class _Message:
    role: str
    blocks: list[Block] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    """The block values in the form of a body."""

    @property
    def text(self) -> str:
        texts = (without_notifications(b.text).strip() for b in self.blocks if b.kind == "text")
        return "\n".join(filter(None, texts))


def _messages(
    dialect: Dialect, body: Mapping[str, Any], change: Callable[[str], str]
) -> Iterator[_Message]:
    """Yield the messages of a conversation. Adjacent messages of one role are merged."""
    current: _Message | None = None
    order: dict[str, int] = {}
    for entry in history(body):
        if not isinstance(entry, dict):
            continue
        entry = mapped(entry, lambda text: without_marks(change(text)))
        turn = dialect.turn(entry)
        if current is None or current.role != turn.role:
            if current is not None:
                yield _in_call_order(current, order)
            current = _Message(turn.role)
        for block in dialect.turn(_without_inserted(entry, turn.role)).blocks:
            if block.kind == "call":
                order[str(block.id)] = len(order)
            if block.kind == "text" and not block.text.strip():
                continue
            current.blocks.append(block)
            current.values.append(_value(dialect, block))
    if current is not None:
        yield _in_call_order(current, order)


def _without_inserted(entry: Any, role: str) -> Any:
    """Return a message without inserted text; a response is unchanged."""
    if role == "assistant":
        return entry
    return mapped(entry, lambda text: with_sorted_notifications(without_inserted_text(text)))


def _in_call_order(message: _Message, order: Mapping[str, int]) -> _Message:
    """Return a message with its results first, in the order of their calls."""
    places = list(range(len(message.blocks)))
    places.sort(key=lambda at: _place(message.blocks[at], order))
    message.blocks = [message.blocks[at] for at in places]
    message.values = [message.values[at] for at in places]
    return message


def _place(block: Block, order: Mapping[str, int]) -> tuple[bool, int]:
    is_result = block.kind == "result"
    return (not is_result, order.get(str(block.id), 0) if is_result else 0)


def _value(dialect: Dialect, block: Block) -> Any:
    """Return a block without cache breakpoints."""
    found = dialect.without_breakpoints([dict(block.raw)])
    return found[0] if isinstance(found, list) and found else found


def _body(
    dialect: Dialect,
    body: Mapping[str, Any],
    messages: list[_Message],
    change: Callable[[str], str],
) -> dict[str, Any]:
    """Return the form of a body: options, system prompt, tools and conversation."""
    system, tools = (dialect.prompt_keys.get(key, "") for key in _PROMPT)
    left_out = {IDENTITY_KEY, dialect.history_key, system, tools}

    def clean(text: str) -> str:
        return without_inserted_text(without_marks(change(text)))

    form = {key: mapped(value, change) for key, value in body.items() if key not in left_out}
    if (prompt := dialect.system(body)) is not None:
        texts = [clean(block.text).strip() for block in prompt.blocks]
        form["system"] = [text for text in texts if text]
    if body.get(tools):
        form["tools"] = mapped(dialect.without_breakpoints(body[tools]), change)
    form[CONVERSATION] = [{"role": each.role, "content": each.values} for each in messages]
    return form


_PROMPT: tuple[Any, Any] = ("system", "tools")


def _spine_part(message: _Message) -> str:
    """Return the digest of a message: its role, texts, calls, images and documents, and the IDs of its results."""
    calls = [
        [b.id, b.name, canonical(b.value)]
        for b in message.blocks
        if b.kind in ("call", "provider_call")
    ]
    results = sorted(str(b.id) for b in message.blocks if b.kind == "result")
    other = [canonical(b.raw) for b in message.blocks if b.kind == "other"]
    return _digest([message.role, bare(message.text), calls, results, other])


def anchor_of(response: Turn) -> tuple[str, ...]:
    """Return the anchor of a request whose last response is this one, see `RequestForm.anchor`."""
    return _anchor(_Message(response.role, list(response.blocks)))


def _anchor(message: _Message) -> tuple[str, ...]:
    calls = tuple(str(b.id) for b in message.blocks if b.kind in ("call", "provider_call"))
    return calls or ("text " + _digest(bare(message.text)),)


def _digest(value: Any) -> str:
    return digest(bare(canonical(value)).encode("utf-8", "surrogatepass"))
