"""The ledger of a session shows the cost of its LLM requests; its totals equal those of the command line exactly."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from click.testing import CliRunner

from agentobs.cli import cli
from agentobs.recording.journal.home import Home
from agentobs.records.display import money
from agentobs.records.exchanges import Answer, Chunk
from dashboards.app.ledger_page import PAGE_SIZE
from tests.dashboards.live_app import Client, query_rows, serving
from tests.store.recordings import a_home, attempt, conversation, end, record, session_id, start

KNOWN, LONG, EMPTY, CUT = (session_id(number) for number in (1, 2, 3, 4))

STARTED = (
    b"event: message_start\n"
    b'data: {"type":"message_start","message":{"id":"msg_4_1","type":"message","role":"assistant",'
    b'"model":"claude-sonnet-5","content":[],"stop_reason":null,"usage":{"input_tokens":10,"output_tokens":1}}}\n\n'
)
"""The start of a response."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with a session that has costs in all classes and one unpriced call, a long session, an empty one, and one
    whose response was cut.
    """
    home = a_home(tmp_path_factory.mktemp("ledger"))
    written = {"ephemeral_5m_input_tokens": 500, "ephemeral_1h_input_tokens": 250}
    cached: dict[str, Any] = {
        "cache_read_input_tokens": 90_000,
        "cache_creation_input_tokens": 750,
        "cache_creation": written,
    }
    record(
        home,
        [
            start(1),
            attempt(1, 1, **cached),
            attempt(1, 2, model="claude-haiku-4-5", input_tokens=12_345),
            attempt(1, 3, model="model-of-nobody"),
            end(1),
        ],
    )
    record(home, conversation(2, turns=PAGE_SIZE + 30))
    record(home, [start(3), end(3)])
    cut = Answer(200, {"content-type": "text/event-stream"}, (Chunk(STARTED, 2_000_000),), "cut")
    record(home, [start(4), replace(attempt(4, 1), answer=cut), end(4)])
    return home


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[Client]:
    with serving(home) as made:
        yield made


def cost_output(home: Home, by: str) -> list[dict[str, Any]]:
    """Return the output of `agentobs cost` about the session."""
    command = ["--home", str(home.path), "cost", "--by", by, "--session", KNOWN, "--json"]
    answer = CliRunner().invoke(cli, command)
    assert answer.exit_code == 0, answer.output
    return [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]


@pytest.mark.slow
def test_totals_equal_those_of_the_command(home: Home, client: Client) -> None:
    """The total and the sums by model and agent equal those of the command: tokens by class, cost, and certainty."""
    words = client.get(f"/sessions/{KNOWN}/ledger").words
    for by in ("session", "model", "agent"):
        rows = cost_output(home, by)
        assert rows
        for row in rows:
            if row["cost_usd"] is not None:
                assert str(money(Decimal(str(row["cost_usd"])))) in words
            for name in ("input_tokens", "output_tokens", "cache_read_tokens"):
                assert f"{row[name]:,}" in words
    [whole] = cost_output(home, "session")
    assert whole["cost_status"] == "lower_bound"
    assert f"≥ {money(Decimal(str(whole['cost_usd'])))}" in words


@pytest.mark.slow
def test_output_of_cut_responses_is_a_lower_bound(client: Client) -> None:
    """The tile with the output tokens of a cut response shows a lower bound, and no markup."""
    got = client.get(f"/sessions/{CUT}/ledger")
    assert "≥ 1 tokens" in got.words
    assert "&lt;span" not in got.html


def test_each_request_is_listed_with_its_parts(home: Home, client: Client) -> None:
    """Each LLM request has a link, its certainty, its prices, and the costs of its classes of tokens, which add up."""
    got = client.get(f"/sessions/{KNOWN}/ledger")
    calls = query_rows(
        home,
        "SELECT attempt_id, input_usd, cache_read_usd, cache_write_5m_usd, cache_write_1h_usd, output_usd, cost_usd,"
        f" cost_status, price_version FROM costs WHERE session_id = '{KNOWN}' ORDER BY at_ns",
    )
    assert len({version for *_, version in calls if version}) == 1
    rows = got.html.partition('id="calls"')[2].split("<tr>")[2:]
    assert len(rows) == len(calls) == 3
    for row, (attempt_id, *parts, whole, status, version) in zip(rows, calls, strict=True):
        assert f'href="/attempts/{attempt_id}"' in row
        assert status.replace("_", " ") in row
        assert [str(money(part)) for part in parts if part and str(money(part)) not in row] == []
        if whole is not None:
            assert str(money(whole)) in row
            assert sum(part for part in parts) == whole
            assert got.words.count(f"Price version {version}.") == 1


def test_a_request_without_a_price_is_never_free(client: Client) -> None:
    """If a request has no price, its cost is unknown, its model is named, and the total is marked as incomplete."""
    words = client.get(f"/sessions/{KNOWN}/ledger").words
    assert "No known price for model-of-nobody: 1 LLM request." in words
    assert "1 without a known price (not in the total)" in words
    assert "unknown unknown model" in words


def test_requests_are_paged(client: Client) -> None:
    """A page of a long ledger has a bounded number of rows, and each LLM request is on one page."""
    seen: list[str] = []
    for page in (1, 2):
        got = client.get(f"/sessions/{LONG}/ledger?page={page}")
        seen += got.links("/attempts/")
    assert len(seen) == len(set(seen)) == PAGE_SIZE + 30
    assert len(re.findall("<tr>", got.html)) < PAGE_SIZE


def test_a_session_without_requests_has_an_empty_ledger(client: Client) -> None:
    """The ledger of a session without requests contains a message instead of zeros."""
    words = client.get(f"/sessions/{EMPTY}/ledger").words
    assert "No billed LLM requests in this session." in words
    assert "$0" not in words


def test_the_ledger_of_an_unknown_session_gives_one_sentence(client: Client) -> None:
    """The ledger of an unknown session has the same response as the page of an unknown session."""
    got = client.get("/sessions/nothing-like-it/ledger")
    assert (got.status, "no session with that ID or name" in got.words) == (404, True)
