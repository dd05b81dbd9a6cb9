"""Body deltas: which bytes are rebuilt, parsed and searched in generated conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentobs.recording.vault import body_deltas
from agentobs.recording.vault.body_deltas import KEPT_BODIES, Bodies, Body, rebuild
from agentobs.redaction import redact

SECRETS = (
    "sk-ant-api03-" + "Ab1_" * 8,
    "ghp_" + "x9Y8" * 10,
    "the-key-of-this-client",
    '"api_key": "correct-horse-battery"',
)
KNOWN = (b"the-key-of-this-client",)

words = st.one_of(
    st.text(max_size=40),
    st.sampled_from(SECRETS),
    st.tuples(st.text(max_size=9), st.sampled_from(SECRETS), st.text(max_size=9)).map("".join),
)
messages = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant"]),
        "content": words | st.lists(words.map(lambda w: {"type": "text", "text": w}), max_size=3),
    }
)


@st.composite
def conversations(draw: st.DrawFn) -> list[bytes]:
    """Bodies of a client that appends to its history, edits, truncates, compacts and repeats it."""
    history: list[Any] = [draw(messages)]
    bodies = []
    head: dict[str, Any] = {"max_tokens": 9}
    tail: dict[str, Any] = {"model": "claude", "system": draw(words)}
    for _ in range(draw(st.integers(1, 7))):
        match draw(
            st.sampled_from(["append", "append", "append", "edit", "cut", "repeat", "tail"])
        ):
            case "append":
                history = [*history, *draw(st.lists(messages, min_size=1, max_size=3))]
            case "edit":
                at = draw(st.integers(0, len(history) - 1))
                history = [*history[:at], draw(messages), *history[at + 1 :]]
            case "cut":
                history = history[: draw(st.integers(1, len(history)))]
            case "tail":
                tail = {**tail, "system": draw(words)}
            case _:
                pass
        compact = draw(st.booleans())
        text = json.dumps(
            {**head, "messages": history, **tail},
            separators=(",", ":") if compact else None,
            ensure_ascii=draw(st.booleans()),
        )
        bodies.append(text.encode("utf-8", "surrogatepass"))
    return bodies


def check(raw_bodies: list[bytes]) -> list[Body]:
    """Add bodies one after the other, and check every promise of `Bodies` for each of them."""
    bodies, understood = Bodies(), []
    written: dict[str, bytes] = {}
    for raw in raw_bodies:
        body = bodies.add(raw, KNOWN)
        base = written[body.base] if body.base else b""
        rebuilt = rebuild(base, body.prefix, body.suffix, body.insert)
        assert rebuilt == redact(raw, KNOWN)
        written[body.content_id] = rebuilt
        understood.append(body)
    return understood


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(conversations())
def test_every_body_is_rebuilt_and_parsed(bodies: list[bytes]) -> None:
    """Every body is rebuilt byte for byte, and has the same redactions as in a search of the complete body.

    The new messages and the other values equal those of a complete parse.
    """
    for raw, body in zip(bodies, check(bodies), strict=True):
        try:
            values = json.loads(raw.decode("utf-8"))
        except UnicodeDecodeError:
            assert body.message_count is None
            continue
        listed = values.pop("messages")
        assert body.message_count == len(listed)
        assert list(body.new_messages) == listed[body.shared_messages :]
        assert body.settings == values


@pytest.mark.soak
@settings(max_examples=20_000, deadline=None)
@given(conversations())
def test_many_bodies_are_rebuilt_and_parsed(bodies: list[bytes]) -> None:
    """Bodies of many more conversations are rebuilt, parsed and redacted correctly."""
    check(bodies)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=6))
def test_any_bytes_are_rebuilt(bodies: list[bytes]) -> None:
    """Bodies that are not JSON, not text, or empty are rebuilt as well."""
    for body in check(bodies):
        assert body.message_count is None or body.new_messages is not None


def test_only_new_messages_are_stored_and_parsed() -> None:
    """Over 300 turns, only the bytes of new messages are inserted, and only new messages are parsed."""
    bodies, history, inserted, parsed = Bodies(), [], 0, 0
    for turn in range(300):
        history += [
            {"role": "user", "content": f"question {turn} " + "x" * 500},
            {"role": "assistant", "content": f"answer {turn}"},
        ]
        raw = json.dumps({"messages": history, "model": "claude"}).encode()
        body = bodies.add(raw)
        inserted += len(body.insert)
        parsed += len(body.new_messages)
    assert parsed == len(history)
    assert inserted < len(raw) + 300 * 4


def test_a_moved_cache_breakpoint_stores_one_message_again() -> None:
    """If `cache_control` moves to the last message, only the message that had it before is stored a second time."""
    bodies, history = Bodies(), []
    for turn in range(20):
        history.append(
            {"role": "user", "content": [{"type": "text", "text": f"{turn} " + "y" * 400}]}
        )
        marked = json.loads(json.dumps(history))
        marked[-1]["content"][0]["cache_control"] = {"type": "ephemeral"}
        body = bodies.add(json.dumps({"messages": marked, "model": "claude"}).encode())
    assert body.shared_messages == 18
    assert len(body.insert) < 2 * 500


def test_a_secret_is_found_if_its_context_changes() -> None:
    """A secret is found even if the text that identifies it is before the bytes that are searched again, or changes in
    a later body.
    """
    secret = '\n"api_key": "correct-horse-battery"\n'
    for gap in range(4000, 4200):
        messages = [{"role": "user", "content": secret + "x" * gap + end} for end in ("a", "bc")]
        check([json.dumps({"messages": [message], "model": "m"}).encode() for message in messages])
    for name in ("api_key", "api-kee"):
        messages = [
            {"role": "user", "content": "x" * 70 + f'"{key}": "correct-horse-battery"' + "y" * 5000}
            for key in ("api_key", name)
        ]
        check([json.dumps({"messages": [message], "model": "m"}).encode() for message in messages])


def _distinct(number: int, size: int = 200) -> bytes:
    """Return a body of `size` bytes that shares no start with the body of another number."""
    return (b"%06d" % number * size)[:size]


def _bases(raw_bodies: list[bytes]) -> list[int | None]:
    """Add bodies; return for each the index of the earlier body that its difference refers to."""
    bodies, known = Bodies(), dict[str, int]()
    found: list[int | None] = []
    for at, raw in enumerate(raw_bodies):
        body = bodies.add(raw)
        found.append(known[body.base] if body.base else None)
        known[body.content_id] = at
    return found


@pytest.mark.parametrize(("others", "base"), [(KEPT_BODIES - 1, 0), (KEPT_BODIES, None)])
def test_a_maximum_number_of_bodies_is_kept(others: int, base: int | None) -> None:
    """A difference refers to one of the last bodies; an older one is forgotten."""
    first = _distinct(0)
    assert _bases([first, *(_distinct(n) for n in range(1, others + 1)), first])[-1] == base


@pytest.mark.parametrize(
    ("sizes", "base"),
    [([500, 500], 0), ([500, 501], None), ([1500], 0), ([1500, 1500], None)],
)
def test_a_maximum_size_of_bodies_is_kept(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], base: int | None
) -> None:
    """Bodies are forgotten if the total size exceeds the maximum; the last body is always kept."""
    monkeypatch.setattr(body_deltas, "KEPT_BYTES", 1000)
    raw_bodies = [_distinct(number, size) for number, size in enumerate(sizes)]
    assert _bases([*raw_bodies, raw_bodies[0]])[-1] == base
