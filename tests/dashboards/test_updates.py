"""Live updates: the server pushes each new state, and the pause between two checks is bounded."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dashboards.app import store_view
from dashboards.app.store_view import MOST_PAUSE_SECONDS, Reader
from tests.dashboards.live_app import Client, serving
from tests.store.recordings import a_home, conversation, record


def events(client: Client) -> Iterator[dict[str, Any]]:
    """Yield the events that the server sends to a page."""
    connection = http.client.HTTPConnection(client.host, client.port, timeout=60)
    connection.request("GET", "/updates", headers={"host": client.named, "cookie": client.cookie})
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    try:
        while line := answer.readline():
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))
    finally:
        connection.close()


@pytest.mark.slow
def test_new_data_is_pushed(tmp_path: Path) -> None:
    """A page that listens receives the revision and its age again and again, and a higher revision after new data."""
    home = a_home(tmp_path)
    record(home, conversation(1, turns=1))
    with serving(home) as client:
        stream, other = events(client), events(client)
        first = next(stream)
        assert first["age_ms"] >= 0
        assert next(other)["revision"] >= first["revision"]
        record(home, conversation(2, turns=1))
        for each in stream:
            if each["revision"] > first["revision"] and "Sessions 2" in client.get("/").words:
                break
        shown = each["revision"]
        assert next(each for each in other if each["revision"] >= shown)


def test_the_stream_needs_the_cookie(tmp_path: Path) -> None:
    """Without the cookie, and from a page of another site, nothing is sent."""
    home = a_home(tmp_path)
    with serving(home) as client:
        assert client.get("/updates", **{"sec-fetch-site": "cross-site"}).status == 403
        client.cookie = ""
        assert client.get("/updates").status == 403


def test_streams_end_with_the_server(tmp_path: Path) -> None:
    """An open stream does not keep the server from ending."""
    home = a_home(tmp_path)
    with serving(home) as client:
        stream = events(client)
        next(stream)
    assert list(stream) is not None


def test_a_slow_check_does_not_pause_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a check that took a minute, the next one begins within the maximum pause."""
    now = [10**12]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(store_view, "world", clock)

    def slow_check(reader: Reader) -> None:
        now[0] += 60 * 10**9

    monkeypatch.setattr(Reader, "_check", slow_check)
    with Reader(a_home(tmp_path)) as reader:
        reader.latest()
        with reader._condition:
            assert reader._condition.wait_for(lambda: reader._checks_finished > 0, 60)
            assert reader._pause_ns == MOST_PAUSE_SECONDS * 1e9
            assert not reader._request_check()
            now[0] += int(MOST_PAUSE_SECONDS * 1e9)
            assert reader._request_check()
