"""SQL worker: run untrusted SQL in a separate process that has limits and can be killed.

DuckDB's own limits do not stop malicious statements: `repeat` and other scalar and list functions exceed them.
Therefore the connection is in a new process that has given up its rights to open files, to write files, and to exceed
its limits of memory and processor time. This module starts the process, sends it the statement, reads the rows, and
kills it on timeout. The code of the process is in `sql_worker_main`.
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
from agentobs.store.duckdb.query_rows import QueryRows
from agentobs.store.duckdb.worker_protocol import LENGTH, encoded, pack, read, row_of

Parameters = Sequence[Any] | Mapping[str, Any] | None
Cut = Literal["rows", "bytes"]
"""The limit that cut off the rows of a result."""

ENDING_SECONDS = 1.0
"""The maximum time for which a worker that has closed its pipe is awaited. Our choice."""
QUERY_BYTES = 16 * 1024 * 1024
"""The maximum length of a message to a worker, which contains the statement and its parameters. Our choice."""
MESSAGE_BYTES = 64 * 1024
"""The maximum length of a message from a worker that is not part of a result. Our choice."""
MAX_SECONDS = 1_000_000
"""The maximum of the time limits: a round number below the maximum timeout of one `poll` call (2^31 ms)."""
MAX_LIMIT = 2**50
"""The maximum of the other limits. Our choice: more than any machine has."""
OUT_OF_MEMORY = 77
"""The exit code of a worker that has no memory left to report an error."""

_INHERITED = ("TZ", "LD_LIBRARY_PATH", "AGENTOBS_PRICES")
"""The environment variables that a worker inherits: the local time zone, the library path, which the interpreter may
need to start, and the path of the price file. (The last name is defined in `ledger.price_book`, which is slow to
import.)
"""

_KINDS = {kind.__name__: kind for kind in (UsageError, HomeError, ForeignError, DamagedError)}
"""The errors that a worker may report by name."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one query. The defaults are far above normal use, but low enough to protect the machine."""

    timeout_seconds: float = 30.0
    """The maximum duration of one query, after the store was opened."""
    memory_bytes: int = 1024**3
    """The maximum memory of a query, in addition to the memory that the open store uses."""
    rows: int = 1_000_000
    """The maximum number of rows in a result."""
    columns: int = 1_000
    """The maximum number of columns in a result."""
    answer_bytes: int = 128 * 1024**2
    """The maximum size of a result as JSON."""
    opening_seconds: float = 600.0
    """The maximum duration of opening the store, including an ingest of new records."""

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            maximum = MAX_SECONDS if name.endswith("_seconds") else MAX_LIMIT
            if not 0 < value <= maximum:
                todo = f"It must be a number above 0 and up to {maximum:,}"
                raise UsageError(f"invalid limit: {value}", where=name, todo=todo)


