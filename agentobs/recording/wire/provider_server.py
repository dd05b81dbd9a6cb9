"""A provider that is not the provider: it answers over loopback HTTP from a recording.

Point any client at it with ANTHROPIC_BASE_URL. A request is answered by the first exchange not yet
served that asks the same question, where secrets are as they were recorded, up to a consistent renaming
within a request; with `match="order"` by the next one, whatever it asks. What was not recorded gets
status 410 with `x-should-retry: false`, so that no client asks again; it says which recorded request is
nearest, and where the two part first. Answers can be cut
into chunks, paced as recorded, and broken on demand.
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
from agentobs.provider.messages import fault_of_request, split_events
from agentobs.records.canonical_json import canonical, parse, question_digest
from agentobs.records.exchanges import (
    Answer,
    Chunk,
    ModelExchange,
    Question,
    Recording,
    kept_request_headers,
)
from agentobs.redaction import Redactor

Match = Literal["question", "order"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure made on demand at one request."""

    at: int
    """Which request, counted from 1."""
    status: int | None = None
    """Answer with this status in place of the recorded answer, which stays for the next request."""
    cut_after: int | None = None
    """Send so many chunks of the answer, then close the connection."""


_FAULT = re.compile(r"(?:status:(?P<status>[45]\d\d)|cut:(?P<cut>\d+))@(?P<at>\d+)\Z")


def parse_fault(text: str) -> Fault:
    """Return the fault that `status:529@2` or `cut:3@1` names: what, and at which request.

    Raises:
        UsageError: the text is neither.
    """
    found = _FAULT.match(text)
    if not found:
        raise UsageError(
            f"{text!r} names no fault",
            where="--fault",
            todo="Write status:CODE@REQUEST or cut:CHUNKS@REQUEST, such as status:529@2 or cut:3@1",
        )
    status, cut = found["status"], found["cut"]
    return Fault(int(found["at"]), int(status) if status else None, int(cut) if cut else None)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How to answer."""

    match: Match = "question"
    """`question`: the first exchange that asks the same; `order`: the next one."""
    chunk_bytes: int | None = None
    """Send bodies in pieces of so many bytes; None: as recorded, streams event by event where unknown."""
    pace: float = 0.0
    """1.0 waits as long as recorded between chunks, 2.0 half as long; 0.0 does not wait."""
    faults: tuple[Fault, ...] = ()
    strict: bool = False
    """Refuse conversations that the real provider would not take either, such as a tool call without a result."""


class Script:
    """The exchanges of a recording, handed out one by one; safe to share between threads."""

    def __init__(self, recording: Recording, match: Match = "question") -> None:
        """Hand out the model exchanges of `recording`."""
        self.exchanges = [e for e in recording.exchanges if isinstance(e, ModelExchange)]
        self.match = match
        self._left = list(range(len(self.exchanges)))
        self._lock = threading.Lock()
        self._digests = [_digest(e.question) for e in self.exchanges] if match == "question" else []
        self._redactor = Redactor(world.random_bytes(32))
        self.asked = 0

    def take(self, question: Question) -> ModelExchange | None:
        """Return the exchange that answers a question, which is then spent; None where there is none."""
        digest = _digest(self._clean(question)) if self.match == "question" else ""
        with self._lock:
            for place, index in enumerate(self._left):
                if self.match == "order" or self._digests[index] == digest:
                    del self._left[place]
                    return self.exchanges[index]
        return None

    def nearest(self, question: Question) -> tuple[int, str] | None:
        """Return the number of the exchange left that is most like a question, and the path of the first difference.

        Most like is one of the same path that parts from it last.
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
        """Return a question as it would have been recorded: without secrets."""
        return replace(question, body=self._redactor.redact(question.body))

    def count(self) -> int:
        """Count one more request and return its number, from 1."""
        with self._lock:
            self.asked += 1
            return self.asked

    @property
    def left(self) -> int:
        """How many exchanges were not served."""
        return len(self._left)


