"""Secrets that are split across several deltas of a stream."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentobs.provider.anthropic.streams import assemble
from agentobs.recording.vault import stream_secrets
from agentobs.recording.vault.content_lines import response_content
from agentobs.recording.vault.stream_secrets import find_in_answer, find_in_stream, writable_length
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question
from agentobs.redaction import CONTEXT, Redactor, apply, redact

KEY = "sk-ant-api03-" + "a1B2_" * 6
FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
STREAM = {"content-type": "text/event-stream"}


def line(event: dict[str, Any], **options: Any) -> bytes:
    text = json.dumps(event, **options)
    return f"event: {event['type']}\ndata: {text}\n\n".encode("utf-8", "surrogatepass")


def stream(kind: str, texts: list[str], **options: Any) -> list[bytes]:
    """Return the events of a response with one block in several deltas, followed by another word."""
    block = {"type": kind.removesuffix("_delta"), FIELDS[kind]: ""}
    start = {"type": "content_block_start", "index": 0, "content_block": block}
    deltas = [
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": kind, FIELDS[kind]: text},
        }
        for text in texts
    ]
    message_start: dict[str, Any] = {
        "type": "message_start",
        "message": {"role": "assistant", "content": []},
    }
    return [
        line(each, **options) for each in (message_start, start, *deltas, {"type": "message_stop"})
    ]


def joined_text(body: bytes, kind: str) -> str:
    block = assemble(STREAM, body)["content"][0]
    return str(block[FIELDS[kind]])


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("size", [1, 5, 7, 1000])
@pytest.mark.parametrize("options", [{}, {"separators": (",", ":")}, {"sort_keys": True}], ids=str)
def test_a_key_in_several_deltas_is_redacted(kind: str, size: int, options: dict[str, Any]) -> None:
    """A key in several deltas is replaced by its placeholder, however small the deltas are and however the JSON is
    formatted.
    """
    text = f'{{"q": "a\\"é\n{KEY} and {KEY}"}}'
    body = b"".join(stream(kind, cut(text, size), **options))
    findings = find_in_stream(body)
    written = apply(body, findings)
    assert joined_text(body, kind) == text
    assert joined_text(written, kind) == text.replace(KEY, "[redacted:anthropic_key]")
    assert find_in_stream(written) == []


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize("length", [1, 130, 700])
def test_a_long_stream_is_searched_in_pieces(
    size: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The boundaries of the pieces in which a long stream is searched hide no secret and add none."""
    texts = {True: f"before {KEY} after {KEY}", False: "harmless words " * 5}
    bodies = {
        is_secret: b"".join(stream("text_delta", cut(text, size), separators=(",", ":")))
        for is_secret, text in texts.items()
    }
    whole = {each: find_in_answer(body) for each, body in bodies.items()}
    monkeypatch.setattr(stream_secrets, "PIECE_BYTES", length)
    for is_secret, body in bodies.items():
        pieces = list(stream_secrets._pieces(body))
        assert b"".join(pieces) == body
        assert len(pieces) > 1 or length > 130
        assert all(each.find(b"\n\n", length) == len(each) - 2 for each in pieces[:-1])
        assert find_in_answer(body) == whole[is_secret]
        assert bool(whole[is_secret]) == is_secret


def test_a_credential_and_an_escaped_key_are_redacted() -> None:
    """The credential of the request, and a key with unnecessary escape sequences, are redacted even if they are split
    across deltas.
    """
    body = b"".join(stream("text_delta", ["my-own", "-secret-1", "23!"]))
    assert joined_text(apply(body, find_in_stream(body, [b"my-own-secret-123"])), "text_delta") == (
        "[redacted:credential]!"
    )
    hidden = b"".join(stream("text_delta", [KEY])).replace(b"sk-ant", b"\\u0073k\\u002dant")
    written = apply(hidden, find_in_stream(hidden))
    assert joined_text(written, "text_delta") == "[redacted:anthropic_key]"


def test_chunks_add_up_after_redaction() -> None:
    """After redaction, the size of each chunk is the size of its event, and the sizes add up to the body, which does
    not contain the secret.
    """
    events = stream("text_delta", [*cut("say " + KEY, 5), " ok"])
    chunks = tuple(Chunk(event, at) for at, event in enumerate(events))
    content = response_content(exchange(Answer(200, STREAM, chunks, "complete")), Redactor())
    body, at = content["text"].encode(), 0
    for size, after_ns in content["chunks"]:
        chunk = body[at : at + size]
        assert chunk.startswith(b"event:"), after_ns
        assert json.loads(chunk.split(b"data: ")[1])
        at += size
    assert at == len(body)
    assert joined_text(body, "text_delta") == "say [redacted:anthropic_key] ok"


