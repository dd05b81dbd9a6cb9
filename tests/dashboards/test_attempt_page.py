"""The page of an attempt: its facts, and on a click the exact request and response."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentobs.recording.journal.home import Home
from agentobs.recording.vault.vault import Vault
from agentobs.records.exchanges import Answer, Failure
from tests.dashboards.opening import Client, asked, attempts, only_session, opened, weather
from tests.exporters.making_rich import rich_home
from tests.replay.agents import KEY
from tests.store.making import a_home, attempt, end, record, start

SECRET = "AKIAIOSFODNN7EXAMPLE"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return weather(tmp_path_factory.mktemp("tried"), prompt=f"My key is {SECRET}, how is Oslo?")


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[Client]:
    with opened(home) as made:
        yield made


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Client]]:
    """A session with a retry, money in all classes, and calls."""
    home = rich_home(tmp_path_factory.mktemp("rich"))
    with opened(home) as made:
        yield home, made


def written(home: Home, attempt_id: str) -> tuple[bytes, bytes]:
    """Return both bodies of an attempt, from the vault."""
    [(segment, asked_id, answered_id)] = asked(
        home,
        f"SELECT segment_id, request_content, response_content FROM attempts WHERE attempt_id = '{attempt_id}'",
    )
    vault = Vault(home, segment)
    return vault.body(asked_id), vault.answer(answered_id).body


def test_the_exact_bytes_can_be_saved(home: Home, client: Client) -> None:
    """Request and response, byte by byte as they were recorded, as files that no browser shows."""
    for attempt_id in attempts(home):
        for side, exact in zip(("request", "response"), written(home, attempt_id), strict=True):
            got = client.press(f"/attempts/{attempt_id}/raw", side=side)
            assert got.body == exact
            assert got.headers["content-type"] == "text/plain; charset=utf-8"
            assert got.headers["content-disposition"].startswith("attachment;")
            assert got.headers["x-content-type-options"] == "nosniff"


def test_request_and_response_are_shown_as_they_were(home: Home, client: Client) -> None:
    """Method, path, kept headers, the body indented and byte by byte; the stream, and the message it adds up to."""
    second = attempts(home)[1]
    words = client.press(f"/attempts/{second}/exchange").words
    assert "POST /v1/messages" in words
    assert "anthropic-version" in words
    assert '"max_tokens": 64' in words
    assert '"max_tokens":64' in words
    assert "HTTP 200, complete" in words
    assert "event: content_block_start" in words
    assert "Calls clock" in words
    assert KEY not in words


def test_secrets_that_were_taken_out_are_counted_by_kind(home: Home, client: Client) -> None:
    """The page says that something was taken out and what; the secret itself is nowhere."""
    first = attempts(home)[0]
    words = client.press(f"/attempts/{first}/exchange").words
    assert "Redacted: 1 × " in words
    assert SECRET not in words
    assert "secrets redacted from the request 1" in client.get(f"/attempts/{first}").words


def test_facts_stand_on_the_page_without_a_click(rich: tuple[Home, Client]) -> None:
    """Timing, status, ids of the provider, tokens and money by class with how sure they are, tools, and tries."""
    home, client = rich
    [(failed, retried)] = asked(
        home,
        "SELECT min(attempt_id) FILTER (WHERE attempt = 1), min(attempt_id) FILTER (WHERE attempt = 2)"
        " FROM attempts WHERE llm_request_id IN (SELECT llm_request_id FROM attempts WHERE attempt = 2)",
    )
    got = client.get(f"/attempts/{retried}")
    words = got.words
    assert f"/attempts/{failed}" in got.links("/attempts/")
    assert "http_error" in words
    assert "overloaded_error" in words
    assert "cache write, 1 hour 20" in words
    assert "Tool calls" in words
    [(money,)] = asked(home, f"SELECT sum(cost_usd) FROM costs WHERE attempt_id = '{retried}'")
    assert f"${money:,.4f}" in words
    assert f"total ${money.normalize():,f}" in words
    assert "exact, price version" in words
    assert "HTTP 529" in client.get(f"/attempts/{failed}").words


def test_an_attempt_leads_to_its_neighbors_of_the_lane(home: Home, client: Client) -> None:
    """Back to the session, to the request before and to the next, and to what each changed."""
    first, second, third = attempts(home)
    got = client.get(f"/attempts/{second}")
    for path in (first, third, f"{second}/diff", f"{third}/diff"):
        assert f"/attempts/{path}" in got.links("/attempts/")
    assert got.links("/sessions/") == [f"/sessions/{only_session(home)}"]
    assert f"/attempts/{first}/diff" not in client.get(f"/attempts/{first}").links("/attempts/")


def test_an_attempt_that_is_not_there_is_one_sentence(client: Client) -> None:
    """With what to do; no traceback, whatever stands in the address."""
    for name in ("nothing", "%3Cscript%3E", "0" * 5000, "%F0%9F%92%A9"):
        got = client.get(f"/attempts/{name}")
        assert got.status == 404
        assert "no request with this ID" in got.words
        assert "<script>" not in got.html.replace("<script src", "")


def test_a_request_that_was_never_answered_says_so(tmp_path: Path) -> None:
    """A connection that broke before anything came has no response, and why stands there."""
    home = a_home(tmp_path)
    broken = Answer(None, {}, (), "error", Failure("ConnectError", "nobody listens <b>there</b>"))
    record(home, [start(1), replace(attempt(1, 1), answer=broken), end(1, failed=True)])
    with opened(home) as client:
        got = client.press(f"/attempts/{attempts(home)[0]}/exchange")
        assert "no response, no response" in got.words
        assert "ConnectError: nobody listens <b>there</b>" in got.words
        assert "<b>" not in got.html


def test_pieces_of_a_stream_are_listed_with_their_times(home: Home, client: Client) -> None:
    """As many as arrived, each with its bytes; together they are the body."""
    first = attempts(home)[0]
    got = client.press(f"/attempts/{first}/exchange")
    [(chunks, size)] = asked(
        home, f"SELECT chunk_count, response_bytes FROM attempts WHERE attempt_id = '{first}'"
    )
    assert f"Chunks ({chunks:,})" in got.words
    table = got.html.partition("Chunks")[2]
    rows = re.findall(r'<tr>(?:<td class="num">.*?</td>)+</tr>', table)
    cells = [re.findall(r'<td class="num">([^<]*)</td>', row) for row in rows]
    assert [cell[0] for cell in cells] == [str(n + 1) for n in range(chunks)]
    assert sum(int(cell[1].replace(",", "")) for cell in cells) == size
