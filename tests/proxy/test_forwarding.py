"""Forwarding: the provider and the client see what they would see without a proxy, and the recording has the same."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

import agentobs
from agentobs.proxy.forwarding import WHOLE_BODY_BYTES
from agentobs.records.exchanges import ModelExchange
from tests.provider_script import message_events, refused, streamed, text
from tests.proxy.proxies import VERSION, proxied
from tests.replay.raw_provider import JSON, SSE, Call, play, play_chunks, raw_provider

KEY = "sk-ant-api03-a-key-that-no-file-may-contain-0123456789"
BODY: dict[str, Any] = {
    "model": "claude-sonnet-5",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "What is new?"}],
}


def post(url: str, body: bytes | None = None, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    content = json.dumps(BODY).encode() if body is None else body
    return httpx2.post(
        f"{url}/v1/messages", content=content, headers={**VERSION, **named}, timeout=60
    )


def test_bodies_and_headers_pass_unchanged(tmp_path: Path) -> None:
    """Neither the provider nor the client can tell the proxy from the other, but for headers of the connection."""
    odd = b'{ "model":"claude-sonnet-5",  "messages": [ {"role":"user","content":"\\u00e4 \xc3\xa4"} ] }'
    answer = play_chunks(200, {**JSON, "request-id": "req_1", "x-new": "a, b"}, b'{"type": ', b"1}")
    with raw_provider([answer]) as provider, proxied(provider.url, tmp_path) as recorded:
        response = post(
            recorded.url,
            odd,
            x_api_key=KEY,
            x_other="1",
            x_secret="2",
            connection="x-secret, keep-alive",
        )
        [exchange] = recorded.exchanges()
    [request] = provider.requests
    assert (request.path, request.body) == ("/v1/messages", odd)
    assert request.headers["x-api-key"] == KEY
    assert request.headers["x-other"] == "1"
    assert "x-secret" not in request.headers  # a header of the connection, by its own declaration
    assert request.headers["host"] == urlsplit(provider.url).netloc
    assert "transfer-encoding" not in request.headers
    assert (response.status_code, response.content) == (200, b'{"type": 1}')
    assert (response.headers["request-id"], response.headers["x-new"]) == ("req_1", "a, b")
    assert response.headers.get_list("transfer-encoding") == ["chunked"]
    assert exchange.question.body == odd
    assert exchange.answer.body == response.content


def test_no_key_is_written(tmp_path: Path) -> None:
    """Authorization goes to the provider only."""
    with (
        raw_provider([play(streamed(text("ok")))]) as provider,
        proxied(provider.url, tmp_path) as recorded,
    ):
        post(recorded.url, x_api_key=KEY, authorization=f"Bearer {KEY}")
        assert len(recorded.exchanges()) == 1
    assert provider.requests[0].headers["authorization"] == f"Bearer {KEY}"
    written = [each.read_bytes() for each in tmp_path.rglob("*") if each.is_file()]
    assert written
    assert not any(KEY.encode() in each for each in written)


def test_a_stream_arrives_chunk_by_chunk(tmp_path: Path) -> None:
    """Each chunk reaches the client before the provider sends the next one."""
    events, seen = message_events(text("one"), text("two")), threading.Semaphore(0)

    def one_by_one(call: Call) -> None:
        call.send_headers(200, SSE)
        for event in events:
            call.send(event)
            assert seen.acquire(timeout=20)
        call.end()

    with raw_provider([one_by_one]) as provider, proxied(provider.url, tmp_path) as recorded:
        arrived = []
        with httpx2.stream(
            "POST", f"{recorded.url}/v1/messages", json={**BODY, "stream": True}, headers=VERSION
        ) as response:
            for chunk in response.iter_raw():
                arrived.append(chunk)
                seen.release()
        [exchange] = recorded.exchanges()
    assert arrived == events
    assert [each.data for each in exchange.answer.chunks] == events
    assert exchange.answer.ending == "complete"


def test_encoded_bodies_keep_their_encoding(tmp_path: Path) -> None:
    """A gzip response reaches the client as it was sent, and is recorded decoded."""
    plain = json.dumps({"type": "message", "content": []}).encode()
    packed = gzip.compress(plain)
    answer = play_chunks(200, {**JSON, "content-encoding": "gzip"}, packed)
    with raw_provider([answer]) as provider, proxied(provider.url, tmp_path) as recorded:
        with httpx2.stream(
            "POST",
            f"{recorded.url}/v1/messages",
            json=BODY,
            headers={**VERSION, "accept-encoding": "gzip"},
        ) as response:
            raw = b"".join(response.iter_raw())
        [exchange] = recorded.exchanges()
    assert raw == packed
    assert provider.requests[0].headers["accept-encoding"] == "gzip"
    assert exchange.answer.body == plain


def test_an_encoded_request_is_forwarded_as_it_is_and_recorded_decoded(tmp_path: Path) -> None:
    """Otherwise it could neither be read nor redacted; its session is found in its body."""
    user = json.dumps({"session_id": "0f1d2c3b-aaaa-4bbb-8ccc-123456789012"})
    body = {**BODY, "metadata": {"user_id": user}}
    body["messages"] = [{"role": "user", "content": f"The key is {KEY}"}]
    data = gzip.compress(json.dumps(body).encode())
    with (
        raw_provider([play(streamed(text("ok")))]) as provider,
        proxied(provider.url, tmp_path) as recorded,
    ):
        post(recorded.url, data, content_encoding="gzip", content_type="application/json")
        [recording] = recorded.recordings()
    [request] = provider.requests
    assert (request.body, request.headers["content-encoding"]) == (data, "gzip")
    [exchange] = recording.exchanges
    assert isinstance(exchange, ModelExchange)
    [message] = json.loads(exchange.question.body)["messages"]
    assert message["content"].startswith("The key is [redacted:")
    with agentobs.connect(str(tmp_path)) as store:
        [(tags,)] = store.sql("SELECT tags FROM sessions").fetchall()
    assert "0f1d2c3b-aaaa-4bbb-8ccc-123456789012" in str(tags)


def test_errors_and_retries_are_those_of_the_provider(tmp_path: Path) -> None:
    """A 529 with its headers reaches the client; its retry is a second attempt of the same LLM request."""
    answers = [play(refused(529, retry_after="7")), play(streamed(text("ok")))]
    with raw_provider(answers) as provider, proxied(provider.url, tmp_path) as recorded:
        first, second = post(recorded.url), post(recorded.url)
        exchanges = recorded.exchanges()
    assert (first.status_code, first.headers["retry-after"]) == (529, "7")
    assert second.status_code == 200
    assert [each.answer.status for each in exchanges] == [529, 200]


def test_requests_that_go_to_no_model_pass_unrecorded(tmp_path: Path) -> None:
    """HEAD is answered by the provider, and opens no session."""
    with raw_provider([]) as provider, proxied(provider.url, tmp_path) as recorded:
        head = httpx2.head(f"{recorded.url}/")
        other = httpx2.get(f"{recorded.url}/api/hello?a=%2F&b=1")
        assert recorded.recordings() == []
        assert (recorded.proxy.counts.forwarded, recorded.proxy.counts.recorded) == (2, 0)
    assert head.status_code == 501  # of the provider's server, which knows no HEAD
    assert other.status_code == 418
    assert provider.requests[0].path == "/api/hello?a=%2F&b=1"


@pytest.mark.parametrize("path", ["", "/wrong", "/wrong/anthropic/v1/messages"])
def test_other_programs_cannot_use_the_proxy(tmp_path: Path, path: str) -> None:
    """Without the token, nothing is forwarded."""
    with raw_provider([]) as provider, proxied(provider.url, tmp_path) as recorded:
        root = recorded.proxy.url.rpartition("/")[0]
        response = httpx2.post(root + path, json=BODY, headers=VERSION, timeout=60)
        unknown = httpx2.post(f"{recorded.proxy.url}/other/v1/messages", json=BODY)
    assert (response.status_code, unknown.status_code) == (404, 404)
    assert response.json()["error"]["type"] == "not_found_error"
    assert provider.requests == []


def test_a_client_that_leaves_ends_the_request(tmp_path: Path) -> None:
    """The provider notices a client that disconnects during the response; the exchange is recorded as cancelled."""
    gone = threading.Event()

    def endless(call: Call) -> None:
        call.send_headers(200, SSE)
        call.send(message_events(text("one"))[0])
        call.wait_until_gone()
        gone.set()

    with raw_provider([endless]) as provider, proxied(provider.url, tmp_path) as recorded:
        with httpx2.stream(
            "POST", f"{recorded.url}/v1/messages", json={**BODY, "stream": True}, headers=VERSION
        ) as response:
            next(response.iter_raw())
        assert gone.wait(20)
        [exchange] = recorded.exchanges()
    assert exchange.answer.ending == "cancelled"
    assert b"message_start" in exchange.answer.body


def test_a_client_that_leaves_before_the_response_ends_the_request(tmp_path: Path) -> None:
    """The provider notices it although the proxy has not received any response yet."""
    gone = threading.Event()

    def silent(call: Call) -> None:
        call.wait_until_gone()
        gone.set()

    with raw_provider([silent]) as provider, proxied(provider.url, tmp_path) as recorded:
        address = urlsplit(recorded.url)
        body = json.dumps(BODY).encode()
        with socket.create_connection((address.hostname or "", address.port or 0)) as client:
            head = (
                f"POST {address.path}/v1/messages HTTP/1.1\r\nhost: {address.netloc}\r\n"
                f"anthropic-version: 2023-06-01\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            client.sendall(head.encode() + body)
            while not provider.requests:
                threading.Event().wait(0.01)
        assert gone.wait(20)
        [exchange] = recorded.exchanges()
    assert (exchange.answer.status, exchange.answer.ending) == (None, "cancelled")


def test_a_broken_response_breaks_the_connection(tmp_path: Path) -> None:
    """The client sees a connection that broke, not a complete response."""

    def broken(call: Call) -> None:
        call.send_headers(200, SSE)
        call.send(*message_events(text("one"))[:3])
        call.drop()

    with raw_provider([broken]) as provider, proxied(provider.url, tmp_path) as recorded:
        with pytest.raises(httpx2.RemoteProtocolError):
            post(recorded.url, json.dumps({**BODY, "stream": True}).encode())
        [exchange] = recorded.exchanges()
    assert exchange.answer.ending == "cut"


def test_a_provider_that_is_down_is_named(tmp_path: Path) -> None:
    """The client gets an error in the provider's form, which names the address."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with proxied(url, tmp_path) as recorded:
            response = post(recorded.url)
            [exchange] = recorded.exchanges()
            counts = recorded.proxy.counts
    assert response.status_code == 502
    assert url in response.json()["error"]["message"]
    assert url in counts.unreachable[url]
    assert exchange.answer.failure is not None