class ServedProvider:
    """A loopback HTTP server that answers from a script; a context manager."""

    def __init__(
        self, recording: Recording, options: ServeOptions | None = None, port: int = 0
    ) -> None:
        """Bind to 127.0.0.1 at `port`, 0 for a free one.

        Raises:
            UsageError: the port is taken, or there is no such port.
        """
        self.options = options or ServeOptions()
        self.script = Script(recording, self.options.match)
        try:
            self._server = _Server(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "ports go from 0 to 65535"
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
        """The base URL to give to a client."""
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
        """Answer in this thread until interrupted."""
        try:
            self._server.serve_forever(0.1)
        finally:
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    provider: ServedProvider

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is its own business."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer is several small writes; without this each waits 40 ms for the client's acknowledgement.
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
            self._send(_made_error(made.status), None)
            return
        refused = _fault_in(question) if provider.options.strict else None
        if refused:
            headers = {"x-should-retry": "false"}
            self._send(_json_answer(400, "invalid_request_error", refused, headers), None)
            return
        taken = provider.script.take(question)
        if taken is None:
            self._send(_not_recorded(question, provider.script), None)
            return
        answer = replace(taken.answer, chunks=tuple(_rechunked(taken.answer, provider.options)))
        self._send(answer, made.cut_after if made else None)

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = _answer  # names that http.server asks for

    def _is_local(self) -> bool:
        """Return whether the client named this machine itself.

        A page of the web may get its own name resolved to 127.0.0.1; then it still says that name.
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
        """Nothing: what is served is nobody's log."""


def _rechunked(answer: Answer, options: ServeOptions) -> Iterator[Chunk]:
    """Yield the chunks to send, with the wait before each in place of its arrival time."""
    if options.chunk_bytes:
        body, size = answer.body, options.chunk_bytes
        pieces: Sequence[Chunk] = [
            Chunk(body[at : at + size], 0) for at in range(0, len(body), size)
        ]
    elif len(answer.chunks) == 1:
        pieces = [Chunk(data, 0) for data in split_events(answer.body)]
    else:
        pieces = answer.chunks
    before = 0
    for piece in pieces:
        if piece.data:
            yield Chunk(piece.data, piece.after_ns - before)
            before = piece.after_ns


def _digest(question: Question) -> str:
    """Return the digest by which questions are the same here: headers are not compared, nor the names of secrets."""
    try:
        text = canonical(parse(question.body)) if question.body else ""
        body = _numbered(text).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        body = question.body
    return question_digest(question.method, question.path, {}, body)


def _numbered(text: str) -> str:
    """Return a text in which its secrets have the numbers of their first places: which is which is told by those."""
    numbers: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        return f"[redacted:{match[1]}:{numbers.setdefault(match[0], len(numbers) + 1)}]"

    return _PLACEHOLDER.sub(number, text)


_PLACEHOLDER = re.compile(r"\[redacted:([a-z0-9_]{1,40})(?::[0-9a-f]{1,16})?\]")
"""What stands in place of a secret, with its tag; see `agentobs.redaction`."""
LOOKED_AT = 1000
"""How many exchanges that are left are looked at for the nearest one. Our choice."""


def _value(question: Question) -> Any:
    """Return what a question asks, with its secrets numbered; its text where that is no JSON."""
    try:
        return json.loads(_numbered(canonical(parse(question.body))))
    except (ValueError, RecursionError):
        return question.body.decode("utf-8", "replace")


def _first_difference(old: Any, new: Any, path: str = "$") -> tuple[tuple[int, ...], str]:
    """Return where two values part, and how late that is: messages last, for what is added tells conversations."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(old.keys() | new.keys(), key=lambda key: (key == "messages", key))
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
    is_read = isinstance(asked, dict) and isinstance(asked.get("messages"), list)
    return fault_of_request(asked) if is_read else None


def _made_error(status: int) -> Answer:
    kind = {429: "rate_limit_error", 529: "overloaded_error", 413: "request_too_large"}.get(
        status, "api_error"
    )
    return _json_answer(status, kind, "made by agentobs serve on demand", {"retry-after-ms": "1"})


def _foreign() -> Answer:
    text = "only 127.0.0.1, localhost and [::1] are answered, with the port of this server"
    headers = {"x-should-retry": "false", "connection": "close"}
    return _json_answer(403, "permission_error", text, headers)


def _not_recorded(question: Question, script: Script) -> Answer:
    left = f"{script.left} of {len(script.exchanges)} exchanges left"
    text = f"{question.method} {question.path} was not recorded ({left})"
    if script.match == "question" and (near := script.nearest(question)) is not None:
        text += f"; request {near[0]} of the recording is nearest, and parts at {near[1]}"
    return _json_answer(410, "not_recorded", text, {"x-should-retry": "false"})


def _json_answer(status: int, kind: str, message: str, headers: dict[str, str]) -> Answer:
    body = json.dumps({"type": "error", "error": {"type": kind, "message": message}}).encode()
    return Answer(
        status, {"content-type": "application/json", **headers}, (Chunk(body, 0),), "complete"
    )
