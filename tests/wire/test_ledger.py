"""The costs of recorded traffic, compared with an independent calculation from the published prices."""

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
from tests.ledger import published_prices
from tests.store.recordings import a_home, end, record, session_id, start
from tests.wire import corpus
from tests.wire.corpus import Exchange

pytestmark = pytest.mark.xdist_group("wire-ledger")

DAY = dt.date(2026, 11, 2)
AT_NS = int(dt.datetime(2026, 11, 2, tzinfo=dt.UTC).timestamp()) * 1_000_000_000
"""The time of all requests: a day on which the published prices of the table are valid."""

UNKNOWN = {"claude-sonet-4-5", "invalid-model-name", "there-is-no-such-model"}
"""Models that occur in requests and have no price. No request for one of these models got a response."""

CLASS_COUNTS = {
    "batch": 4,
    "cache read": 47,
    "cache read larger than the input": 45,
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
"""The expected number of responses of each class, by which missing responses are detected."""


@functools.cache
def billed_exchanges() -> list[tuple[Exchange, list[dict[str, Any]]]]:
    """Return every exchange whose response reports usage, with its messages."""
    names = [entry["file"] for entry in corpus.manifest()]
    found = []
    for exchange in (each for name in names for each in corpus.read(name).exchanges):
        messages = [exchange.message] if exchange.message else []
        if exchange.path.partition("?")[0].endswith("/results"):
            results = [json.loads(line)["result"] for line in exchange.text.splitlines()]
            messages = [result["message"] for result in results]
        if messages:
            found.append((exchange, messages))
    return [*found, *response_only_exchanges()]


def response_only_exchanges() -> Iterator[tuple[Exchange, list[dict[str, Any]]]]:
    """Yield exchanges whose source kept only the response body.

    Streams are stored without their framing.
    """
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


def model_exchange(number: int, exchange: Exchange) -> ModelExchange:
    headers = dict(exchange.headers)
    if "content-type" not in headers:  # removed by the source
        headers["content-type"] = "text/event-stream" if exchange.is_stream else "application/json"
    chunk = Chunk(exchange.text.encode(), 1)
    return ModelExchange(
        place=Place(session_id(1), interaction_id="all"),
        attempt_id=f"{number:032x}",
        started_ns=AT_NS + number,
        headers_ns=1,
        ended_ns=2,
        question=Question("POST", exchange.path, {}, b'{"model":"requested","messages":[]}'),
        answer=Answer(exchange.status, headers, (chunk,), "complete"),
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with all exchanges, recorded and ingested."""
    home = a_home(tmp_path_factory.mktemp("ledger"))
    exchanges = [
        model_exchange(number, each) for number, (each, _) in enumerate(billed_exchanges())
    ]
    record(home, [start(1), *exchanges, end(1)])
    ingest(home)
    return home


@pytest.fixture
def store(home: Home) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(home, ingest=False) as connection:
        yield connection


CLASSES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "cache read": lambda u: u.get("cache_read_input_tokens"),
    "cache read larger than the input": lambda u: (
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


def test_every_class_of_calls_occurs() -> None:
    """The corpus has the expected number of responses of each class, and more than 60 responses that are in at least
    one class.
    """
    usages = [message["usage"] for _, messages in billed_exchanges() for message in messages]
    found = {name: sum(bool(test(usage)) for usage in usages) for name, test in CLASSES.items()}
    assert found == CLASS_COUNTS
    assert sum(any(test(usage) for test in CLASSES.values()) for usage in usages) > 60


@pytest.mark.slow
def test_every_part_of_each_cost_is_exact(store: duckdb.DuckDBPyConnection) -> None:
    """Each of the six parts of a call's cost is exactly tokens times published price, and the parts add up to the
    cost.
    """
    names = ", ".join(f"{name}_usd" for name in published_prices.PARTS)
    rows = store.execute(
        f"SELECT attempt_id, {names}, cost_usd, cost_status FROM costs ORDER BY attempt_id, iteration, cost_usd"
    ).fetchall()
    found: dict[str, list[tuple[Any, ...]]] = {}
    for attempt_id, *money in rows:
        found.setdefault(attempt_id, []).append(tuple(money))
    for number, (exchange, messages) in enumerate(billed_exchanges()):
        expected = [row for message in messages for row in published_prices.rows(message, DAY)]
        if len(messages) > 1:
            expected.sort(key=lambda row: sum(row.values()))
        stored = found.pop(f"{number:032x}")
        assert [tuple(Fraction(value) for value in row[:6]) for row in stored] == [
            tuple(row.values()) for row in expected
        ], exchange.text[:300]
        assert [Fraction(row[6]) for row in stored] == [sum(row.values()) for row in expected]
        assert {row[7] for row in stored} == {_status(message["usage"]) for message in messages}
    assert found == {}


def _status(usage: dict[str, Any]) -> str:
    """Return the expected certainty of a cost.

    Two responses were generated in a region without a price. One does not report the lifetime of all its cache writes.
    """
    split = usage.get("cache_creation")
    is_split = not split or sum(split.values()) == usage["cache_creation_input_tokens"]
    has_priced_region = usage.get("inference_geo") in (None, "global", "not_available")
    return "exact" if is_split and has_priced_region else "estimated"


@pytest.mark.slow
def test_the_costs_of_each_model_add_up(store: duckdb.DuckDBPyConnection) -> None:
    """The total cost of each model equals the sum from the published prices."""
    expected: Counter[str] = Counter()
    for _, messages in billed_exchanges():
        for message in messages:
            entries = message["usage"].get("iterations") or [{}]
            for entry, row in zip(entries, published_prices.rows(message, DAY), strict=True):
                expected[entry.get("model") or message["model"]] += sum(row.values())  # type: ignore[assignment]
    rows = store.execute("SELECT model, sum(cost_usd) FROM costs GROUP BY model").fetchall()
    assert {model: Fraction(usd) for model, usd in rows} == dict(expected)


def test_models_without_a_price_are_listed() -> None:
    """Each model in a request or a response has a price, except the models in `UNKNOWN`."""
    requested = {
        exchange.body["model"]
        for entry in corpus.manifest()
        for exchange in corpus.read(entry["file"]).exchanges
        if isinstance(exchange.body, dict) and isinstance(exchange.body.get("model"), str)
    }
    responding = {message["model"] for _, messages in billed_exchanges() for message in messages}
    unknown = {
        model
        for model in requested | responding
        if resolve(Context(model))[-1].certainty == "unknown_model"
    }
    assert unknown == UNKNOWN
    assert not unknown & responding


def test_batch_results_are_counted_once(tmp_path: Path) -> None:
    """Each result of a batch is counted once, even if the results of the batch are fetched several times."""
    home = a_home(tmp_path)
    fetched = [each for each, _ in billed_exchanges() if each.path.endswith("/results")]
    repeated = [
        model_exchange(number, each) for number, each in enumerate([*fetched, *fetched, *fetched])
    ]
    record(home, [start(1), *repeated[:4], end(1)])
    ingest(home)
    record(home, [start(2), *repeated[4:], end(2)])
    with connect(home, ingest=False) as connection:
        counted = connection.execute("SELECT count(*), sum(cost_usd) FROM costs").fetchone()
        rows = connection.execute("SELECT count(*), count(DISTINCT batch_result_id) FROM usage")
        assert rows.fetchone() == (12, 4)
    messages = [
        message for each, found in billed_exchanges() if each in fetched for message in found
    ]
    expected = sum(
        sum(row.values()) for message in messages for row in published_prices.rows(message, DAY)
    )
    assert counted is not None
    assert (counted[0], Fraction(counted[1])) == (4, expected)