def query(
    sql: str,
    parameters: Parameters = None,
    *,
    home: Home | str | os.PathLike[str] | None = None,
    limits: Limits | None = None,
) -> QueryRows:
    """Return the rows of one SELECT statement on everything that was recorded up to this moment.

    The result is a list of tuples. Its method `df` returns a pandas DataFrame, and notebooks show it as a table.

    The statement runs in a separate process, which cannot access files, the network, settings or variables of this
    program, and which is killed if it exceeds its limits.

    Args:
        sql: one statement; `?` and `$name` are parameters.
        parameters: a sequence for `?`, a mapping for `$name`.
        home: as for `connect`.
        limits: the limits of the query.

    Raises:
        UsageError: `sql` is not exactly one SELECT statement, DuckDB refuses it, or it exceeded a limit.
        HomeError, ForeignError: as for `connect`.
    """
    with Worker(home, limits) as worker:
        result = worker.run(sql, parameters)
        return QueryRows(result.columns, result.rows)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a query, whose rows are received while they are iterated."""

    columns: list[str]
    """Column names; a name may occur twice."""
    rows: Iterator[tuple[Any, ...]]
    """The rows, to be iterated once. Iteration raises an error when a limit is reached; earlier rows are valid."""


class Worker:
    """A process that opens the store of a home and runs queries on it, one at a time.

    It sees the data recorded before it was started. Use it in one thread only. After a query that had to be stopped
    from outside, the worker can no longer be used.
    """

    def __init__(
        self,
        home: Home | str | os.PathLike[str] | None = None,
        limits: Limits | None = None,
        *,
        ingest: bool = True,
    ) -> None:
        """Start the process. It opens the store in the background; the first query waits until it is open.

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
        self._is_sending_rows = False
        limit_values = dataclasses.asdict(self._limits)
        self._send(encoded({"home": str(place.path), "ingest": ingest, "limits": limit_values}))

    @property
    def process_id(self) -> int:
        """The ID of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it accepts queries."""
        return self._process.poll() is None

    def run(self, sql: str, parameters: Parameters = None) -> Result:
        """Run one query. All rows of the previous result must have been read.

        Args:
            sql: one statement; `?` and `$name` are parameters.
            parameters: a sequence for `?`, a mapping for `$name`.

        Raises:
            UsageError: `sql` is not exactly one SELECT statement, DuckDB refuses it, or it exceeded a limit.
            ForeignError: as for `connect`.
        """
        message = encoded({"sql": sql, "parameters": _packed(parameters)})
        if len(message) > QUERY_BYTES:
            found = f"the statement and its parameters have {size(len(message))}"
            todo = f"The limit is {size(QUERY_BYTES)}"
            raise UsageError(found, where="sql", todo=todo)
        with self._killed_on_error():
            self._await_opening()
            if not self.is_alive:
                raise _ended("the worker has ended")
            if self._is_sending_rows:
                self.close()
                raise _ended("it was called before the last row of another result was read")
            self._left_ns = int(self._limits.timeout_seconds * 1e9)
            self._is_sending_rows = True
            self._send(message)
            max_bytes = self._limits.answer_bytes + MESSAGE_BYTES
            columns = self._receive(max_bytes, "columns")["columns"]
        return Result([str(name) for name in columns], self._rows())

    def close(self) -> None:
        """Kill the process and its child processes. No data can be lost, because it only reads."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            # No other process can have its ID until `wait` returns.
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
        """Send a message. Errors are ignored: if the worker has ended, reading its response reports that."""
        assert self._process.stdin
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(message)
            self._process.stdin.flush()

    def _rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of the current result. If the caller stops before the last row, the worker is killed."""
        max_bytes = self._limits.answer_bytes + 2 * MESSAGE_BYTES
        with self._killed_on_error():
            while "end" not in (message := self._receive(max_bytes, "rows", "end")):
                max_bytes -= self._size
                for row in message["rows"]:
                    yield row_of(row)
        self._is_sending_rows = False
        if cut := message["end"]:
            raise _cut(cut, self._limits)

    def _receive(self, max_bytes: int, *expected: str) -> dict[str, Any]:
        """Return the next message, which must have one of the expected keys.

        Raises:
            AgentobsError: the worker reported an error, or has ended.
        """
        self._fill(LENGTH)
        length = int.from_bytes(self._received[:LENGTH], "big")
        self._size = length
        if length > max_bytes:
            self.close()
            raise _ended("the worker sent more than the limit")
        self._fill(LENGTH + length)
        data = bytes(self._received[LENGTH : LENGTH + length])
        del self._received[: LENGTH + length]
        message = read(data, *expected, "error")
        if "error" in message:
            self._is_sending_rows = False
            raise self._reported_error(message["error"])
        return message

    def _fill(self, length: int) -> None:
        """Read until this many bytes are buffered, or until the timeout. Time that the consumer of the rows takes does
        not count.
        """
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
                raise (
                    limit_exceeded("time", self._limits) if self._is_open else _slow(self._limits)
                )
            if not (data := os.read(descriptor, 1 << 18)):
                self._raise_end_reason()
            self._received += data

    def _reported_error(self, error: Any) -> AgentobsError:
        """Return the error that the worker reported."""
        parts = {name: str(value) for name, value in dict(error).items()}
        if "limit" in parts:
            return limit_exceeded(parts["limit"], self._limits)
        kind = _KINDS.get(parts.get("kind", ""), UsageError)
        return kind(
            parts.get("found", ""), where=parts.get("where", ""), todo=parts.get("todo", "")
        )

    def _raise_end_reason(self) -> NoReturn:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_SECONDS)
        code = self._process.poll()
        self.close()
        if code == -signal.SIGXCPU:
            raise limit_exceeded("cpu", self._limits)
        if code in (OUT_OF_MEMORY, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS):
            # DuckDB aborts if it cannot handle a failed allocation.
            raise limit_exceeded("memory", self._limits)
        if code == -signal.SIGKILL:
            raise _ended(
                "the worker was killed by another process, possibly because memory ran out"
            )
        raise _ended(f"the worker ended unexpectedly (exit code {code})")

    @contextlib.contextmanager
    def _killed_on_error(self) -> Iterator[None]:
        """Kill the worker if this thread is interrupted, not all rows are read, or it sends an invalid message."""
        try:
            yield
        except UsageError:
            raise  # an error of the query, after which the worker can be used, or the worker has already ended
        except BaseException:
            self.close()
            raise


def limit_exceeded(limit: str, limits: Limits) -> UsageError:
    """Return the error for a query that exceeded its time, processor time or memory."""
    seconds = f"{limits.timeout_seconds:g} s"
    match limit:
        case "memory":
            found = (
                f"the query needs more than {size(limits.memory_bytes)} of memory and was stopped"
            )
            return _limit(found, "memory", "memory_bytes")
        case "cpu":
            found = f"the query used more processor time than {seconds} per core and was stopped"
        case _:
            found = f"the query took longer than {seconds} and was stopped"
    return _limit(found, "timeout", "timeout_seconds")


def too_wide(count: int, limits: Limits) -> UsageError:
    """Return the error for a result with too many columns."""
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
    """Start the worker process in a new interpreter; a fork would inherit the open files of this process."""
    if not sys.executable:
        raise UsageError(
            "this program has no Python interpreter with which it can start a second process",
            where="sql",
            todo="agentobs.connect() runs queries in this process",
        )
    environment = {name: value for name in _INHERITED if (value := world.environ(name))}
    # Use the same module path as this process, without the current directory (-P).
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
