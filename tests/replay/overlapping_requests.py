"""A provider that holds requests until a given number are in flight, and then responds to them one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from time import sleep as pause  # tests replace `time.sleep`

import agentobs
from agentobs.recording.session import start_recorder
from agentobs.recording.wire import transport
from agentobs.records.exchanges import Recording
from tests.loopback import serving
from tests.provider_script import message_events, text
from tests.replay.agents import last_session


def in_flight_now() -> set[int]:
    """Return the IDs of the requests of this process that have not ended."""
    return {id(each) for each in transport._open_exchanges()}


@contextmanager
def serve_overlapping(
    rounds: Sequence[Sequence[int]], *, early: bool = False, only_first: bool = False
) -> Iterator[str]:
    """Serve responses that contain their number, and yield the URL.

    Each round is a permutation of its requests, where 1 is the request that arrived first. All requests of a round are
    in flight before the first response is sent. The responses are sent in the order of the round, each after the
    previous response is complete. With `early`, the headers and the first event of each response are sent as soon as
    its request arrives. With `only_first`, the other responses of a round are never completed: the agent cancels their
    requests.
    """
    lock, arrived = threading.Condition(), [0]
    done: set[int] = set()
    closed: list[bool] = []
    starts = [sum(map(len, rounds[:number])) for number in range(len(rounds) + 1)]

    def may_end(number: int) -> bool:
        first = max(start for start in starts if start < number)
        order = rounds[starts.index(first)]
        before = order[: order.index(number - first)]
        if before and only_first:
            return False
        return arrived[0] >= first + len(order) and done >= {first + each for each in before}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            with lock:
                arrived[0] += 1
                number = arrived[0]
                lock.notify_all()
                if not early:
                    assert lock.wait_for(lambda: closed or may_end(number), 20)
            first, *rest = message_events(text(f"answer {number}"), number=number)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream; charset=utf-8")
            self.send_header("content-length", str(len(first) + sum(map(len, rest))))
            self.end_headers()
            self.wfile.write(first)
            with lock:
                assert lock.wait_for(lambda: closed or may_end(number), 20)
            in_flight = in_flight_now()
            self.wfile.write(b"".join(rest))
            until = time.monotonic() + 20
            while in_flight and in_flight <= in_flight_now() and time.monotonic() < until:
                pause(0.001)  # the client has not yet read the previous response to its end
            with lock:
                done.add(number)
                lock.notify_all()

        def log_message(self, *arguments: object) -> None:
            pass

    try:
        with serving(Handler) as url:
            yield url
    finally:
        # Otherwise, handlers of abandoned requests would keep waiting, and fail during a later test.
        with lock:
            closed.append(True)
            lock.notify_all()


def record_overlapping(
    tmp_path: Path,
    run: Callable[[str], object],
    rounds: Sequence[Sequence[int]],
    *,
    early: bool = False,
    only_first: bool = False,
) -> Recording:
    """Record an agent whose requests overlap, and return its session."""
    home = tmp_path / "home"
    agentobs.stop_recorder()
    with serve_overlapping(rounds, early=early, only_first=only_first) as url:
        start_recorder(str(home))
        try:
            run(url)
        finally:
            assert agentobs.stop_recorder()
    return last_session(home)
