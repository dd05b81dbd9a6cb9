"""Likeness: a keyed number tells whether the inputs of two calls are nearly the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentobs.provider.anthropic.streams import read_response
from agentobs.recording.facts.input_similarity import apart, similarity
from agentobs.records.exchanges import Answer, Chunk

KEY, OTHER = b"k" * 32, b"o" * 32
LIKE = 6
"""What the store takes for alike: so many bits at most."""

LETTER = (
    " ".join(f"Your refund of {n} francs was booked." for n in range(30))
    + " Expect it in three days."
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
PATH = "/home/user/work/project/cmd/entire/cli/strategy/manual_commit_hooks.go"


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
def test_what_is_alike(one: Any, other: Any, is_like: bool) -> None:
    """Like is what nearly is equivalent in every argument; one argument of three that differs is enough to part."""
    assert (apart(similarity(one, KEY), similarity(other, KEY)) <= LIKE) is is_like


def test_without_the_key_it_is_another_number() -> None:
    """The same input has an unrelated number in another home, and the same one in every process."""
    assert apart(similarity({"city": "Bern"}, KEY), similarity({"city": "Bern"}, OTHER)) > 16
    assert similarity({"city": "Bern"}, KEY) == -7378315752065449901


@given(JSON)
def test_any_input_has_a_number(value: Any) -> None:
    """Whatever a model says as an input has a number of 64 bits."""
    assert -(2**63) <= similarity(value, KEY) < 2**63


def test_a_long_input_is_looked_at_in_part() -> None:
    """A megabyte takes no longer than a page: its start and its end are looked at."""
    long = " ".join(map(str, range(200_000)))
    assert apart(similarity({"text": long}, KEY), similarity({"text": long + " and"}, KEY)) <= LIKE
    assert apart(similarity({"text": long}, KEY), similarity({"text": long[::-1]}, KEY)) > LIKE


@pytest.mark.parametrize("text", ['{"a": "b\\n\\"c\\" \\u00e9"}', '{"half": "of an inp', ""])
def test_a_streamed_input_is_put_together(text: str) -> None:
    """The pieces of a stream make the input that a whole answer has; what is no JSON counts as its text."""
    pieces = [json.dumps(text[at : at + 3]) for at in range(0, len(text), 3)]
    call = '{"type":"tool_use","id":"toolu_1","name":"read","input":{}}'
    events = [
        '{"type":"message_start","message":{"role":"assistant"}}',
        f'{{"type":"content_block_start","index":0,"content_block":{call}}}',
        *(
            '{"type":"content_block_delta","index":0,"delta":'
            f'{{"type":"input_json_delta","partial_json":{piece}}}}}'
            for piece in pieces
        ),
        '{"type":"content_block_stop","index":0}',
    ]
    body = "".join(f"event: a\ndata: {event}\n\n" for event in events).encode()
    headers = {"content-type": "text/event-stream"}
    facts = read_response(Answer(200, headers, (Chunk(body, 0),), "complete"))
    heard = facts.calls[0].input
    try:
        assert heard == json.loads(text)
    except ValueError:
        assert heard == (text or {})
