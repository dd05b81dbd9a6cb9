"""Streams of the Messages API: reassembled messages contain what their events contain, one at a time."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentobs.provider.anthropic.streams import assemble, fold
from agentobs.provider.server_events import server_events

_HEADERS = {"content-type": "text/event-stream"}
_TEXTS = st.one_of(
    st.text(max_size=8), st.sampled_from(['"', "\\", "\n", "é", "\ud83d", "\ude00", "\u2028", ""])
)
_DELTAS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["text", "partial_json"]),
        _TEXTS,
        st.booleans(),
        st.sampled_from(["", " ", "    "]),
        st.sampled_from(["\n", "\r\n"]),
    ),
    max_size=12,
)


def _event(value: dict[str, Any], ascii_only: bool, padding: str, line_end: str) -> bytes:
    text = json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":"))
    lines = (f"event: {value['type']}", f"data: {text[:-1]}{padding}}}", "", "")
    return line_end.join(lines).encode("utf-8", "surrogatepass")


@given(_DELTAS)
def test_a_message_consists_of_the_deltas_of_its_stream_in_their_order(
    deltas: list[tuple[int, str, str, bool, str, str]],
) -> None:
    starts: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"role": "assistant", "content": []}},
        *(
            {
                "type": "content_block_start",
                "index": index,
                "content_block": {"type": "text", "text": ""},
            }
            for index in (0, 1)
        ),
    ]
    body = b"".join(_event(each, False, "", "\n") for each in starts)
    for index, name, text, ascii_only, padding, line_end in deltas:
        kind = "text_delta" if name == "text" else "input_json_delta"
        delta = {"type": kind, name: text}
        event: dict[str, Any] = {"type": "content_block_delta", "index": index, "delta": delta}
        body += _event(event, ascii_only, padding, line_end)
    expected: dict[str, Any] = {}
    for each in server_events(body):
        fold(expected, json.loads(each.data))
    assert assemble(_HEADERS, body) == expected


def test_the_text_of_an_unfinished_event_is_left_out() -> None:
    """A client has not seen it either."""
    start = {"type": "message_start", "message": {"role": "assistant", "content": []}}
    block = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    delta = {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "text_delta", "text": "a"},
    }
    body = b"".join(_event(each, False, "", "\n") for each in (start, block, delta, delta))
    for cut in (1, 2, 10):
        assert assemble(_HEADERS, body[:-cut])["content"] == [{"type": "text", "text": "a"}]
