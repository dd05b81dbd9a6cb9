"""A local replacement for the provider: answers requests over loopback HTTP from a recording.

Set ANTHROPIC_BASE_URL to use it with any client. A request is answered from the first unused exchange with the same
request; secrets may differ, as long as equal secrets stay equal within a request. With `match="order"`, each request is
answered from the next exchange, even if the requests differ. Another `Script` can match differently, such as
`replay.served.spine_script.SpineScript`. An unknown request gets status 410 with `x-should-retry:
false`, so that clients do not retry it; the error names the most similar recorded request and the first difference.
Responses can be sent in other chunks, at the recorded pace, and with injected faults.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal

from agentobs import world
from agentobs.errors import UsageError
from agentobs.provider.registry import (
    dialect_of,
    dialect_of_body,
    history,
    is_model_call,
    question_digest,
    recorded_request_headers,
)
from agentobs.records.canonical_json import canonical, parse
from agentobs.records.exchanges import (
    Answer,
    Chunk,
    ModelExchange,
    Question,
    Recording,
)
from agentobs.redaction import Redactor

Match = Literal["strict", "order"]

CONNECTION_HEADERS = frozenset(
    (
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
        "upgrade", "content-length", "content-encoding",
    )
)  # fmt: skip
"""The recorded headers that are not sent: those of a single connection (RFC 9110, section 7.6.1), and those of the
original encoding, because bodies are recorded decoded.
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """An injected failure for one request."""

    at: int
    """The number of the request, from 1."""
    status: int | None = None
    """Answer with this status instead of the recorded response, which is kept for the next request."""
    cut_after: int | None = None
    """Send only this many chunks of the response, then close the connection."""


_FAULT = re.compile(r"(?:status:(?P<status>[45]\d\d)|cut:(?P<cut>\d+))@(?P<at>\d+)\Z")