def test_large_uploads_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that is longer than the limit arrives whole, although the proxy never holds all of it."""
    monkeypatch.setattr("agentobs.proxy.forwarding.WHOLE_BODY_BYTES", 1000)
    assert WHOLE_BODY_BYTES > 32 * 1024 * 1024  # the provider's own limit
    body = json.dumps({**BODY, "system": "x" * 300_000}).encode()
    with (
        raw_provider([play(streamed(text("ok")))]) as provider,
        proxied(provider.url, tmp_path) as recorded,
    ):
        post(recorded.url, body)
        [exchange] = recorded.exchanges()
    assert provider.requests[0].body == body
    assert exchange.question.body == body


def test_a_connection_serves_several_requests(tmp_path: Path) -> None:
    """Connections stay open on both sides."""
    answers = [play(streamed(text("ok")))] * 3
    with (
        raw_provider(answers) as provider,
        proxied(provider.url, tmp_path) as recorded,
        httpx2.Client(headers=VERSION) as client,
    ):
        for _ in range(3):
            assert client.post(f"{recorded.url}/v1/messages", json=BODY).status_code == 200
        peers = {each._handler.client_address for each in provider.requests}
        assert len(recorded.exchanges()) == 3
    assert len(peers) == 1


@pytest.mark.slow
def test_many_streams_at_once(tmp_path: Path) -> None:
    """A hundred streams that are all open at the same time are recorded completely."""
    count, events = 100, message_events(text("one"))
    all_open = threading.Barrier(count)

    def held(call: Call) -> None:
        call.send_headers(200, SSE)
        call.send(*events[:2])
        all_open.wait(60)
        call.send(*events[2:])
        call.end()

    bodies: list[bytes] = []

    def fetch(url: str) -> None:
        bodies.append(post(url, json.dumps({**BODY, "stream": True}).encode()).content)

    with raw_provider([held] * count) as provider, proxied(provider.url, tmp_path) as recorded:
        threads = [threading.Thread(target=fetch, args=(recorded.url,)) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        exchanges = recorded.exchanges()
    assert bodies == [b"".join(events)] * count
    assert [each.answer.ending for each in exchanges] == ["complete"] * count


def test_requests_that_a_client_records_itself_are_not_recorded_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that uses agentobs marks its requests; the mark is not forwarded."""
    with (
        raw_provider([play(streamed(text("ok")))]) as provider,
        proxied(provider.url, tmp_path) as recorded,
    ):
        response = post(recorded.url, x_agentobs_recorded="1")
        assert recorded.recordings() == []
        assert recorded.proxy.counts.recorded_by_client == 1
    assert response.status_code == 200
    assert "x-agentobs-recorded" not in provider.requests[0].headers


