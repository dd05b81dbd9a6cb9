"""The page of an attempt shows its facts, and on demand the exact request and response."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentobs.recording.journal.home import Home
from agentobs.recording.vault.vault import Vault
from agentobs.records.exchanges import Answer, Failure
from tests.dashboards.live_app import (
    Client,
    attempts,
    only_session,
    query_rows,
    record_weather_agent,
    serving,
)
from tests.exporters.sample_session import sample_home
from tests.replay.agents import KEY
from tests.store.recordings import a_home, attempt, end, record, start

SECRET = "AKIAIOSFODNN7EXAMPLE"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return record_weather_agent(
        tmp_path_factory.mktemp("tried"), prompt=f"My key is {SECRET}, how is Oslo?"
    )


@pytest.fixture(scope="module")
def client(home: Home) -> Iterator[Client]:
    with serving(home) as made:
        yield made


@pytest.fixture(scope="module")
def session_with_retry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Client]]:
    """A session with a retry, costs in all classes of tokens, and tool calls."""
    home = sample_home(tmp_path_factory.mktemp("sample"))
    with serving(home) as made:
        yield home, made


def recorded_bodies(home: Home, attempt_id: str) -> tuple[bytes, bytes]:
    """Return the recorded bodies of the request and the response of an attempt."""
    [(segment, asked_id, answered_id)] = query_rows(
        home,
        f"SELECT segment_id, request_content, response_content FROM attempts WHERE attempt_id = '{attempt_id}'",
    )
    vault = Vault(home, segment)
    return vault.body(asked_id), vault.answer(answered_id).body


@pytest.mark.slow
def test_the_exact_bytes_can_be_downloaded(home: Home, client: Client) -> None:
    """The recorded bytes of request and response can be downloaded as files that no browser displays."""
    for attempt_id in attempts(home):
        for side, exact in zip(
            ("request", "response"), recorded_bodies(home, attempt_id), strict=True
        ):
            got = client.press(f"/attempts/{attempt_id}/raw", side=side)
            assert got.body == exact
            assert got.headers["content-type"] == "text/plain; charset=utf-8"
            assert got.headers["content-disposition"].startswith("attachment;")
            assert got.headers["x-content-type-options"] == "nosniff"


@pytest.mark.slow
def test_request_and_response_are_shown_as_recorded(home: Home, client: Client) -> None:
    """The page shows method, path, recorded headers, the body indented and raw, the stream, and the final message."""
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


@pytest.mark.slow
def test_redacted_secrets_are_counted_by_kind(home: Home, client: Client) -> None:
    """The page shows the number of redacted secrets by kind, but no secret."""
    first = attempts(home)[0]
    words = client.press(f"/attempts/{first}/exchange").words
    assert "Redacted: 1 × " in words
    assert SECRET not in words
    assert "secrets redacted from the request 1" in client.get(f"/attempts/{first}").words


@pytest.mark.slow
def test_facts_are_shown_without_a_click(session_with_retry: tuple[Home, Client]) -> None:
    """The page shows timing, status, provider IDs, tokens, cost by class with its certainty, tool calls, and other
    attempts.
    """
    home, client = session_with_retry
    [(failed, retried)] = query_rows(
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
    [(money,)] = query_rows(home, f"SELECT sum(cost_usd) FROM costs WHERE attempt_id = '{retried}'")
    assert f"${money:,.4f}" in words
    assert f"total ${money.normalize():,f}" in words
    assert "exact, price version" in words
    assert "HTTP 529" in client.get(f"/attempts/{failed}").words


@pytest.mark.slow
def test_an_attempt_links_to_adjacent_attempts_of_its_lane(home: Home, client: Client) -> None:
    """The page links to the session, to the previous and the next request, and to the changes of both requests."""
    first, second, third = attempts(home)
    got = client.get(f"/attempts/{second}")
    for path in (first, third, f"{second}/diff", f"{third}/diff"):
        assert f"/attempts/{path}" in got.links("/attempts/")
    assert got.links("/sessions/") == [f"/sessions/{only_session(home)}"]
    assert f"/attempts/{first}/diff" not in client.get(f"/attempts/{first}").links("/attempts/")


def test_an_unknown_attempt_gives_one_sentence(client: Client) -> None:
    """The page of an unknown attempt has one sentence with a suggestion and no traceback, whatever the URL contains."""
    for name in ("nothing", "%3Cscript%3E", "0" * 5000, "%F0%9F%92%A9"):
        got = client.get(f"/attempts/{name}")
        assert got.status == 404
        assert "no request with this ID" in got.words
        assert "<script>" not in got.html.replace("<script src", "")


def test_a_request_without_a_response_shows_the_reason(tmp_path: Path) -> None:
    """If the connection broke before anything arrived, the page states that there is no response, and why."""
    home = a_home(tmp_path)
    broken = Answer(None, {}, (), "error", Failure("ConnectError", "nobody listens <b>there</b>"))
    record(home, [start(1), replace(attempt(1, 1), answer=broken), end(1, failed=True)])
    with serving(home) as client:
        got = client.press(f"/attempts/{attempts(home)[0]}/exchange")
        assert "no response ConnectError" in got.words
        assert "ConnectError: nobody listens <b>there</b>" in got.words
        assert "<b>" not in got.html


def test_chunks_of_a_stream_are_listed_with_their_times(home: Home, client: Client) -> None:
    """Each chunk is listed with its size; the sizes add up to the size of the body."""
    first = attempts(home)[0]
    got = client.press(f"/attempts/{first}/exchange")
    [(chunks, size)] = query_rows(
        home, f"SELECT chunk_count, response_bytes FROM attempts WHERE attempt_id = '{first}'"
    )
    assert f"Chunks ({chunks:,})" in got.words
    table = got.html.partition("Chunks")[2]
    rows = re.findall(r'<tr>(?:<td class="num">.*?</td>)+</tr>', table)
    cells = [re.findall(r'<td class="num">([^<]*)</td>', row) for row in rows]
    assert [cell[0] for cell in cells] == [str(n + 1) for n in range(chunks)]
    assert sum(int(cell[1].replace(",", "")) for cell in cells) == size
