"""A local stand-in for the provider: it answers over loopback HTTP from a recording.

Point any client at it with ANTHROPIC_BASE_URL. A request is answered by the first unused exchange with the same
request, where secrets are equal up to a consistent renaming within a request. With `match="order"` the next exchange
answers, whatever the request is. An unknown request gets status 410 with `x-should-retry: false`, so that no client
retries; the response names the nearest recorded request and the first difference. Responses can be cut into chunks,
paced as recorded, and broken on demand.
"""

from __future__ import annotations

import json
import re
import socket
import threading
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
    kept_request_headers,
    question_digest,
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

Match = Literal["question", "order"]


@dataclass(frozen=True, slots=True)
class Fault:
    """An injected failure for one request."""

    at: int
    """The number of the request, from 1."""
    status: int | None = None
    """Answer with this status instead of the recorded response, which is kept for the next request."""
    cut_after: int | None = None
    """Send this many chunks of the response, then close the connection."""


_FAULT = re.compile(r"(?:status:(?P<status>[45]\d\d)|cut:(?P<cut>\d+))@(?P<at>\d+)\Z")


def parse_fault(text: str) -> Fault:
    """Return the fault that a text such as `status:529@2` or `cut:3@1` describes: the failure, and the request number.

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
    """How to answer."""

    match: Match = "question"
    """`question`: the first exchange with the same request; `order`: the next exchange."""
    chunk_bytes: int | None = None
    """Send bodies in chunks of this many bytes; None: as recorded, and streams event by event if that is unknown."""
    pace: float = 0.0
    """1.0 waits as long as recorded between chunks, 2.0 half as long; 0.0 does not wait."""
    faults: tuple[Fault, ...] = ()
    strict: bool = False
    """Reject conversations that the real provider would reject, such as a tool call without a result."""


class Script:
    """The exchanges of a recording, each used once; safe to share between threads."""

    def __init__(self, recording: Recording, match: Match = "question") -> None:
        """Serve the model exchanges of `recording`."""
        self.exchanges = [e for e in recording.exchanges if isinstance(e, ModelExchange)]
        self.match = match
        self._left = list(range(len(self.exchanges)))
        self._lock = threading.Lock()
        self._digests = [_digest(e.question) for e in self.exchanges] if match == "question" else []
        self._redactor = Redactor(world.random_bytes(32))
        self.asked = 0

    def take(self, question: Question) -> ModelExchange | None:
        """Return the exchange that answers a request and mark it as used; None if there is none."""
        digest = _digest(self._clean(question)) if self.match == "question" else ""
        with self._lock:
            for place, index in enumerate(self._left):
                if self.match == "order" or self._digests[index] == digest:
                    del self._left[place]
                    return self.exchanges[index]
        return None

    def nearest(self, question: Question) -> tuple[int, str] | None:
        """Return the number of the unused exchange that is most similar to a request, and the path of the first
        difference.

        The most similar one has the same URL path and differs last.
        """
        came = _value(self._clean(question))
        with self._lock:
            left = [(at, self.exchanges[at].question) for at in self._left[:LOOKED_AT]]
        same = [each for each in left if each[1].path == question.path] or left
        found = [(at, _first_difference(_value(asked), came)) for at, asked in same]
        if not found:
            return None
        at, (_, path) = max(found, key=lambda each: (each[1][0], -each[0]))
        return at + 1, path

    def _clean(self, question: Question) -> Question:
        """Return a request as it would have been recorded: without secrets."""
        return replace(question, body=self._redactor.redact(question.body))

    def count(self) -> int:
        """Count a request and return its number, from 1."""
        with self._lock:
            self.asked += 1
            return self.asked

    @property
    def left(self) -> int:
        """How many exchanges were not used."""
        return len(self._left)


class ServedProvider:
    """A loopback HTTP server that answers from a script; a context manager."""

    def __init__(
        self, recording: Recording, options: ServeOptions | None = None, port: int = 0
    ) -> None:
        """Bind to 127.0.0.1 at `port`, 0 for any free port.

        Raises:
            UsageError: the port is in use or invalid.
        """
        self.options = options or ServeOptions()
        self.script = Script(recording, self.options.match)
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
        """Answer from another recording from now on."""
        self.script = Script(recording, self.options.match)

    def __enter__(self) -> ServedProvider:
        """Start answering."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()

    def serve_forever(self) -> None:
        """Serve in this thread until interrupted."""
        try:
            self._server.serve_forever(0.1)
        finally:
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    provider: ServedProvider

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is not an error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # A response consists of several small writes; without this each waits 40 ms for the client's acknowledgment.
    disable_nagle_algorithm = True
    server: _Server

    def _answer(self) -> None:
        if not self._is_local():
            self.close_connection = True
            self._send(_foreign(), None)
            return
        provider = self.server.provider
        question = self._question()
        number = provider.script.count()
        made = next((f for f in provider.options.faults if f.at == number), None)
        if made and made.status:
            self._send(_made_error(made.status, question.path), None)
            return
        refused = _fault_in(question) if provider.options.strict else None
        if refused:
            self._send(_error(400, None, refused, None, question.path), None)
            return
        taken = provider.script.take(question)
        if taken is None:
            self._send(_not_recorded(question, provider.script), None)
            return
        answer = replace(
            taken.answer, chunks=tuple(_rechunked(taken.answer, question.path, provider.options))
        )
        self._send(answer, made.cut_after if made else None)

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = _answer  # names that http.server asks for

    def _is_local(self) -> bool:
        """Return whether the Host header names this machine.

        A web page may get its own name resolved to 127.0.0.1 (DNS rebinding); the header still has that name.
        """
        port = self.server.server_address[1]
        names = {f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")}
        hosts = [host.lower() for host in self.headers.get_all("host", [])]
        origins = [origin.lower() for origin in self.headers.get_all("origin", [])]
        said = hosts + [origin.removeprefix("http://") for origin in origins]
        return len(hosts) == 1 and names.issuperset(said)

    def _question(self) -> Question:
        body = self._read_body()
        headers = kept_request_headers(dict(self.headers.items()))
        return Question(self.command, self.path, headers, body)

    def _read_body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("content-length", 0)))

    def _send(self, answer: Answer, cut_after: int | None) -> None:
        if answer.status is None:
            self._hang_up()
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
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