def test_a_client_may_leave_out_the_version(tmp_path: Path) -> None:
    """The default base URL of some clients ends with the version, so they send only the rest of the path."""
    with (
        raw_provider([play(streamed(text("ok")))] * 2) as provider,
        proxied(provider.url, tmp_path, is_default=True) as recorded,
    ):
        httpx2.post(f"{recorded.url}/messages", json=BODY, headers=VERSION, timeout=60)
        httpx2.post(f"{recorded.url}/v1/messages", json=BODY, headers=VERSION, timeout=60)
        assert len(recorded.exchanges()) == 2
    assert [each.path for each in provider.requests] == ["/v1/messages"] * 2


@pytest.mark.parametrize("path", ["/v1/../../secret", "/v1/%2e%2e/secret"])
def test_a_path_stays_below_the_base_url(tmp_path: Path, path: str) -> None:
    """A path that leads out of the base URL of a gateway is refused."""
    with raw_provider([]) as provider, proxied(f"{provider.url}/tenant", tmp_path) as recorded:
        address = urlsplit(recorded.url)
        with socket.create_connection((address.hostname or "", address.port or 0)) as client:
            head = f"GET {address.path}{path} HTTP/1.1\r\nhost: {address.netloc}\r\n\r\n"
            client.sendall(head.encode())
            assert client.recv(1024).startswith(b"HTTP/1.1 400")
    assert provider.requests == []


def test_a_contradicting_length_is_not_forwarded(tmp_path: Path) -> None:
    """If a request has a length and chunks, the chunks count (RFC 9112, section 6.3)."""
    body = json.dumps(BODY).encode()
    with (
        raw_provider([play(streamed(text("ok")))]) as provider,
        proxied(provider.url, tmp_path) as recorded,
    ):
        address = urlsplit(recorded.url)
        head = (
            f"POST {address.path}/v1/messages HTTP/1.1\r\nhost: {address.netloc}\r\n"
            "content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        with socket.create_connection((address.hostname or "", address.port or 0)) as client:
            client.sendall(head.encode() + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
            assert client.recv(1024).startswith(b"HTTP/1.1 200")
    assert provider.requests[0].body == body


def test_the_password_of_a_base_url_is_not_shown(tmp_path: Path) -> None:
    """Neither to the client nor at the end."""
    with proxied("http://user:s3cret-password@127.0.0.1:9", tmp_path) as recorded:
        response = post(recorded.url)
        shown = list(recorded.proxy.counts.unreachable.values())
    assert "127.0.0.1:9" in response.text
    assert "s3cret" not in response.text
    assert "s3cret" not in shown[0]
