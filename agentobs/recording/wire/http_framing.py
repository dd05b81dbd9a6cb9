"""HTTP/1.1 on the wire: reads the requests and bodies that a client of `http.client` sends and receives as bytes."""

from __future__ import annotations

from collections.abc import Mapping

from agentobs.records.whole_numbers import whole_number

HEAD_MAX = 1024 * 1024
"""The maximum size of a request's head, in bytes; larger data is not a request. Our choice."""
_DIGITS_MAX = 18
"""The maximum length of a content length; it then fits in 64 bits."""


class BodyReader:
    """Removes the framing of one body (RFC 9112, section 6)."""

    def __init__(self, length: int | None, *, is_chunked: bool = False) -> None:
        """Read a body of `length` bytes; if it is None and the body is not chunked, until the connection ends."""
        self.is_complete = length == 0 and not is_chunked
        self.needs_end = length is None and not is_chunked
        """Whether only the end of the connection ends the body."""
        self._left = 0 if length is None else length
        self._is_chunked = is_chunked
        self._buffer = bytearray()
        self._skips_line_end = False

    @classmethod
    def of_request(cls, headers: Mapping[str, str]) -> BodyReader:
        """Return a reader for the body of a request with these headers, whose names are in lower case."""
        if "chunked" in headers.get("transfer-encoding", "").lower():
            return cls(None, is_chunked=True)
        return cls(whole_number(headers.get("content-length"), _DIGITS_MAX) or 0)

    def feed(self, data: bytes) -> bytes:
        """Return the bytes of the body in the next bytes of the connection."""
        if self._is_chunked:
            self._buffer += data
            return b"".join(iter(self._next_part, b""))
        if self.needs_end:
            return data
        found = data[: self._left]
        self._left -= len(found)
        self.is_complete = self._left == 0
        return found

    def _next_part(self) -> bytes:
        """Return the next bytes of a chunk; nothing if more data is needed, or after the last chunk."""
        while not self.is_complete and self._buffer:
            if self._left:
                found = bytes(self._buffer[: self._left])
                del self._buffer[: len(found)]
                self._left -= len(found)
                self._skips_line_end = not self._left
                return found
            end = self._buffer.find(b"\n")
            if end < 0:
                return b""
            line = bytes(self._buffer[:end]).partition(b";")[0].strip()
            del self._buffer[: end + 1]
            if self._skips_line_end and not line:
                self._skips_line_end = False
                continue
            self._left = int(line, 16)
            self.is_complete = self._left == 0
        return b""


class RequestReader:
    """Reads one request."""

    def __init__(self) -> None:
        """Read from the first byte of the request."""
        self.sent = bytearray()
        """All bytes of the request, as they were sent."""
        self.method = self.target = ""
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()
        self.has_head = False
        self._body_reader = BodyReader(0)

    @property
    def is_complete(self) -> bool:
        """Whether the request was sent to its end."""
        return self.has_head and self._body_reader.is_complete

    @property
    def named_headers(self) -> dict[str, str]:
        """The headers, with names in lower case."""
        return {name.lower(): value for name, value in self.headers}

    @property
    def path(self) -> str:
        """The path with the query; the target of a request to a proxy is a complete URL."""
        if self.target.startswith("/"):
            return self.target
        _, _, rest = self.target.partition("://")
        _, slash, path = rest.partition("/")
        return slash + path or "/"

    @property
    def host(self) -> str:
        """The host name, without the port."""
        host = self.named_headers.get("host", "")
        name, _, port = host.rpartition(":")
        return name if name and port.isdigit() else host

    def feed(self, data: bytes) -> bytes:
        """Add the next bytes of the connection, and return the bytes of the body in them."""
        self.sent += data
        if self.has_head:
            return self._add(data)
        end = self.sent.find(b"\r\n\r\n")
        if end < 0:
            return b""
        lines = bytes(self.sent[:end]).decode("iso-8859-1").split("\r\n")
        self.method, self.target, *_ = [*lines[0].split(" "), "", ""]
        pairs = [line.partition(":") for line in lines[1:]]
        self.headers = [(name, value.strip()) for name, _, value in pairs]
        self.has_head = True
        self._body_reader = BodyReader.of_request(self.named_headers)
        return self._add(bytes(self.sent[end + 4 :]))

    def _add(self, data: bytes) -> bytes:
        found = self._body_reader.feed(data)
        self.body += found
        return found

    def changed(self, target: str, body: bytes) -> bytes:
        """Return the bytes of the request with another target and another body."""
        framing = ("content-length", "transfer-encoding")
        headers = [(n, v) for n, v in self.headers if n.lower() not in framing]
        headers.append(("Content-Length", str(len(body))))
        lines = [f"{self.method} {target} HTTP/1.1", *(f"{n}: {v}" for n, v in headers)]
        return "\r\n".join(lines).encode("iso-8859-1") + b"\r\n\r\n" + body


def starts_request(data: object) -> bool:
    """Return whether data that a client sends starts with a request line."""
    if not isinstance(data, bytes | bytearray | memoryview):
        return False
    line = bytes(data[:HEAD_MAX]).partition(b"\r\n")[0]
    return line.endswith((b" HTTP/1.1", b" HTTP/1.0")) and line.count(b" ") == 2
