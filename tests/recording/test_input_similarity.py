"""Input similarity: keyed hashes show whether the inputs of two calls are nearly equal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentobs.provider.anthropic.streams import read_response
from agentobs.recording.facts.input_similarity import similarity
from agentobs.records.exchanges import Answer, Chunk

KEY, OTHER = b"k" * 32, b"o" * 32
LIKE = 6
"""The store treats inputs as similar if their hashes differ in at most this many bits."""

LETTER = (
    " ".join(f"Your refund of {n} francs was booked." for n in range(30))
    + " Expect it in three days."
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
PATH = "/home/user/work/project/cmd/entire/cli/strategy/manual_commit_hooks.go"


def bit_distance(one: int, other: int) -> int:
    """Return the number of bits in which two hashes differ, as `bit_count(xor(one, other))` does in SQL."""
    return ((one ^ other) & (2**64 - 1)).bit_count()


@pytest.mark.parametrize(
    ("one", "other", "is_like"),
    [
        ({"city": "Bern"}, {"city": "Bern"}, True),
        ({}, {}, True),
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}, True),
        ({"n": 1}, {"n": 1.0}, True),
        ({"text": LETTER}, {"text": LETTER.replace("three days", "four days")}, True),
        ({"path": f"{PATH}-1"}, {"path": f"{PATH}-2"}, False),
        ({"text": LETTER, "to": "ann"}, {"text": LETTER, "to": "bob"}, False),
        ({"city": "Bern"}, {"city": " bern! "}, True),
        ({"city": "Bern"}, {"city": "Basel"}, False),
        ({"sign": "+"}, {"sign": "-"}, False),
        ({"page": 1}, {"page": 2}, False),
        ({}, {"page": 2}, False),
        ({"path": PATH, "offset": 1, "limit": 80}, {"path": PATH, "offset": 81, "limit": 80}, False),
        ({"path": PATH}, {"path": PATH.replace("hooks", "types")}, False),
        ({"path": PATH, "old": "a b c", "new": "d"}, {"path": PATH, "old": "x y", "new": "z"}, False),
    ],
)  # fmt: skip
def test_similar_inputs(one: Any, other: Any, is_like: bool) -> None:
    """Inputs are similar if all their arguments are nearly equal; if one of three arguments differs, the inputs are
    different.
    """
    assert (bit_distance(similarity(one, KEY), similarity(other, KEY)) <= LIKE) is is_like


def test_the_hash_depends_on_the_key() -> None:
    """Equal inputs have unrelated hashes in different homes, and equal hashes in all processes of one home."""
    assert bit_distance(similarity({"city": "Bern"}, KEY), similarity({"city": "Bern"}, OTHER)) > 16
    assert similarity({"city": "Bern"}, KEY) == -7378315752065449901


@pytest.mark.slow
@given(JSON)
def test_any_input_has_a_hash(value: Any) -> None:
    """Any input that a model may send has a hash of 64 bits."""
    assert -(2**63) <= similarity(value, KEY) < 2**63


def test_only_parts_of_a_long_input_are_used() -> None:
    """Only the start and the end of a long input are hashed, so a megabyte takes no longer than a page."""
    long = " ".join(map(str, range(200_000)))
    assert (
        bit_distance(similarity({"text": long}, KEY), similarity({"text": long + " and"}, KEY))
        <= LIKE
    )
    assert (
        bit_distance(similarity({"text": long}, KEY), similarity({"text": long[::-1]}, KEY)) > LIKE
    )


@pytest.mark.parametrize("text", ['{"a": "b\\n\\"c\\" \\u00e9"}', '{"half": "of an inp', ""])
def test_a_streamed_input_is_joined(text: str) -> None:
    """The deltas of a streamed input have the same hash as the input of a complete response; an input that is not JSON
    is hashed as text.
    """
    parts = [json.dumps(text[at : at + 3]) for at in range(0, len(text), 3)]
    call = '{"type":"tool_use","id":"toolu_1","name":"read","input":{}}'
    events = [
        '{"type":"message_start","message":{"role":"assistant"}}',
        f'{{"type":"content_block_start","index":0,"content_block":{call}}}',
        *(
            '{"type":"content_block_delta","index":0,"delta":'
            f'{{"type":"input_json_delta","partial_json":{part}}}}}'
            for part in parts
        ),
        '{"type":"content_block_stop","index":0}',
    ]
    body = "".join(f"event: a\ndata: {event}\n\n" for event in events).encode()
    headers = {"content-type": "text/event-stream"}
    facts = read_response(Answer(200, headers, (Chunk(body, 0),), "complete"))
    joined_input = facts.calls[0].input
    try:
        assert joined_input == json.loads(text)
    except ValueError:
        assert joined_input == (text or {})
