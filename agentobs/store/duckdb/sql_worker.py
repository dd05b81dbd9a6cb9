"""SQL of others, run in a separate process that has limits and can be killed.

DuckDB's own limits do not stop malicious statements: `repeat` and other scalar and list functions exceed them. So the
connection is in a fresh process that has given up its rights to open files, to write them, and to exceed its limits of
memory and processor time. This half starts the process, sends it the statement, reads the rows, and kills it on
timeout. `sql_worker_main` is the other half.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from agentobs import world
from agentobs.errors import AgentobsError, DamagedError, ForeignError, HomeError, UsageError
from agentobs.recording.journal.home import Home, existing_home
from agentobs.store.duckdb.worker_protocol import LENGTH, encoded, pack, read, row_of

Parameters = Sequence[Any] | Mapping[str, Any] | None
Cut = Literal["rows", "bytes"]
"""Why an answer ended before its last row."""

ENDING_SECONDS = 1.0
"""How long a worker that has closed its pipe may take to end. Our choice."""
QUESTION_BYTES = 16 * 1024 * 1024
"""The maximum length of a message to a worker: text of the statement and parameters. Our choice."""
MESSAGE_BYTES = 64 * 1024
"""The maximum length of a message from a worker that is not part of an answer. Our choice."""
LONGEST_SECONDS = 1_000_000
"""The maximum allowed time, about what the system can wait for in one call (2^31 ms)."""
MOST = 2**50
"""The maximum of the other limits. Our choice: beyond any machine."""
OUT_OF_MEMORY = 77
"""The exit code of a worker that has no memory left to report an error."""

_INHERITED = ("TZ", "LD_LIBRARY_PATH", "AGENTOBS_PRICES")
"""The environment variables that a worker gets: the time zone of displayed times, what the interpreter may need to
start, and where the prices are (`ledger.book`, which would be slow to import here).
"""


_KINDS = {kind.__name__: kind for kind in (UsageError, HomeError, ForeignError, DamagedError)}
"""The errors that a worker may report by name."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one query. All are our choice: far above normal use, far below harm."""

    timeout_seconds: float = 30.0
    """How long one query may take, once the store is open."""
    memory_bytes: int = 1024**3
    """How much memory a query may use beyond that of the open store."""
    rows: int = 1_000_000
    """How many rows an answer may have."""
    columns: int = 1_000
    """How many columns."""
    answer_bytes: int = 128 * 1024**2
    """How large an answer may be as JSON, and therefore how large one cell."""
    opening_seconds: float = 600.0
    """How long opening the store may take, including an ingest of new records."""

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            most = LONGEST_SECONDS if name.endswith("_seconds") else MOST
            if not 0 < value <= most:
                todo = f"This limit is a number above 0 and up to {most:,}"
                raise UsageError(f"a limit of {value}", where=name, todo=todo)


