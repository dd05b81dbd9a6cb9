"""Counts in usage objects: an invalid count becomes zero, and the row has a note."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from agentobs.provider.anthropic.streams import read_response
from agentobs.provider.anthropic.usage import usage_rows
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Question
from agentobs.records.usage import COUNT_MAX, Usage
from agentobs.store.duckdb.connection import connect
from tests.store.recordings import a_home, attempt, end, record, start

GOOD = {"input_tokens": 10, "output_tokens": 5}


def one(**changes: Any) -> Usage:
    [row] = usage_rows("claude-opus-5", {**GOOD, **changes}, "exact")
    return row


@pytest.mark.parametrize(
    ("count", "note"),
    [
        (-1, "negative"),
        (COUNT_MAX + 1, "huge"),
        (2**70, "huge"),
        (1.5, "no_integer"),
        (12.0, "no_integer"),
        (float("nan"), "no_integer"),
        ("12", "no_integer"),
        (True, "bool"),
        ([1], "no_integer"),
    ],
)
@pytest.mark.parametrize(
    "name",
    ["input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"],
)
def test_an_invalid_count_makes_an_estimate(name: str, count: Any, note: str) -> None:
    """An invalid count becomes zero, and makes the row an estimate with the name of the count in its note."""
    row = one(**{name: count})
    tokens = (row.input_tokens, row.output_tokens, row.cache_read_tokens, row.cache_write_5m_tokens)
    assert tokens == tuple(
        GOOD[key] if key in GOOD and key != name else 0 for key in (*GOOD, "", "")
    )
    assert (row.certainty, row.note) == ("estimated", f"{name}:{note}")


def test_a_missing_required_count_makes_an_estimate() -> None:
    """Input and output are always reported; if one of them is missing or null, the row is an estimate."""
    [row] = usage_rows("m", {"output_tokens": None}, "lower_bound")
    assert (row.input_tokens, row.output_tokens) == (0, 0)
    assert (row.certainty, row.note) == ("estimated", "input_tokens:missing/output_tokens:null")


def test_optional_counts_may_be_null() -> None:
    """Optional counts and objects may be null."""
    row = one(cache_read_input_tokens=None, cache_creation=None, server_tool_use=None, iterations=None,
              inference_geo="", output_tokens_details=None)  # fmt: skip
    assert (row.certainty, row.note, row.inference_geo) == ("exact", None, None)


def test_more_cache_reads_than_input_are_valid() -> None:
    """More cache reads than input are normal, not an error."""
    row = one(cache_read_input_tokens=100_000)
    assert (row.certainty, row.cache_read_tokens, row.prompt_tokens) == ("exact", 100_000, 100_010)


@pytest.mark.parametrize(
    ("split", "total", "written", "note"),
    [
        ({"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 4}, 7, (3, 4), None),
        (None, 7, (7, 0), None),
        ({}, 7, (7, 0), None),
        ({"ephemeral_5m_input_tokens": 3}, 7, (7, 0), "cache_creation:less_than_total"),
        ({"ephemeral_1h_input_tokens": 3}, 7, (0, 7), "cache_creation:less_than_total"),
        ({"ephemeral_5m_input_tokens": 9}, 7, (9, 0), "cache_creation:more_than_total"),
        ({"ephemeral_24h_input_tokens": 7}, 7, (7, 0), "ephemeral_24h_input_tokens:unknown"),
        ([], 7, (7, 0), "cache_creation:no_object"),
    ],
)
def test_the_lifetime_of_cache_writes(
    split: Any, total: int, written: tuple[int, int], note: str | None
) -> None:
    """Without a split, the lifetime is 5 minutes; a split that does not match the total makes an estimate."""
    row = one(cache_creation=split, cache_creation_input_tokens=total)
    assert (row.cache_write_5m_tokens, row.cache_write_1h_tokens) == written
    assert (row.note, row.certainty) == (note, "estimated" if note else "exact")


def test_an_unbilled_sum_is_no_estimate_because_the_first_counts_of_a_stream_outlive_the_last() -> (
    None
):
    """The last counts of a stream contain the total of all iterations; the split is that of the first iteration."""
    split = {"ephemeral_5m_input_tokens": 3, "ephemeral_1h_input_tokens": 0}
    iteration = {**GOOD, "type": "message", "cache_creation_input_tokens": 7}
    usage = {**iteration, "cache_creation": split, "iterations": [iteration, iteration]}
    total, *iterations = usage_rows("claude-opus-5-5", usage, "exact")
    assert (total.billed, total.certainty, total.note) == (False, "exact", None)
    assert total.cache_write_5m_tokens == 7
    assert [row.certainty for row in iterations] == ["exact", "exact"]
    [alone] = usage_rows("claude-opus-5-5", {**usage, "iterations": []}, "exact")
    assert alone.certainty == "estimated"


def test_unknown_counts_are_kept() -> None:
    """Unknown counts and kinds of server requests are kept under their names; texts never are."""
    row = one(
        server_tool_use={"web_search_requests": 2, "web_fetch_requests": 3, "image_requests": 4},
        cache_creation={"ephemeral_24h_input_tokens": 0},
        audio_tokens=6,
        output_tokens_details={"thinking_tokens": 1, "audio_tokens": 2},
        said="a secret",
        **{"no label, but a sentence": 7},
    )
    assert (row.web_search_requests, row.web_fetch_requests) == (2, 3)
    assert row.server_requests == {"image_requests": 4}
    assert row.other_counts == {
        "audio_tokens": 6,
        "output_tokens_details.audio_tokens": 2,
        "cache_creation.ephemeral_24h_input_tokens": 0,
    }
    assert row.has_unpriced_requests
    assert "secret" not in repr(row)
    assert "sentence" not in repr(row)


@pytest.mark.parametrize(
    ("changes", "certainty", "note"),
    [
        ({"audio_input_tokens": 5000}, "lower_bound", "audio_input_tokens:unpriced"),
        ({"audio_input_tokens": 0}, "exact", None),
        ({"server_tool_use": {"a sentence": 3}}, "lower_bound", "unnamed:unpriced"),
        ({"speed": {"x": 1}}, "estimated", "speed:no_text"),
        ({"inference_geo": ["us"]}, "estimated", "inference_geo:no_text"),
    ],
)
def test_counts_without_a_price_are_not_exact(
    changes: Any, certainty: str, note: str | None
) -> None:
    """Unknown tokens, unknown requests, and a context that is not a text may cost money."""
    row = one(**changes)
    assert (row.certainty, row.note) == (certainty, note)


def test_an_incomplete_batch_result_file(tmp_path: Path) -> None:
    """The counts of an incomplete result file are a lower bound, because the rest is unknown."""
    home = a_home(tmp_path)
    message = {"role": "assistant", "model": "claude-opus-5", "usage": GOOD}
    line = json.dumps({"custom_id": "a", "result": {"type": "succeeded", "message": message}})
    answer = Answer(
        200, {"content-type": "application/x-jsonl"}, (Chunk(line.encode() + b'\n{"cu', 1),), "cut"
    )
    question = Question("GET", "/v1/messages/batches/msgbatch_1/results", {}, b"")
    record(
        home,
        [start(1), dataclasses.replace(attempt(1, 1), question=question, answer=answer), end(1)],
    )
    with connect(home) as connection:
        assert connection.execute("SELECT certainty FROM usage").fetchall() == [("lower_bound",)]


def test_a_redeemed_credit_changes_the_bill() -> None:
    """After a redeemed credit, the billed tokens differ from the counted ones, so the row is an estimate."""
    assert one(fallback_credit={"status": {"type": "redeemed"}}).note == "fallback_credit:redeemed"
    assert one(fallback_credit={"status": {"type": "not_applied"}}).certainty == "exact"


def test_a_note_is_always_a_label() -> None:
    """If many counts are invalid, the note contains as many of their names as fit in a label."""
    names = {f"kind_{number}_requests": -1 for number in range(50)}
    row = one(server_tool_use={**names, "a sentence": -1})
    assert row.note is not None
    assert len(row.note) <= 128
    assert row.note.startswith("kind_0_requests:negative/kind_1_requests:negative")


def streamed(*events: dict[str, Any]) -> ModelExchange:
    """Return a response with these stream events, complete or not."""
    body = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events).encode()
    made = attempt(1, 1)
    whole = events[-1]["type"] == "message_stop"
    answer = Answer(200, {"content-type": "text/event-stream"}, (Chunk(body, 1),),
                    "complete" if whole else "cancelled")  # fmt: skip
    return ModelExchange(
        **{f: getattr(made, f) for f in made.__slots__ if f != "answer"}, answer=answer
    )


BEGUN = {
    "type": "message_start",
    "message": {"type": "message", "role": "assistant", "model": "claude-opus-5", "id": "msg_1", "content": [],
                "usage": {"input_tokens": 2050, "cache_read_input_tokens": 9, "output_tokens": 1}},
}  # fmt: skip
LAST = {"type": "message_delta", "delta": {}, "usage": {"input_tokens": 31772, "output_tokens": 80}}
ENDED = {**LAST, "delta": {"stop_reason": "end_turn"}}
SILENT = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}
STOP = {"type": "message_stop"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("events", "counts", "certainty"),
    [
        ((BEGUN, LAST, STOP), (31772, 9, 80), "exact"),
        ((BEGUN, LAST), (31772, 9, 80), "lower_bound"),
        ((BEGUN, ENDED), (31772, 9, 80), "exact"),
        ((BEGUN,), (2050, 9, 1), "lower_bound"),
        ((BEGUN, SILENT, STOP), (2050, 9, 1), "lower_bound"),
        ((BEGUN, STOP), (2050, 9, 1), "lower_bound"),
    ],
)
def test_the_last_counts_of_a_stream_are_used(
    tmp_path: Path, events: Any, counts: tuple[int, ...], certainty: str
) -> None:
    """The last counts replace the first ones.

    If they are missing, or the stream ended before its stop reason, the row is a lower bound.
    """
    home = a_home(tmp_path)
    record(home, [start(1), streamed(*events), end(1)])
    with connect(home) as connection:
        sql = "SELECT input_tokens, cache_read_tokens, output_tokens, cost_status FROM costs"
        assert connection.execute(sql).fetchall() == [(*counts, certainty)]


@pytest.mark.parametrize(
    ("events", "outcome"), [((BEGUN, LAST), "cancelled"), ((BEGUN, ENDED), "ok")]
)
def test_a_client_may_ignore_the_end_of_a_stream(events: Any, outcome: str) -> None:
    """After the reason to stop, a response is complete, even if the client does not read the event that ends it."""
    assert read_response(streamed(*events).answer).outcome == outcome
