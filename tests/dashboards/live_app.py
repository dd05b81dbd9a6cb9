"""The live application for tests: a real server on loopback with its access guard, and an HTTP client."""

from __future__ import annotations

import html
import http.client
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

import agentobs
from agentobs.cli.inspection.diff import comparison_of
from agentobs.recording.journal.home import Home, existing_home
from agentobs.recording.options import Options as Recorded
from agentobs.recording.session import start_recorder
from agentobs.recording.wire.provider_server import ServedProvider, ServeOptions
from agentobs.store.duckdb.connection import connect
from dashboards.app import server
from dashboards.app.commands.command_jobs import Commands
from dashboards.app.server import DashboardOptions, bind, serve
from dashboards.app.store_view import Reader
from tests.provider_script import script
from tests.replay.agents import Agent, answers

FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Response:
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def html(self) -> str:
        """The HTML of the page, as the server sent it."""
        return self.body.decode("utf-8")

    @property
    def words(self) -> str:
        """The visible text: without tags, and with character references resolved."""
        bare = re.sub(r"<script.*?</script>|<[^>]*>", " ", self.html, flags=re.DOTALL)
        return re.sub(r"[ \n]+", " ", html.unescape(bare))

    @property
    def tags(self) -> list[tuple[str, dict[str, str | None]]]:
        """The elements with their attributes, as a browser would parse them."""
        reader = _Tags()
        reader.feed(self.html)
        return reader.found

    def links(self, start: str) -> list[str]:
        """Return the links that start with a prefix, in order."""
        return [
            html.unescape(each) for each in re.findall(r'href="([^"]*)"', self.html)
            if each.startswith(start)
        ]  # fmt: skip


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


class Client:
    """A client like a browser: it has the cookie, and sends forms as a page of the dashboard does."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        # Browsers resolve names under `localhost` themselves; other resolvers may not know these names.
        self.host, self.port, self.named = "127.0.0.1", int(parts.port or 0), parts.netloc
        self.origin = f"http://{parts.netloc}"
        self.cookie = ""
        opened = self._ask("GET", f"{parts.path}?{parts.query}", None, {})
        self.cookie = opened.headers["set-cookie"].partition(";")[0]

    def get(self, path: str, **headers: str) -> Response:
        return self._ask("GET", path, None, headers)

    def press(self, path: str, *, part: bool = True, **fields: Any) -> Response:
        """Press the button of a form, with or without the script."""
        headers = {"content-type": FORM, "origin": self.origin, "sec-fetch-site": "same-origin"}
        if part:
            headers["x-agentobs"] = "part"
        return self._ask("POST", path, urlencode(fields), headers)

    def post(self, path: str, headers: Mapping[str, str]) -> Response:
        return self._ask("POST", path, "", headers)

    def _ask(
        self, method: str, path: str, body: str | None, headers: Mapping[str, str]
    ) -> Response:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            always = {"host": self.named, **({"cookie": self.cookie} if self.cookie else {})}
            connection.request(method, path, body, {**always, **headers})
            answer = connection.getresponse()
            result = {name.lower(): value for name, value in answer.getheaders()}
            return Response(answer.status, result, answer.read())
        finally:
            connection.close()


class ReaderWithoutFindings(Reader):
    """A reader that does not search for failure signatures, which takes longer than opening the store."""

    def _complete_signatures(self) -> None:
        pass


@contextmanager
def serving(
    home: Home,
    commands: Commands | None = None,
    options: DashboardOptions | None = None,
    *,
    findings: bool = False,
) -> Iterator[Client]:
    """Serve a home, and yield a client that has signed in.

    With `findings`, the list and the fleet page show signatures and last errors, as soon as they are computed.
    """
    bound = bind(options or DashboardOptions(port=0))
    ready, stops = threading.Event(), []

    def started(stop: Any) -> None:
        stops.append(stop)
        ready.set()

    result = {"compare": comparison_of, "commands": commands, "started": started}
    thread = threading.Thread(target=serve, args=(bound, home), kwargs=result, daemon=True)
    with pytest.MonkeyPatch.context() as patch:
        if not findings:
            patch.setattr(server, "Reader", ReaderWithoutFindings)
        thread.start()
        assert ready.wait(30)
    try:
        yield Client(bound.address)
    finally:
        stops[0]()
        thread.join(30)


def record_weather_agent(path: Path, options: Recorded | None = None, **changes: Any) -> Home:
    """Record an agent with three turns and three tool calls that does not use agentobs.

    `changes["prompt"]` sets its prompt.
    """
    prompt = changes.pop("prompt", "How is the weather?")
    replies = changes.pop("answers", None) or answers()
    agentobs.stop_recorder()
    with ServedProvider(script(*replies), ServeOptions(match="order")) as provider:
        start_recorder(str(path), options)
        try:
            Agent(provider.url, **changes).answer(prompt)
        finally:
            agentobs.stop_recorder()
    return existing_home(path)


def only_session(home: Home) -> str:
    """Return the ID of the only session of a home."""
    return str(query_rows(home, "SELECT session_id FROM sessions")[0][0])


def attempts(home: Home) -> list[str]:
    """Return the IDs of all attempts of a home, in the order in which they were sent."""
    return [
        str(row[0])
        for row in query_rows(home, "SELECT attempt_id FROM attempts ORDER BY started_ns")
    ]


@cache
def query_rows(home: Home, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query. The result is cached, so it does not contain later recordings."""
    with connect(home, ingest=False) as store:
        return store.execute(sql).fetchall()