def parse_fault(text: str) -> Fault:
    """Return the fault that a text such as `status:529@2` or `cut:3@1` describes; the number after `@` is the request.

    Raises:
        UsageError: the text has neither form.
    """
    found = _FAULT.match(text)
    if not found:
        raise UsageError(
            f"{text!r} is not a fault",
            where="--fault",
            todo="Write status:CODE@REQUEST or cut:CHUNKS@REQUEST, such as status:529@2 or cut:3@1",
        )
    status, cut = found["status"], found["cut"]
    return Fault(int(found["at"]), int(status) if status else None, int(cut) if cut else None)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How to answer requests."""

    match: Match = "strict"
    """`strict`: answer from the first unused exchange with the same request; `order`: from the next exchange."""
    chunk_bytes: int | None = None
    """The chunk size in bytes. None: chunks as recorded; if they are unknown, streams are sent event by event."""
    pace: float = 0.0
    """Between chunks, 1.0 waits as long as recorded, 2.0 half as long, and 0.0 not at all."""
    faults: tuple[Fault, ...] = ()
    strict: bool = False
    """Reject conversations that the real provider would reject, such as a tool call without a result."""


class Script:
    """The exchanges of a recording, each used once; safe to share between threads."""

    request_headers: tuple[str, ...] = ()
    """The request headers that the script needs in addition to those that are recorded, in lower case."""

    def __init__(self, recording: Recording, match: Match = "strict") -> None:
        """Serve the model exchanges of `recording`."""
        self.exchanges = [e for e in recording.exchanges if isinstance(e, ModelExchange)]
        self.match = match
        self._unused = list(range(len(self.exchanges)))
        self._lock = threading.Lock()
        self._digests = [_digest(e.question) for e in self.exchanges] if match == "strict" else []
        self._redactor = Redactor(world.random_bytes(32))
        self.request_count = 0
        """The number of requests that were received."""
        self.missed = self.rejected = 0
        """The numbers of requests that were not recorded, and of requests that the real provider would have
        rejected.
        """

    def take(self, question: Question) -> ModelExchange | None:
        """Return the exchange to answer a request from, and mark it as used; None if there is none."""
        digest = _digest(self._clean(question)) if self.match == "strict" else ""
        with self._lock:
            for place, index in enumerate(self._unused):
                if self.match == "order" or self._digests[index] == digest:
                    del self._unused[place]
                    return self.exchanges[index]
            self.missed += 1
        return None

    def miss_text(self, question: Question) -> str:
        """Return the error message for a request that was not recorded, with the number of exchanges that are left."""
        unused = f"{self.unused} of {len(self.exchanges)} exchanges left"
        text = f"{question.method} {question.path} was not recorded ({unused})"
        if self.match == "strict" and (near := self.most_similar(question)) is not None:
            text += f"; request {near[0]} of the recording is the most similar; first difference at {near[1]}"
        return text

    def release(self, question: Question, exchange: ModelExchange) -> None:
        """Note that a response was cut off on purpose; the exchange stays used."""

    def note_sent(self, exchange: ModelExchange) -> None:
        """Note that the response of an exchange was sent completely; nothing depends on it here."""

    def note_rejected(self) -> None:
        """Count a request that the real provider would have rejected."""
        with self._lock:
            self.rejected += 1

    def verdict(self) -> str:
        """Return in one line how many exchanges were served, and which requests and exchanges had no counterpart."""
        total = len(self.exchanges)
        parts = [f"served {total - self.unused} of {total} exchanges"]
        parts += [f"requests not recorded: {self.missed}"] if self.missed else []
        parts += [f"invalid requests: {self.rejected}"] if self.rejected else []
        parts += [f"exchanges not used: {self.unused}"] if self.unused else []
        return "; ".join(parts)

    def counts(self) -> dict[str, Any]:
        """Return the verdict as a JSON value."""
        total = len(self.exchanges)
        return {
            "served": total - self.unused,
            "total": total,
            "missed": self.missed,
            "rejected": self.rejected,
            "unused": self.unused,
        }

    def most_similar(self, question: Question) -> tuple[int, str] | None:
        """Return the number of the unused exchange with the most similar request, and the path of the first difference;
        None if all exchanges were used.

        Among the requests with the same URL path, the most similar one is the one whose first difference occurs last.
        """
        live = _value(self._clean(question))
        with self._lock:
            unused = [(at, self.exchanges[at].question) for at in self._unused[:COMPARED_MAX]]
        called = _route(question)
        same_path = [each for each in unused if _route(each[1]) == called] or unused
        found = [(at, _first_difference(_value(recorded), live)) for at, recorded in same_path]
        if not found:
            return None
        at, (_, path) = max(found, key=lambda each: (each[1][0], -each[0]))
        return at + 1, path

    def _clean(self, question: Question) -> Question:
        """Return a request without secrets, as it would be recorded."""
        return replace(question, body=self._redactor.redact(question.body))

    def count(self) -> int:
        """Count a request and return its number, from 1."""
        with self._lock:
            self.request_count += 1
            return self.request_count

    @property
    def unused(self) -> int:
        """The number of exchanges that were not used yet."""
        return len(self._unused)


class ServedProvider:
    """A loopback HTTP server that answers from a script; a context manager."""

    def __init__(
        self,
        recording: Recording,
        options: ServeOptions | None = None,
        port: int = 0,
        script: Script | None = None,
    ) -> None:
        """Bind to 127.0.0.1 and `port`; 0 means any free port. `script` matches requests instead of `options.match`.

        Raises:
            UsageError: the port is in use or invalid.
        """
        self.options = options or ServeOptions()
        self.script = script or Script(recording, self.options.match)
        try:
            self._server = _Server(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "ports range from 0 to 65535"
            raise UsageError(
                f"port {port} cannot be used: {why}",
                todo="Choose another with --port, or 0",
            ) from error
        self._server.provider = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def load(self, recording: Recording) -> None:
        """Answer later requests from another recording."""
        self.script = Script(recording, self.options.match)

    def __enter__(self) -> ServedProvider:
        """Start the server."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()

    def serve_forever(self) -> None:
        """Serve in this thread until interrupted."""
        try:
            self._server.serve_forever(0.1)
        finally:
            self._server.server_close()


