"""Recorded traffic against the published prices: each part of each call, worked out here by itself."""

from __future__ import annotations

import datetime as dt
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import pytest

from agentobs.ledger import Context, resolve
from agentobs.recording.journal.home import Home
from agentobs.records.exchanges import Answer, Chunk, ModelExchange, Place, Question
from agentobs.store.duckdb.connection import connect
from agentobs.store.duckdb.ingest import ingest
from tests.ledger import published
from tests.store.making import a_home, end, record, session_id, start
from tests.wire import corpus
from tests.wire.corpus import Exchange

pytestmark = pytest.mark.xdist_group("wire-ledger")

DAY = dt.date(2026, 11, 2)
AT_NS = int(dt.datetime(2026, 11, 2, tzinfo=dt.UTC).timestamp()) * 1_000_000_000
"""When all of it is asked: a day on which the published prices of the table hold."""

UNKNOWN = {"claude-sonet-4-5", "invalid-model-name", "there-is-no-such-model"}
"""Models that requests name and nobody has a price for. None of them answered."""

COUNTED = {
    "batch": 4,
    "cache read": 47,
    "cache read beyond the input": 45,
    "cache written for 1 hour": 11,
    "cache written for 5 minutes": 41,
    "cache written for 5 minutes and 1 hour": 6,
    "compaction": 5,
    "advisor": 4,
    "fallback": 1,
    "iterations": 15,
    "thinking": 45,
    "web fetch": 8,
    "web search": 21,
}
"""How many answers of each class there are, so that none is lost."""


@functools.cache
def answers() -> list[tuple[Exchange, list[dict[str, Any]]]]:
    """Every exchange of which the answer counts tokens, with its messages."""
    names = [entry["file"] for entry in corpus.manifest()]
    found = []
    for exchange in (each for name in names for each in corpus.read(name).exchanges):
        messages = [exchange.message] if exchange.message else []
        if exchange.path.partition("?")[0].endswith("/results"):
            results = [json.loads(line)["result"] for line in exchange.text.splitlines()]
            messages = [result["message"] for result in results]
        if messages:
            found.append((exchange, messages))
    return [*found, *responses()]


def responses() -> Iterator[tuple[Exchange, list[dict[str, Any]]]]:
    """The answers of which only the body was kept; streams stand there without their framing."""
    manifest = json.loads((corpus.folder() / "manifest.json").read_bytes())["files"]
    for entry in sorted((e for e in manifest if e["kind"] == "response_only"), key=str):
        for line in (corpus.folder() / entry["file"]).read_bytes().splitlines():
            text = json.loads(line)["response"]["body_text"]
            is_stream = text.lstrip().startswith('{"type":"message_start"')
            if is_stream:
                text = "".join(f"event: e\ndata: {data}\n\n" for data in text.splitlines())
            kind = "text/event-stream" if is_stream else "application/json"
            exchange = Exchange("POST", "/v1/messages", {}, {}, 200, {"content-type": kind}, text)
            assert exchange.message is not None, entry["file"]
            yield exchange, [exchange.message]


def recorded(number: int, exchange: Exchange) -> ModelExchange:
    headers = dict(exchange.headers)
    if "content-type" not in headers:  # taken away by the source
        headers["content-type"] = "text/event-stream" if exchange.is_stream else "application/json"
    chunk = Chunk(exchange.text.encode(), 1)
    return ModelExchange(
        place=Place(session_id(1), interaction_id="of all"),
        attempt_id=f"{number:032x}",
        started_ns=AT_NS + number,
        headers_ns=1,
        ended_ns=2,
        question=Question("POST", exchange.path, {}, b'{"model":"asked","messages":[]}'),
        answer=Answer(exchange.status, headers, (chunk,), "complete"),
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """All of it, recorded and ingested."""
    home = a_home(tmp_path_factory.mktemp("ledger"))
    exchanges = [recorded(number, each) for number, (each, _) in enumerate(answers())]
    record(home, [start(1), *exchanges, end(1)])
    ingest(home)
    return home


@pytest.fixture
def store(home: Home) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(home, ingest=False) as connection:
        yield connection


CLASSES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "cache read": lambda u: u.get("cache_read_input_tokens"),
    "cache read beyond the input": lambda u: (
        (u.get("cache_read_input_tokens") or 0) > u["input_tokens"]
    ),
    "cache written for 5 minutes": lambda u: _written(u, "5m"),
    "cache written for 1 hour": lambda u: _written(u, "1h"),
    "cache written for 5 minutes and 1 hour": lambda u: _written(u, "5m") and _written(u, "1h"),
    "iterations": lambda u: u.get("iterations"),
    "compaction": lambda u: _has(u, "compaction"),
    "advisor": lambda u: _has(u, "advisor_message"),
    "fallback": lambda u: _has(u, "fallback_message"),
    "web search": lambda u: (u.get("server_tool_use") or {}).get("web_search_requests"),
    "web fetch": lambda u: (u.get("server_tool_use") or {}).get("web_fetch_requests"),
    "thinking": lambda u: (u.get("output_tokens_details") or {}).get("thinking_tokens"),
    "batch": lambda u: u.get("service_tier") == "batch",
}