def _rechunked(answer: Answer, path: str, options: ServeOptions) -> Iterator[Chunk]:
    """Yield the chunks to send, with the delay before each instead of its arrival time."""
    if options.chunk_bytes:
        body, size = answer.body, options.chunk_bytes
        pieces: Sequence[Chunk] = [
            Chunk(body[at : at + size], 0) for at in range(0, len(body), size)
        ]
    elif len(answer.chunks) == 1:
        split = dialect_of(path).stream_pieces(answer.headers, answer.body)
        pieces = [Chunk(data, 0) for data in split]
    else:
        pieces = answer.chunks
    before = 0
    for piece in pieces:
        if piece.data:
            yield Chunk(piece.data, piece.after_ns - before)
            before = piece.after_ns


def _digest(question: Question) -> str:
    """Return the digest that identifies equal requests: headers and the names of secrets are ignored."""
    try:
        text = canonical(parse(question.body)) if question.body else ""
        body = _numbered(text).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        body = question.body
    return question_digest(question.method, question.path, {}, body)


def _numbered(text: str) -> str:
    """Return a text in which secrets are numbered by their first positions."""
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return f"[redacted:{match[1]}:{numbers.setdefault(match[0], len(numbers) + 1)}]"

    return _PLACEHOLDER.sub(number, text)


_PLACEHOLDER = re.compile(r"\[redacted:([a-z0-9_]{1,40})(?::[0-9a-f]{1,16})?\]")
"""A placeholder of a secret, with its tag; see `agentobs.redaction`."""
LOOKED_AT = 1000
"""How many unused exchanges are compared to find the nearest one. Our choice."""


def _value(question: Question) -> Any:
    """Return the body of a request, with its secrets numbered; as text if it is not JSON."""
    try:
        return json.loads(_numbered(canonical(parse(question.body))))
    except (ValueError, RecursionError):
        return question.body.decode("utf-8", "replace")


def _first_difference(old: Any, new: Any, path: str = "$") -> tuple[tuple[int, ...], str]:
    """Return where two values differ, and how late that is: messages last, because new messages identify a
    conversation.
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
        for at, (one, other) in enumerate(zip(old, new, strict=False)):
            if one != other:
                late, found = _first_difference(one, other, f"{path}[{at}]")
                return (at, *late), found
        at = min(len(old), len(new))
        return (at,), f"{path}[{at}]"
    return (), path


def _fault_in(question: Question) -> str | None:
    try:
        asked = json.loads(question.body)
    except (ValueError, RecursionError):
        return None
    is_read = isinstance(asked, dict) and bool(history(asked))
    return dialect_of(question.path).refusal(asked) if is_read else None


def _made_error(status: int, path: str) -> Answer:
    text = "injected by agentobs serve"
    return _error(status, None, text, 1, path)


def _foreign() -> Answer:
    text = "only 127.0.0.1, localhost and [::1] are answered, with the port of this server"
    answer = _error(403, None, text, None)
    return replace(answer, headers={**answer.headers, "connection": "close"})


def _not_recorded(question: Question, script: Script) -> Answer:
    left = f"{script.left} of {len(script.exchanges)} exchanges left"
    text = f"{question.method} {question.path} was not recorded ({left})"
    if script.match == "question" and (near := script.nearest(question)) is not None:
        text += f"; request {near[0]} of the recording is the most similar; first difference at {near[1]}"
    return _error(410, "not_recorded", text, None, question.path)


def _error(
    status: int, kind: str | None, message: str, wait_ms: float | None, path: str = ""
) -> Answer:
    """Return an error that asks for a retry after `wait_ms`, or for none if that is None."""
    dialect = dialect_of(path)
    headers = {"content-type": "application/json", **dialect.retry_headers(wait_ms)}
    body = dialect.error_body(status, message, kind)
    return Answer(status, headers, (Chunk(body, 0),), "complete")
