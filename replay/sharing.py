"""What is done to a recording before others see it, and the last look at what is left.

Its placeholders are numbered in the order of the fixture, so that no tag tells of the home that it was recorded in;
ids of organisations are taken out of what the provider has sealed. Then it is looked through once more, deeper than
there is time for while an agent runs: all base64 is decoded, and tokens that are cut short count as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentobs.records.exchanges import (
    Answer,
    Chunk,
    Exchange,
    ModelExchange,
    Recording,
    Returned,
    ToolExchange,
    WorldExchange,
)
from agentobs.records.facts import DECLARED
from agentobs.redaction import FAILED, find, unpacked
from agentobs.redaction.kinds import KINDS
from replay.renaming import PLACEHOLDER, without_organisations

PLACES_SHOWN = 3
"""How many of the places of a kind are named."""


@dataclass(frozen=True, slots=True)
class Redacted:
    """The secrets of one kind that were taken out of a fixture, or are left in it."""

    kind: str
    count: int
    places: tuple[str, ...]
    """Where they stood: requests, answers and calls of the fixture, each once, in its order."""

    def text(self) -> str:
        """Return them in one line."""
        more = len(self.places) - PLACES_SHOWN
        shown = ", ".join(self.places[:PLACES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        return f"{self.kind} ({self.count}: {shown})"


def shareable(recording: Recording, tags: Sequence[str]) -> Recording:
    """Return a recording with its secrets numbered in the order of `tags`, and without ids of organisations."""
    numbers = {tag: str(number) for number, tag in enumerate(tags, 1)}

    def numbered(text: bytes) -> bytes:
        if b"[redacted:" not in text:
            return text
        return _PLACEHOLDER.sub(
            lambda m: b"[redacted:%b:%b]" % (m[1], numbers[m[2].decode()].encode()), text
        )

    ends = [recording.reason, recording.signature, recording.raised]
    told = [recording.name, recording.arguments, *ends]
    told = json.loads(numbered(without_organisations(_json(told))))
    recording = replace(
        recording,
        name=told[0],
        arguments=told[1],
        reason=told[2],
        signature=told[3],
        raised=told[4],
        result=_result(recording.result, numbered),
    )
    if not tags and not any(_is_sealed(each) for each in recording.exchanges):
        return recording
    exchanges = tuple(_mapped(each, numbered) for each in recording.exchanges)
    return replace(recording, exchanges=exchanges)


def _result(result: Returned | None, numbered: Callable[[bytes], bytes]) -> Returned | None:
    if result is None:
        return None
    text = numbered(without_organisations(_json(result.value)))
    return replace(result, value=json.loads(text.decode("utf-8", "surrogatepass")))


CONTEXT_MIN = 4
"""The number of characters around a secret that must match in a redacted text. Our choice."""


def without_secrets(recording: Recording) -> Recording:
    """Return a recording whose name, arguments, end and result hold none of the secrets that were redacted elsewhere.

    The key of a client is known only once it is used, after the name and the arguments were recorded, and a session
    that crashed has no end at which they are recorded again. A text that a request, the reason or the result repeats
    with a placeholder in it gets the same placeholder.
    """
    result = recording.result
    sources = [
        _parsed(each.question.body)
        for each in recording.exchanges
        if isinstance(each, ModelExchange) and b"[redacted:" in each.question.body
    ]
    masks = {
        text
        for source in [*sources, recording.reason, result.value if result else None]
        for text in _texts(source)
        if _PLACEHOLDER_TEXT.search(text)
        and len(_PLACEHOLDER_TEXT.sub("", text).strip()) >= CONTEXT_MIN
    }
    if not masks:
        return recording

    def masked(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: masked(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [masked(inner) for inner in value]
        return next((m for m in masks if _is_redacted(m, value)), value)

    signature, declared = recording.signature, masked(recording.reason)
    if signature == f"{DECLARED}{recording.reason}":
        signature = f"{DECLARED}{declared}"
    return replace(
        recording,
        name=masked(recording.name),
        arguments=masked(recording.arguments),
        reason=declared,
        signature=masked(signature),
        raised=masked(recording.raised),
        result=replace(result, value=masked(result.value)) if result else None,
    )


_PLACEHOLDER_TEXT = re.compile(r"\[redacted:[a-z0-9_]{1,40}(?::[0-9a-f]{1,16})?\]")


def _is_redacted(mask: str, value: Any) -> bool:
    """Return whether a text is the redacted form of another text."""
    if not isinstance(value, str) or "[redacted:" in value:
        return False
    at, parts = 0, _PLACEHOLDER_TEXT.split(mask)
    if not (value.startswith(parts[0]) and value.endswith(parts[-1])):
        return False
    for part in parts:
        found = value.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return len(value) >= sum(map(len, parts))


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


_PLACEHOLDER = re.compile(rb"\[redacted:([a-z0-9_]{1,40}):([0-9a-f]{1,16})\]")


def tags_in(data: bytes) -> list[str]:
    """Return the tags of the secrets in a fixture, in the order in which they appear."""
    return list(dict.fromkeys(match[2].decode() for match in _PLACEHOLDER.finditer(data)))


def _is_sealed(exchange: Exchange) -> bool:
    """Return whether an exchange may hold something that the provider has sealed."""
    if isinstance(exchange, ModelExchange):
        texts = [exchange.question.body, exchange.answer.body]
    elif isinstance(exchange, WorldExchange):
        texts = [_json(exchange.answer)]
    else:
        texts = [_json(exchange.question.input), _json(exchange.answer.content)]
    return any(
        b"signature" in text or b"encrypted_" in text or b"redacted_thinking" in text
        for text in texts
    )


def _mapped(exchange: Exchange, numbered: Callable[[bytes], bytes]) -> Exchange:
    def cleaned(text: bytes) -> bytes:
        return numbered(without_organisations(text))

    def value(given: Any) -> Any:
        return json.loads(cleaned(_json(given)).decode("utf-8", "surrogatepass"))

    match exchange:
        case ModelExchange(question=question, answer=answer):
            asked = replace(question, path=value(question.path), body=cleaned(question.body))
            return replace(exchange, question=asked, answer=_answer(answer, numbered))
        case ToolExchange(question=call, answer=result):
            called = replace(call, input=value(call.input))
            return replace(
                exchange, question=called, answer=replace(result, content=value(result.content))
            )
        case WorldExchange(question=told):
            told = replace(told, key=value(told.key), asked=value(told.asked))
            return replace(exchange, question=told, answer=value(exchange.answer))


def _answer(answer: Answer, numbered: Callable[[bytes], bytes]) -> Answer:
    """Return an answer whose chunks are cleaned: ids keep their length, and a placeholder lies in one chunk."""
    body, at, chunks = without_organisations(answer.body), 0, []
    for chunk in answer.chunks:
        chunks.append(Chunk(numbered(body[at : at + len(chunk.data)]), chunk.after_ns))
        at += len(chunk.data)
    return replace(answer, chunks=tuple(chunks))


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def taken_out(lines: Sequence[dict[str, Any]]) -> list[Redacted]:
    """Return what the lines of a fixture have placeholders for, by kind."""
    return _by_kind(
        (kind, place)
        for place, text in _placed(lines)
        for kind, _ in PLACEHOLDER.findall(text.decode("utf-8", "replace"))
    )


def left(lines: Sequence[dict[str, Any]]) -> list[Redacted]:
    """Return what in the lines of a fixture looks like a secret, or could not be looked through."""
    return _by_kind((kind, place) for place, text in _placed(lines) for kind in _kinds(text))


def _kinds(text: bytes) -> Iterator[str]:
    yield from (each.kind for each in find(text))
    if FAILED in text:
        yield "a text that could not be looked through"
    for run in _BASE64.finditer(text):
        inner = unpacked(run[0])
        yield from (f"{each.kind} in base64" for each in find(inner))
        yield from (f"{name} in base64" for name in _cut_short(inner))
    yield from _cut_short(text)


_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{24,65536}+={0,2}")
_TAIL = re.compile(
    rb"(?=[A-Za-z_-]{0,64}+[0-9])(?=[0-9a-z_-]{0,64}+[A-Z])(?=[0-9A-Z_-]{0,64}+[a-z])[A-Za-z0-9_-]{12,256}"
)
"""What goes on like a token: a digit and letters of both cases."""
_ANCHORS = [kind for kind in KINDS if len(kind.anchor) >= 4 and kind.anchor != b"key-"]


def _cut_short(text: bytes) -> Iterator[str]:
    """Yield the kinds of tokens that begin as they should and have not the length that they should have."""
    for kind in _ANCHORS:
        at = text.find(kind.anchor)
        while at != -1:
            end = at + len(kind.anchor)
            if not text[max(at - 1, 0) : at].isalnum() and _TAIL.match(text, end):
                yield kind.name
            at = text.find(kind.anchor, end)


def _placed(lines: Sequence[dict[str, Any]]) -> Iterator[tuple[str, bytes]]:
    """Yield each line of a fixture, and what it is called."""
    number = 0
    for line in lines:
        if "ask" in line:
            number, place = line["ask"], f"request {line['ask']}"
        elif "tool" in line:
            place = f"tool call {line['tool']}"
        elif "world" in line:
            place = f"{line['world']} {line['key']}"
        elif "agentobs_fixture" in line:
            place = "arguments"
        else:
            place = f"answer {number}"
        yield place, _json(line)


def _by_kind(found: Iterator[tuple[str, str]]) -> list[Redacted]:
    places: dict[str, list[str]] = {}
    for kind, place in found:
        places.setdefault(kind, []).append(place)
    return [
        Redacted(kind, len(where), tuple(dict.fromkeys(where))) for kind, where in places.items()
    ]