def _written(usage: dict[str, Any], lifetime: str) -> Any:
    split = usage.get("cache_creation")
    if split is None:
        return lifetime == "5m" and usage.get("cache_creation_input_tokens")
    return split[f"ephemeral_{lifetime}_input_tokens"]


def _has(usage: dict[str, Any], kind: str) -> bool:
    return any(entry["type"] == kind for entry in usage.get("iterations") or [])


def test_every_class_of_calls_is_there() -> None:
    """The corpus has these many answers of each class, and more than 60 that are in some class."""
    usages = [message["usage"] for _, messages in answers() for message in messages]
    found = {name: sum(bool(test(usage)) for usage in usages) for name, test in CLASSES.items()}
    assert found == COUNTED
    assert sum(any(test(usage) for test in CLASSES.values()) for usage in usages) > 60


def test_each_part_of_every_call(store: duckdb.DuckDBPyConnection) -> None:
    """Six parts of every call are tokens times the published price, to the last digit, and sum to its cost."""
    names = ", ".join(f"{name}_usd" for name in published.PARTS)
    rows = store.execute(
        f"SELECT attempt_id, {names}, cost_usd, cost_status FROM costs ORDER BY attempt_id, iteration, cost_usd"
    ).fetchall()
    found: dict[str, list[tuple[Any, ...]]] = {}
    for attempt_id, *money in rows:
        found.setdefault(attempt_id, []).append(tuple(money))
    for number, (exchange, messages) in enumerate(answers()):
        expected = [row for message in messages for row in published.rows(message, DAY)]
        if len(messages) > 1:
            expected.sort(key=lambda row: sum(row.values()))
        told = found.pop(f"{number:032x}")
        assert [tuple(Fraction(value) for value in row[:6]) for row in told] == [
            tuple(row.values()) for row in expected
        ], exchange.text[:300]
        assert [Fraction(row[6]) for row in told] == [sum(row.values()) for row in expected]
        assert {row[7] for row in told} == {_status(message["usage"]) for message in messages}
    assert found == {}


def _status(usage: dict[str, Any]) -> str:
    """Two answers ran in a place without a price; one told no lifetime for all that it wrote to the cache."""
    split = usage.get("cache_creation")
    is_split = not split or sum(split.values()) == usage["cache_creation_input_tokens"]
    is_usual = usage.get("inference_geo") in (None, "global", "not_available")
    return "exact" if is_split and is_usual else "estimated"


def test_the_rest_reconcile_as_sums(store: duckdb.DuckDBPyConnection) -> None:
    """All calls together, and those of each model, cost what the published prices say."""
    expected: Counter[str] = Counter()
    for _, messages in answers():
        for message in messages:
            entries = message["usage"].get("iterations") or [{}]
            for entry, row in zip(entries, published.rows(message, DAY), strict=True):
                expected[entry.get("model") or message["model"]] += sum(row.values())  # type: ignore[assignment]
    rows = store.execute("SELECT model, sum(cost_usd) FROM costs GROUP BY model").fetchall()
    assert {model: Fraction(usd) for model, usd in rows} == dict(expected)


def test_models_without_a_price_are_listed() -> None:
    """Every model that a request or an answer names has a price, but for those that are listed here."""
    asked = {
        exchange.body["model"]
        for entry in corpus.manifest()
        for exchange in corpus.read(entry["file"]).exchanges
        if isinstance(exchange.body, dict) and isinstance(exchange.body.get("model"), str)
    }
    answered = {message["model"] for _, messages in answers() for message in messages}
    unknown = {
        model
        for model in asked | answered
        if resolve(Context(model))[-1].certainty == "unknown_model"
    }
    assert unknown == UNKNOWN
    assert not unknown & answered


def test_batch_results_count_once(tmp_path: Path) -> None:
    """However often the results of a batch are fetched, each custom_id counts once."""
    home = a_home(tmp_path)
    fetched = [each for each, _ in answers() if each.path.endswith("/results")]
    again = [recorded(number, each) for number, each in enumerate([*fetched, *fetched, *fetched])]
    record(home, [start(1), *again[:4], end(1)])
    ingest(home)
    record(home, [start(2), *again[4:], end(2)])
    with connect(home, ingest=False) as connection:
        counted = connection.execute("SELECT count(*), sum(cost_usd) FROM costs").fetchone()
        seen = connection.execute("SELECT count(*), count(DISTINCT batch_result_id) FROM usage")
        assert seen.fetchone() == (12, 4)
    messages = [message for each, found in answers() if each in fetched for message in found]
    expected = sum(
        sum(row.values()) for message in messages for row in published.rows(message, DAY)
    )
    assert counted is not None
    assert (counted[0], Fraction(counted[1])) == (4, expected)