BODY_BYTES_MAX = 64 * 1024 * 1024
"""The longest body of a request, before and after decompression. Our choice: twice the limit of the provider."""
LINE_BYTES_MAX = 4096
"""The longest line between the chunks of a body. Our choice."""
TRAILERS_MAX = 100
"""The maximum number of trailer fields. Our choice: the limit that `http.client` has for header fields."""
_DECIMAL = re.compile(r"[0-9]{1,15}")
_HEXADECIMAL = re.compile(rb"[0-9a-fA-F]{1,15}")


class _BadBody(Exception):
    """The body of a request cannot be read; the message contains nothing of it."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    provider: ServedProvider

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a connection, such as a client that disconnects."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # A response consists of several small writes; without this, each write waits 40 ms for the client's acknowledgment.
    disable_nagle_algorithm = True
    server: _Server

    def _answer(self) -> None:
        if not self._is_local():
            self.close_connection = True
            self._send(_wrong_host(), None)
            return
        if self.command == "HEAD":  # a client tests whether the server can be reached
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        provider = self.server.provider
        try:
            question = self._question()
        except _BadBody as error:
            # The start of the next request is unknown.
            self.close_connection = True
            self._send(_error(error.status, None, str(error), None, self.path), None)
            return
        if self._is_never_recorded(question):
            self._send(_error(404, None, "this path is not recorded", None, question.path), None)
            return
        number = provider.script.count()
        fault = next((f for f in provider.options.faults if f.at == number), None)
        if fault and fault.status:
            self._send(_injected_error(fault.status, question.path), None)
            return
        refusal = _refusal(question) if provider.options.strict else None
        if refusal:
            provider.script.note_rejected()
            self._send(_error(400, None, refusal, None, question.path), None)
            return
        exchange = provider.script.take(question)
        if exchange is None:
            self._send(_not_recorded(question, provider.script), None)
            return
        answer = replace(
            exchange.answer,
            chunks=tuple(_rechunked(exchange.answer, question.path, provider.options)),
        )
        if fault and fault.cut_after is not None:
            provider.script.release(question, exchange)
        self._send(answer, fault.cut_after if fault else None)
        provider.script.note_sent(exchange)

    do_GET = do_HEAD = do_POST = do_DELETE = do_PUT = do_PATCH = _answer  # http.server calls these

    def _is_never_recorded(self, question: Question) -> bool:
        """Return whether a request only reads a path that is not recorded, such as the inference profiles of Bedrock.

        A recording proxy forwards such requests, and clients work without their answers.
        """
        sent = {name.lower(): value for name, value in self.headers.items()}
        if question.method != "GET" or is_model_call(question.path.partition("?")[0], sent):
            return False
        known = (each.question for each in self.server.provider.script.exchanges)
        return all(_route(each) != _route(question) for each in known)

    def _is_local(self) -> bool:
        """Return whether the Host header names this machine.

        A web page can let its own host name resolve to 127.0.0.1 (DNS rebinding), but the header still contains that
        name.
        """
        port = self.server.server_address[1]
        names = {f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")}
        hosts = [host.lower() for host in self.headers.get_all("host", [])]
        origins = [origin.lower() for origin in self.headers.get_all("origin", [])]
        named = hosts + [origin.removeprefix("http://") for origin in origins]
        return len(hosts) == 1 and names.issuperset(named)

    def _question(self) -> Question:
        body = self._read_body()
        sent = {name.lower(): value for name, value in self.headers.items()}
        needed = self.server.provider.script.request_headers
        headers = {name: sent[name] for name in needed if name in sent}
        return Question(self.command, self.path, headers | recorded_request_headers(sent), body)

    def _read_body(self) -> bytes:
        """Return the body of the request, decompressed if it is sent with gzip.

        Raises:
            _BadBody: its framing or its compression is not valid, or it is too long.
        """
        body = self._read_raw_body()
        if self.headers.get("content-encoding", "").strip().lower() == "gzip":
            return _decompressed(body)
        return body

    def _read_raw_body(self) -> bytes:
        lengths = set(self.headers.get_all("content-length", []))
        codings = self.headers.get_all("transfer-encoding", [])
        if codings:
            # A request with both could be read in two ways (RFC 9112, section 6.3).
            if lengths or [each.strip().lower() for each in codings] != ["chunked"]:
                raise _BadBody("the framing of the body is not valid")
            return self._read_chunks()
        if not lengths:
            return b""
        length = lengths.pop().strip()
        if lengths or _DECIMAL.fullmatch(length) is None:
            raise _BadBody("content-length is not valid")
        return self._read_exactly(int(length))

    def _read_chunks(self) -> bytes:
        body = bytearray()
        while size := self._chunk_size():
            body += self._read_exactly(size, len(body))
            if self.rfile.readline(3) not in (b"\r\n", b"\n"):
                raise _BadBody("a chunk of the body is not valid")
        for _ in range(TRAILERS_MAX):
            if self.rfile.readline(LINE_BYTES_MAX) in (b"\r\n", b"\n", b""):
                return bytes(body)
        raise _BadBody("the body has too many trailers")

    def _chunk_size(self) -> int:
        size = self.rfile.readline(LINE_BYTES_MAX).partition(b";")[0].strip()
        if _HEXADECIMAL.fullmatch(size) is None:
            raise _BadBody("the size of a chunk of the body is not valid")
        return int(size, 16)

    def _read_exactly(self, size: int, before: int = 0) -> bytes:
        if before + size > BODY_BYTES_MAX:
            raise _BadBody(f"the body is longer than {BODY_BYTES_MAX:,} bytes", 413)
        data = self.rfile.read(size)
        if len(data) < size:
            raise _BadBody("the body is cut off")
        return data

    def _send(self, answer: Answer, cut_after: int | None) -> None:
        if answer.status is None:
            self._hang_up()
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in CONNECTION_HEADERS:
                self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for chunk in answer.chunks[:cut_after]:
            self._wait(chunk)
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk.data), chunk.data))
            self.wfile.flush()
        if cut_after is not None or answer.ending == "cut":
            self._hang_up()
            return
        self.wfile.write(b"0\r\n\r\n")

    def _wait(self, chunk: Chunk) -> None:
        pace = self.server.provider.options.pace
        if pace > 0:
            world.pause(max(chunk.after_ns, 0) / 1e9 / pace)

    def _hang_up(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no access log."""