def query(
    sql: str,
    parameters: Parameters = None,
    *,
    home: Home | str | os.PathLike[str] | None = None,
    limits: Limits | None = None,
) -> list[tuple[Any, ...]]:
    """Return the rows of one SELECT statement over everything that was recorded, up to this moment.

    The statement runs in a separate process, which cannot reach files, the network, settings or variables of this
    program, and which is killed if it exceeds its limits.

    Args:
        sql: one statement; `?` and `$name` are parameters.
        parameters: a sequence for `?`, a mapping for `$name`.
        home: as for `connect`.
        limits: the limits of the query.

    Raises:
        UsageError: it is not one SELECT statement, DuckDB refuses it, or it exceeded a limit.
        HomeError, ForeignError: as for `connect`.
    """
    with Worker(home, limits) as worker:
        return list(worker.ask(sql, parameters).rows)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer whose rows are being received."""

    columns: list[str]
    """Column names; a name may occur twice."""
    rows: Iterator[tuple[Any, ...]]
    """Its rows, to be read once. Reading them raises an error when a limit is reached; earlier rows are valid."""


class Worker:
    """A process that has opened a home and answers queries about it, one after the other.

    It sees the data recorded before it was started. It is for one thread, and unusable after the first query that had
    to be stopped from outside.
    """

    def __init__(
        self,
        home: Home | str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        *,
        ingest: bool = True,
    ) -> None:
        """Start it. It opens the store in the background; the first query waits for that.

        Args:
            home: as for `connect`.
            limits: the limits of each query.
            ingest: as for `connect`.

        Raises:
            HomeError: as for `connect`.
            UsageError: this interpreter cannot start another one.
        """
        place = home if isinstance(home, Home) else existing_home(home)
        self._limits = limits or Limits()
        self._process = _start()
        self._received = bytearray()
        self._size = 0
        self._left_ns = int(self._limits.opening_seconds * 1e9)
        self._is_open = False
        self._is_answering = False
        told = dataclasses.asdict(self._limits)
        self._send(encoded({"home": str(place.path), "ingest": ingest, "limits": told}))

    @property
    def process_id(self) -> int:
        """The ID of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it accepts queries."""
        return self._process.poll() is None

    def ask(self, sql: str, parameters: Parameters = None) -> Answer:
        """Run one query; the rows of the previous one must have been read.

        Args:
            sql: one statement; `?` and `$name` are parameters.
            parameters: a sequence for `?`, a mapping for `$name`.

        Raises:
            UsageError: it is not one SELECT statement, DuckDB refuses it, or it exceeded a limit.
            ForeignError: as for `connect`.
        """
        question = encoded({"sql": sql, "parameters": _packed(parameters)})
        if len(question) > QUESTION_BYTES:
            found = f"the statement and its parameters have {size(len(question))}"
            todo = f"The limit is {size(QUESTION_BYTES)}"
            raise UsageError(found, where="sql", todo=todo)
        with self._killed_on_error():
            self._await_opening()
            if not self.is_alive:
                raise _ended("the worker has ended")
            if self._is_answering:
                self.close()
                raise _ended("it was called before the last row of another result was read")
            self._left_ns = int(self._limits.timeout_seconds * 1e9)
            self._is_answering = True
            self._send(question)
            most = self._limits.answer_bytes + MESSAGE_BYTES
            columns = self._receive(most, "columns")["columns"]
        return Answer([str(name) for name in columns], self._rows())

    def close(self) -> None:
        """Kill it and its child processes. It has nothing that could be lost."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # Until it is waited for, no other process can have its ID.
            if self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await_opening(self) -> None:
        if not self._is_open:
            for text in self._receive(MESSAGE_BYTES, "ready")["ready"]:
                warnings.warn(str(text), RuntimeWarning, stacklevel=4)
            self._is_open = True

    def _send(self, message: bytes) -> None:
        """Send a message. If the worker has ended, that is reported when its answer is read."""
        assert self._process.stdin
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(message)
            self._process.stdin.flush()

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of the latest answer; the worker ends if not all rows are read."""
        left = self._limits.answer_bytes + 2 * MESSAGE_BYTES
        with self._killed_on_error():
            while "end" not in (message := self._receive(left, "rows", "end")):
                left -= self._size
                for row in message["rows"]:
                    yield row_of(row)
        self._is_answering = False
        if cut := message["end"]:
            raise _cut(cut, self._limits)

    def _receive(self, most: int, *expected: str) -> dict[str, Any]:
        """Return the next message, which has one of these keys.

        Raises:
            AgentobsError: the error that the worker reported, or the cause of its death.
        """
        self._fill(LENGTH)
        length = int.from_bytes(self._received[:LENGTH], "big")
        self._size = length
        if length > most:
            self.close()
            raise _ended("the worker sent more than the limit")
        self._fill(LENGTH + length)
        data = bytes(self._received[LENGTH : LENGTH + length])
        del self._received[: LENGTH + length]
        message = read(data, *expected, "error")
        if "error" in message:
            self._is_answering = False
            raise self._told(message["error"])
        return message

    def _fill(self, length: int) -> None:
        """Read this many bytes, or until the time is over. Time taken by the consumer does not count."""
        assert self._process.stdout
        if self._process.stdout.closed:
            raise _ended("the worker has ended")
        descriptor = self._process.stdout.fileno()
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        while len(self._received) < length:
            since = world.monotonic()
            ready = waiting.poll(max(0, self._left_ns) / 1e6)
            self._left_ns -= world.monotonic() - since
            if not ready:
                self.close()
                raise over("time", self._limits) if self._is_open else _slow(self._limits)
            if not (data := os.read(descriptor, 1 << 18)):
                self._say_why_it_ended()
            self._received += data

    def _told(self, error: Any) -> AgentobsError:
        """Return the error that the worker reported."""
        told = {name: str(value) for name, value in dict(error).items()}
        if "limit" in told:
            return over(told["limit"], self._limits)
        kind = _KINDS.get(told.get("kind", ""), UsageError)
        return kind(told.get("found", ""), where=told.get("where", ""), todo=told.get("todo", ""))

    def _say_why_it_ended(self) -> NoReturn:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_SECONDS)
        code = self._process.poll()
        self.close()
        if code == -signal.SIGXCPU:
            raise over("cpu", self._limits)
        if code in (OUT_OF_MEMORY, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS):
            # The library aborts if it cannot handle a failed allocation.
            raise over("memory", self._limits)
        if code == -signal.SIGKILL:
            raise _ended(
                "the worker was killed by another process, possibly because memory ran out"
            )
        raise _ended(f"the worker ended by itself (code {code})")

    @contextlib.contextmanager
    def _killed_on_error(self) -> Iterator[None]:
        """Kill the worker if we are interrupted, if not all rows are read, or if it sends an invalid message."""
        try:
            yield
        except UsageError:
            raise  # of the question, or the worker has ended already
        except BaseException:
            self.close()
            raise


def over(limit: str, limits: Limits) -> UsageError:
    """Return the error of a query that exceeded its time, processor time or memory."""
    seconds = f"{limits.timeout_seconds:g} s"
    match limit:
        case "memory":
            found = f"it needs more than {size(limits.memory_bytes)} of memory and was stopped"
            return _limit(found, "memory", "memory_bytes")
        case "cpu":
            found = f"it used more processor time than {seconds} and was stopped"
        case _:
            found = f"it took longer than {seconds} and was stopped"
    return _limit(found, "timeout", "timeout_seconds")


def too_wide(count: int, limits: Limits) -> UsageError:
    """Return the error of an answer with too many columns."""
    found = (
        f"the result would have {count:,} columns, more than {limits.columns:,}; it was rejected"
    )
    return _limit(found, "max-columns", "columns")


def size(count: int) -> str:
    """Return a number of bytes in a readable unit."""
    for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count:,} bytes"


def _cut(cut: Cut, limits: Limits) -> UsageError:
    if cut == "rows":
        found = f"the result has more than {limits.rows:,} rows; the others were dropped"
        return _limit(found, "max-rows", "rows")
    found = f"the result is larger than {size(limits.answer_bytes)}; the rest was dropped"
    return _limit(found, "max-bytes", "answer_bytes")


def _limit(found: str, option: str, name: str) -> UsageError:
    todo = f"Select less, or raise the limit: --{option} on the command line, Limits({name}=...) in Python"
    return UsageError(found, where="sql", todo=todo)


def _slow(limits: Limits) -> UsageError:
    found = f"opening the store took longer than {limits.opening_seconds:g} s and was stopped"
    todo = "Run agentobs ingest, or allow more with Limits(opening_seconds=...) in Python"
    return UsageError(found, where="sql", todo=todo)


def _ended(found: str) -> UsageError:
    return UsageError(found, where="sql", todo="Retry; no data was lost")


def _start() -> subprocess.Popen[bytes]:
    """Start the other half: a fresh interpreter, not a fork of this one with its threads and open files."""
    if not sys.executable:
        raise UsageError(
            "this program has no Python interpreter that can be started as a second process",
            where="sql",
            todo="agentobs.connect() runs queries in this process",
        )
    environment = {name: value for name in _INHERITED if (value := world.environ(name))}
    # The same modules as here, and none from the current directory (-P).
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(each).absolute()) for each in sys.path)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "agentobs.store.duckdb.sql_worker_main"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )


def _packed(parameters: Parameters) -> Any:
    if parameters is None or isinstance(parameters, Mapping):
        return pack(None if parameters is None else dict(parameters))
    return pack(list(parameters))
