"""The ledger of a session: what its calls cost, and sums that are those of the command line to the last digit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from click.testing import CliRunner

from agentobs.cli import cli
from agentobs.recording.journal.home import Home
from agentobs.records.display import money
from dashboards.app.ledger_page import PAGE
from tests.dashboards.opening import Client, asked, opened
from tests.store.making import a_home, attempt, conversation, end, record, session_id, start

KNOWN, LONG, EMPTY = (session_id(number) for number in (1, 2, 3))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A session of calls with money in all classes and one without a price; a long one; one that asked nothing."""
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
    record(home, conversation(2, turns=PAGE + 30))
    record(home, [start(3), end(3)])
    return home


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[Client]:
    with opened(home) as made:
        yield made


def told(home: Home, by: str) -> list[dict[str, Any]]:
    """Return what `agentobs cost` says of the session."""
    command = ["--home", str(home.path), "cost", "--by", by, "--session", KNOWN, "--json"]
    answer = CliRunner().invoke(cli, command)
    assert answer.exit_code == 0, answer.output
    return [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]


def test_sums_are_those_of_the_command(home: Home, client: Client) -> None:
    """In all, by model and by agent; tokens in four classes, money, and how sure it is."""
    words = client.get(f"/sessions/{KNOWN}/ledger").words
    for by in ("session", "model", "agent"):
        rows = told(home, by)
        assert rows
        for row in rows:
            if row["cost_usd"] is not None:
                assert str(money(Decimal(str(row["cost_usd"])))) in words
            for name in ("input_tokens", "output_tokens", "cache_read_tokens"):
                assert f"{row[name]:,}" in words
    [whole] = told(home, "session")
    assert whole["cost_status"] == "lower_bound"
    assert f"≥ {money(Decimal(str(whole['cost_usd'])))} at least" in words


def test_each_call_stands_with_its_parts(home: Home, client: Client) -> None:
    """The money of each class of tokens, its certainty, the prices, and the way to its request; parts add up."""
    got = client.get(f"/sessions/{KNOWN}/ledger")
    calls = asked(
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


def test_a_call_without_a_price_is_never_free(client: Client) -> None:
    """It is said to be unknown, its model is named, and the sum says that it is left out."""
    words = client.get(f"/sessions/{KNOWN}/ledger").words
    assert "No known price for model-of-nobody: 1 call." in words
    assert "1 without a known price (not in the total)" in words
    assert "unknown unknown model" in words


def test_calls_come_in_pages(client: Client) -> None:
    """A long ledger has a bounded number of rows a page, and each call once."""
    seen: list[str] = []
    for page in (1, 2):
        got = client.get(f"/sessions/{LONG}/ledger?page={page}")
        seen += got.links("/attempts/")
    assert len(seen) == len(set(seen)) == PAGE + 30
    assert len(re.findall("<tr>", got.html)) < PAGE


def test_a_session_without_calls_has_an_empty_ledger(client: Client) -> None:
    """It says so instead of zeros."""
    words = client.get(f"/sessions/{EMPTY}/ledger").words
    assert "No billed calls in this session." in words
    assert "$0" not in words


def test_the_ledger_of_no_session_is_one_sentence(client: Client) -> None:
    """As on the page of the session."""
    got = client.get("/sessions/nothing-like-it/ledger")
    assert (got.status, "no session with that id or name" in got.words) == (404, True)
