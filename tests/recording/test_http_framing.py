"""HTTP/1.1 on the wire: bodies and requests are read in any partition of their bytes."""

from __future__ import annotations

import pytest

from agentobs.recording.wire.http_framing import BodyReader, RequestReader, starts_request

CHUNKED = b"5\r\nhello\r\n6;name=value\r\n world\r\n0\r\ntrailer: x\r\n\r\n"
HEAD = b"POST /v1/messages?x=1 HTTP/1.1\r\nHost: provider.test:8080\r\nX-Api-Key: a:b\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_chunked_body_is_read(size: int) -> None:
    """The framing is removed, wherever the bytes are split."""
    reader = BodyReader(None, is_chunked=True)
    parts = [CHUNKED[at : at + size] for at in range(0, len(CHUNKED), size)]
    assert b"".join(map(reader.feed, parts)) == b"hello world"
    assert reader.is_complete
    assert not reader.needs_end


def test_bodies_with_and_without_a_length() -> None:
    """A body with a length is complete at that length; another one only at the end of the connection."""
    reader = BodyReader(4)
    assert (reader.feed(b"on"), reader.is_complete) == (b"on", False)
    assert (reader.feed(b"e! and more"), reader.is_complete) == (b"e!", True)
    assert BodyReader(0).is_complete
    assert BodyReader.of_request({"content-length": "9" * 5000}).is_complete
    endless = BodyReader(None)
    assert (endless.feed(b"x"), endless.is_complete, endless.needs_end) == (b"x", False, True)


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_request_is_read(size: int) -> None:
    """Method, path, host, headers and body of a request are read, wherever its bytes are split."""
    sent = HEAD + b"Content-Length: 2\r\n\r\n{}"
    reader = RequestReader()
    for at in range(0, len(sent), size):
        assert not reader.is_complete
        reader.feed(sent[at : at + size])
    assert reader.is_complete
    assert (reader.method, reader.path, reader.host) == (
        "POST",
        "/v1/messages?x=1",
        "provider.test",
    )
    assert reader.named_headers["x-api-key"] == "a:b"
    assert bytes(reader.body) == b"{}"
    assert reader.changed(reader.target, b"[1]") == HEAD + b"Content-Length: 3\r\n\r\n[1]"
    changed = reader.changed("/v1/other", b"")
    assert changed.startswith(b"POST /v1/other HTTP/1.1\r\n")


def test_a_request_through_a_proxy_has_a_path() -> None:
    """The target of a request to a proxy is a complete URL."""
    reader = RequestReader()
    reader.feed(b"GET http://provider.test/v1/models HTTP/1.1\r\nHost: provider.test\r\n\r\n")
    assert (reader.path, reader.is_complete) == ("/v1/models", True)


def test_only_request_lines_start_a_request() -> None:
    """Bodies and the parts of a chunked body are not mistaken for a request."""
    assert starts_request(HEAD)
    assert not starts_request(b'{"a": "POST / HTTP/1.1"}')
    assert not starts_request(b"1f\r\n")
    assert not starts_request(iter([HEAD]))