def exchange(answer: Answer, *secrets: bytes) -> ModelExchange:
    question = Question("POST", "/v1/messages", {}, b"{}")
    return ModelExchange(Place("s"), "a" * 32, 1, 2, 3, question, answer, secrets=secrets)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(sorted(FIELDS)),
    st.lists(st.text(max_size=12) | st.just(KEY), max_size=5).map("".join),
    st.lists(st.integers(1, 9), min_size=1, max_size=9),
    st.booleans(),
)
def test_redaction_does_not_depend_on_the_deltas(
    kind: str, text: str, sizes: list[int], ascii_only: bool
) -> None:
    """Redacting a stream and joining its deltas gives the same text as joining the deltas and redacting the text."""
    deltas: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(deltas) % len(sizes)]
        deltas.append(text[at : at + size])
        at += size
    body = b"".join(stream(kind, deltas, ensure_ascii=ascii_only))
    expected = redact(text.encode()).decode()
    findings = find_in_stream(body)
    assert joined_text(apply(body, findings), kind) == expected
    chunks = tuple(Chunk(body[at : at + 11], at) for at in range(0, len(body), 11))
    content = response_content(exchange(Answer(200, STREAM, chunks, "complete")), Redactor())
    assert sum(size for size, _ in content["chunks"]) == len(content["text"].encode())


def test_a_long_stream_is_searched_in_linear_time() -> None:
    """A stream with a key and megabytes of other lines is searched only once."""
    long = [line({"type": "other", "text": "_delta " * 150_000}), b"x" * 1_000_000 + b"\r"]
    deltas = stream("text_delta", [*cut(KEY, 2), "y" * 1_000_000])
    before = time.thread_time_ns()
    assert find_in_stream(b"".join([*long, *deltas, *long]))
    assert time.thread_time_ns() - before < 1_000_000_000


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_can_be_searched(body: bytes) -> None:
    """Any bytes can be searched: if they are not a stream, nothing is found across deltas, and no exception is
    raised.
    """
    assert find_in_stream(body) == []


@pytest.mark.slow
@pytest.mark.parametrize("before", [0, 3_000, 9_000])
@pytest.mark.parametrize("size", [5, 40])
@pytest.mark.parametrize("kind", ["text_delta", "input_json_delta"])
def test_written_parts_of_a_stream_contain_no_part_of_a_key(
    before: int, size: int, kind: str
) -> None:
    """However much of a stream has arrived, its writable part ends after an event, and has the redactions of the
    complete stream.
    """
    text = f"{('plain words ' * 2000)[:before]} {KEY} {'more of it ' * 700}"
    body = b"".join(stream(kind, cut(text, size)))
    redacted_body = apply(body, find_in_answer(body))
    settled_bytes = 0
    ends = set(range(0, len(body), len(body) // 20))
    at = text.index(KEY)
    for arrived in (at, at + CONTEXT):  # the key arrives, and becomes writable
        near = len(b"".join(stream(kind, cut(text[:arrived], size))))
        ends |= set(range(near - 200, near + 1300, 100))
    for end in sorted(ends):
        raw = body[:end]
        found = find_in_answer(raw)
        settled_bytes = writable_length(raw, found)
        written = apply(raw[:settled_bytes], [each for each in found if each.end <= settled_bytes])
        assert redacted_body.startswith(written)
        assert written.endswith(b"\n\n") or not written
    assert settled_bytes > len(body) // 3


def test_the_last_4_kib_of_other_bodies_are_held_back() -> None:
    """The last 4 KiB of a body that is not a stream are not written yet, and a key that has not ended is held back
    completely.
    """
    raw = b"x " * 10_000 + KEY.encode() + b" y" * 2_038
    assert writable_length(raw, find_in_answer(raw)) == 20_000
    assert writable_length(raw[:20_000], []) == 20_000 - CONTEXT


@pytest.mark.parametrize(
    "start", ["event: content_block_delta\ndata: ", "\ndata: ", ": ping\ndata: "]
)
def test_no_part_of_an_event_is_written(start: str) -> None:
    """Nothing of a stream is written before its first event has ended, however long this event is."""
    assert writable_length((start + "x " * 10_000).encode(), []) == 0