def _decompressed(body: bytes) -> bytes:
    decompressor = zlib.decompressobj(wbits=31)
    try:
        plain = decompressor.decompress(body, BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise _BadBody("the body is not valid gzip") from error
    if len(plain) > BODY_BYTES_MAX:
        raise _BadBody(f"the decompressed body is longer than {BODY_BYTES_MAX:,} bytes", 413)
    if not decompressor.eof:
        raise _BadBody("the compressed body is cut off")
    if decompressor.unused_data:
        raise _BadBody("the compressed body has more than one part")
    return plain


def _rechunked(answer: Answer, path: str, options: ServeOptions) -> Iterator[Chunk]:
    """Yield the chunks to send, with the delay before each instead of its arrival time."""
    if options.chunk_bytes:
        body, size = answer.body, options.chunk_bytes
        chunks: Sequence[Chunk] = [
            Chunk(body[at : at + size], 0) for at in range(0, len(body), size)
        ]
    elif len(answer.chunks) == 1:
        split = dialect_of(path).stream_chunks(answer.headers, answer.body)
        chunks = [Chunk(data, 0) for data in split]
    else:
        chunks = answer.chunks
    before = 0
    for chunk in chunks:
        if chunk.data:
            yield Chunk(chunk.data, chunk.after_ns - before)
            before = chunk.after_ns


def _digest(question: Question) -> str:
    """Return a digest of a request that depends neither on its headers nor on the values of its secrets."""
    try:
        text = canonical(parse(question.body)) if question.body else ""
        body = _numbered(text).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        body = question.body
    return question_digest(question.method, _route(question), {}, body)


def _route(question: Question) -> str:
    """Return the path of a request without the part that depends on the client's base URL."""
    return dialect_of(question.path).route(question.path)


def _numbered(text: str) -> str:
    """Return a text in which secrets are replaced by numbers, in the order of their first occurrence."""
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return f"[redacted:{match[1]}:{numbers.setdefault(match[0], len(numbers) + 1)}]"

    return _PLACEHOLDER.sub(number, text)


_PLACEHOLDER = re.compile(r"\[redacted:([a-z0-9_]{1,40})(?::[0-9a-f]{1,16})?\]")
"""A placeholder of a secret, with its tag; see `agentobs.redaction`."""
COMPARED_MAX = 1000
"""The maximum number of unused exchanges that are compared to find the most similar one. Our choice."""


def _value(question: Question) -> Any:
    """Return the body of a request with numbered secrets, as a JSON value, or as text if it is not JSON."""
    try:
        return json.loads(_numbered(canonical(parse(question.body))))
    except (ValueError, RecursionError):
        return question.body.decode("utf-8", "replace")


def _first_difference(old: Any, new: Any, path: str = "$") -> tuple[tuple[int, ...], str]:
    """Return the position and the path of the first difference between two values; a larger position is later.

    The history counts as the last key, because a difference there means that most of the request is equal.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        last = dialect_of_body(old).history_key
        keys = sorted(old.keys() | new.keys(), key=lambda key: (key == last, key))
        for at, key in enumerate(keys):
            inner = f"{path}.{key}"
            if key not in old or key not in new:
                return (at,), inner
            if old[key] != new[key]:
                late, found = _first_difference(old[key], new[key], inner)
                return (at, *late), found
    if isinstance(old, list) and isinstance(new, list):
        for at, (old_item, new_item) in enumerate(zip(old, new, strict=False)):
            if old_item != new_item:
                late, found = _first_difference(old_item, new_item, f"{path}[{at}]")
                return (at, *late), found
        at = min(len(old), len(new))
        return (at,), f"{path}[{at}]"
    return (), path


def _refusal(question: Question) -> str | None:
    """Return why the real provider would reject a request; None if it would accept it."""
    try:
        body = json.loads(question.body)
    except (ValueError, RecursionError):
        return None
    has_history = isinstance(body, dict) and bool(history(body))
    return dialect_of(question.path).refusal(body) if has_history else None


def _injected_error(status: int, path: str) -> Answer:
    text = "injected by agentobs serve"
    return _error(status, None, text, 1, path)


def _wrong_host() -> Answer:
    text = "only 127.0.0.1, localhost and [::1] are answered, with the port of this server"
    answer = _error(403, None, text, None)
    return replace(answer, headers={**answer.headers, "connection": "close"})


def _not_recorded(question: Question, script: Script) -> Answer:
    return _error(410, "not_recorded", script.miss_text(question), None, question.path)


def _error(
    status: int, kind: str | None, message: str, wait_ms: float | None, path: str = ""
) -> Answer:
    """Return an error response that requests a retry after `wait_ms`, or no retry if `wait_ms` is None."""
    dialect = dialect_of(path)
    headers = {"content-type": "application/json", **dialect.retry_headers(wait_ms)}
    body = dialect.error_body(status, message, kind)
    return Answer(status, headers, (Chunk(body, 0),), "complete")
