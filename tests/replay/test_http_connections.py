"""Clients of `http.client` (urllib, requests and boto3 use it): recorded by `record_all`, and replayed."""

from __future__ import annotations

import gzip
import http.client
import io
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

import agentobs
from replay import Replayer
from replay.divergence.divergence import DivergenceError
from tests.marks import mark_all_but_first
from tests.provider_script import streamed, text
from tests.replay.raw_provider import (
    JSON,
    Play,
    drop,
    hang_up,
    no_response,
    overloaded,
    play,
    play_chunks,
)
from tests.replay.wire_recordings import NOWHERE, REQUEST, message_json, recorded, replayed

HEADERS = {"anthropic-version": "2023-06-01", "x-api-key": "sk-ant-a-made-up-key-0123456789"}
STREAMED = {**REQUEST, "stream": True}
BODY = json.dumps(REQUEST).encode()
MESSAGE = play_chunks(200, JSON, message_json(text("hi")))


def with_length(call: Any) -> None:
    body = message_json(text("hi"))
    call.send_headers(200, {**JSON, "content-length": str(len(body))}, framed=False)
    call.send(body)


def post_urllib(url: str) -> Any:
    request = urllib.request.Request(f"{url}/v1/messages", BODY, HEADERS)
    with urllib.request.urlopen(request) as response:
        return json.load(response), response.status, response.headers["content-type"]


def stream_urllib(url: str) -> Any:
    request = urllib.request.Request(f"{url}/v1/messages", json.dumps(STREAMED).encode(), HEADERS)
    with urllib.request.urlopen(request) as response:
        return list(response)


def post_requests(url: str) -> Any:
    return requests.post(f"{url}/v1/messages", json=REQUEST, headers=HEADERS).json()


def stream_requests(url: str) -> Any:
    body: dict[str, Any] = {"json": STREAMED, "headers": HEADERS, "stream": True}
    with requests.Session() as session, session.post(f"{url}/v1/messages", **body) as response:
        return list(response.iter_lines())


def stream_raw(url: str) -> Any:
    response = requests.post(f"{url}/v1/messages", json=STREAMED, headers=HEADERS, stream=True)
    parts = b"".join(response.raw.stream(7))
    return parts, response.raw.isclosed()


def stop_early(url: str) -> Any:
    body: dict[str, Any] = {"json": STREAMED, "headers": HEADERS, "stream": True}
    with requests.post(f"{url}/v1/messages", **body) as response:
        return next(response.iter_lines())


def post_parts(connection: http.client.HTTPConnection) -> Any:
    with connection.getresponse() as response:
        return (
            response.status,
            response.read1(5),
            response.read(3),
            response.peek(),
            response.read(),
        )


def connect(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(url.removeprefix("http://"), timeout=5)


def upload_file(url: str) -> Any:
    connection = connect(url)
    connection.request("POST", "/v1/messages", io.BytesIO(BODY), HEADERS)
    return post_parts(connection)


def upload_parts(url: str) -> Any:
    def parts() -> Iterator[bytes]:
        yield BODY[:20]
        yield BODY[20:]

    connection = connect(url)
    connection.request("POST", "/v1/messages", parts(), HEADERS)
    return post_parts(connection)


def without_request_header(url: str) -> Any:
    """Send a request that is known only by its route and shape."""
    return requests.post(f"{url}/gateway/v1/messages", json=REQUEST).json()


def time_out(url: str) -> Any:
    return requests.post(f"{url}/v1/messages", json=REQUEST, headers=HEADERS, timeout=0.05)


def packed(call: Any) -> None:
    call.send_headers(200, {**JSON, "content-encoding": "gzip"})
    data = gzip.compress(message_json(text("hi")))
    call.send(data[:20], data[20:])
    call.end()


HI = play(streamed(text("hi")))
CALLS: dict[str, tuple[Callable[[str], Any], Play]] = {
    "urllib": (post_urllib, MESSAGE),
    "urllib, known length": (post_urllib, with_length),
    "urllib stream": (stream_urllib, HI),
    "urllib error": (post_urllib, overloaded),
    "urllib cut off": (stream_urllib, drop),
    "urllib without response": (post_urllib, hang_up),
    "requests": (post_requests, MESSAGE),
    "requests, known length": (post_requests, with_length),
    "requests, gzip": (post_requests, packed),
    "requests stream": (stream_requests, HI),
    "urllib3 stream": (stream_raw, HI),
    "requests, stopped early": (stop_early, HI),
    "requests cut off": (stream_requests, drop),
    "requests timeout": (time_out, no_response),
    "file": (upload_file, MESSAGE),
    "chunked upload": (upload_parts, MESSAGE),
    "other headers": (without_request_header, MESSAGE),
}


@pytest.mark.parametrize("name", mark_all_but_first(CALLS, pytest.mark.slow, kept=4))
def test_a_connection_is_recorded_and_replayed(tmp_path: Path, name: str) -> None:
    """The program gets the same response, or the same exception of its library, live and in a replay."""
    call, response = CALLS[name]

    def run(url: str) -> Any:
        with agentobs.record_all(), agentobs.session("connection"):
            try:
                return call(url)
            except (OSError, http.client.HTTPException) as error:
                text = str(error) if "Timeout" not in type(error).__name__ else ""
                return type(error), text

    live, fixture, raw = recorded(tmp_path, [response], run)
    assert len(raw.requests) == len(fixture.requests) == 1
    assert fixture.body(1) == raw.requests[0].body
    assert replayed(fixture, run) == live


def test_a_connection_with_tls_is_replayed(tmp_path: Path) -> None:
    """A replay makes no TLS connection, although urllib3 connects before it sends the request."""

    def run(url: str) -> Any:
        with agentobs.record_all(), agentobs.session("tls"):
            return post_requests(url), post_urllib(url)

    live, fixture, _ = recorded(tmp_path, [MESSAGE] * 2, run)
    with Replayer(fixture) as replayed:
        assert replayed.run(run, "https://api.anthropic.com") == live


def test_other_requests_are_refused_in_a_replay(tmp_path: Path) -> None:
    """A request that is not a model call is sent through a real connection, which a replay refuses."""

    def run(url: str) -> Any:
        with agentobs.record_all(), agentobs.session("other"):
            if url == NOWHERE:
                urllib.request.urlopen(f"{url}/other", b"{}")
            return post_requests(url)

    _, fixture, _ = recorded(tmp_path, [MESSAGE], run)
    with pytest.raises(DivergenceError, match=r"127\.0\.0\.1:9"):
        replayed(fixture, run)
