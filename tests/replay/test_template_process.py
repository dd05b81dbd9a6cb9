"""Processes of isolated tests: a template process and its children, without pytest."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentobs.errors import UsageError
from replay.isolation.template_process import Death, Send, Template

Work = Callable[[int, Send], None]


@pytest.fixture(scope="module")
def collected() -> None:
    """Close the files that earlier tests left behind, because they would be closed at any time."""
    gc.collect()


@pytest.fixture
def template(collected: None) -> Iterator[Callable[[Work], Template]]:
    """Return a function that creates template processes. At the end, close the processes, and check that nothing is
    left.
    """
    templates: list[Template] = []
    before = descriptors()

    def make(work: Work) -> Template:
        templates.append(Template(work))
        return templates[-1]

    yield make
    for each in templates:
        each.close()
        each.close()
        with pytest.raises(ChildProcessError):
            os.waitpid(each.process_id, os.WNOHANG)
    assert descriptors() == before


def descriptors() -> set[str]:
    """Return the open file descriptors of this process, except the one that reads the list."""
    listed = {each.name for each in Path("/proc/self/fd").iterdir()}
    return {each for each in listed if Path("/proc/self/fd", each).exists()}


def forever(number: int, send: Send) -> None:
    faulthandler.disable()
    send("process", os.getpid())
    threading.Event().wait()


def test_a_child_sends_and_ends(template: Callable[[Work], Template]) -> None:
    """Messages of a child arrive complete and in order, whatever their size, and the last message reports its end."""
    state: list[int] = []

    def work(number: int, send: Send) -> None:
        state.append(number)
        for message in ("small", "large" * 100_000, state):
            send("sent", message)

    forked = template(work)
    state.append(0)  # the template process has its own copy of `state`
    for number in (1, 2):
        found = list(forked.run(number, None))
        assert found == [
            ("sent", "small"),
            ("sent", "large" * 100_000),
            ("sent", [number]),
            ("ended", Death(0)),
        ]
    assert state == [0]


@pytest.mark.parametrize(
    ("work", "death", "text"),
    [
        (lambda number, send: os._exit(3), Death(3), "exited with code 3"),
        (lambda number, send: sys.exit(4), Death(4), "exited with code 4"),
        (lambda number, send: sys.exit("why"), Death(1), "exited with code 1"),
        (lambda number, send: 1 / 0, Death(70), "exited with code 70"),
        (
            lambda number, send: os.kill(os.getpid(), signal.SIGKILL),
            Death(-9),
            "was killed by SIGKILL",
        ),
    ],
    ids=["os-exit", "sys-exit", "sys-exit-with-text", "raises", "killed"],
)
def test_each_end_of_a_child_is_reported(
    template: Callable[[Work], Template], work: Any, death: Death, text: str
) -> None:
    """Each way in which a child can end is reported, and the next child runs."""
    forked = template(work)
    for _ in range(2):
        assert list(forked.run(0, None)) == [("ended", death)]
    assert death.text() == text


def test_a_silent_child_is_aborted(template: Callable[[Work], Template]) -> None:
    """A child that sends nothing for the permitted time is aborted, and the next child runs."""
    forked = template(forever)
    for _ in range(2):
        (kind, _), ended = forked.run(0, 0.05)
        assert kind == "process"
        assert ended == ("ended", Death(-signal.SIGABRT, is_late=True))


@pytest.mark.slow
def test_a_child_that_ignores_the_abort_is_killed(
    template: Callable[[Work], Template], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that ignores SIGABRT is killed."""

    def work(number: int, send: Send) -> None:
        faulthandler.disable()
        signal.signal(signal.SIGABRT, signal.SIG_IGN)
        forever(number, send)

    monkeypatch.setattr("replay.isolation.template_process.INTERRUPT_SECONDS", (0.05, 0.05, 2.0))
    _, ended = template(work).run(0, 0.05)
    assert ended == ("ended", Death(-signal.SIGKILL, is_late=True))


@pytest.mark.slow
def test_a_reader_that_stops_ends_the_child(template: Callable[[Work], Template]) -> None:
    """If the reader of a child's messages stops early, as with Ctrl-C, the child is ended."""
    running = template(forever).run(0, None)
    _, process = next(running)
    running.close()
    assert not Path(f"/proc/{process}").exists()


def test_a_template_process_that_died_is_an_error(template: Callable[[Work], Template]) -> None:
    """If the template process has died, the error explains how to run tests without it."""
    forked = template(forever)
    os.kill(forked.process_id, signal.SIGKILL)
    with pytest.raises(UsageError, match=r"has ended.*--replay-no-fork"):
        list(forked.run(0, None))


def test_a_process_that_a_child_has_started_is_not_waited_for(
    template: Callable[[Work], Template],
) -> None:
    """The run does not wait for a process that a child has started and that keeps the child's pipe open."""

    def work(number: int, send: Send) -> None:
        if (process := os.fork()) == 0:
            threading.Event().wait()
        send("process", process)

    (_, process), ended = template(work).run(0, None)
    assert ended == ("ended", Death(0))
    os.kill(process, signal.SIGKILL)


LEAVES = """
import atexit, sys, threading
from replay.isolation.template_process import Template

atexit.register(print, "at exit")
lock = threading.Lock()
threading.Thread(target=lambda: (lock.acquire(), threading.Event().wait()), daemon=True).start()
sys.stdout.write("once|")

def work(number, send):
    print(f"child {number}|", end="")

template = Template(work, lambda: print("prepared"))
for number in (1, 2):
    list(template.run(number, None))
template.close()
"""


def test_no_output_is_duplicated() -> None:
    """Children do not repeat buffered output or `atexit` handlers, and the template process prints nothing."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LEAVES], capture_output=True, text=True, check=True
    )
    assert done.stdout == "once|child 1|child 2|at exit\n"
    assert done.stderr == ""
